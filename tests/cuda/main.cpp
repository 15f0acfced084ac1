#include "moe64/cuda.hpp"

#include <gtest/gtest.h>

#include <cstdio>

/// Where there is no CUDA device no test can run, and each that was asked for counts as skipped:
/// the words are those of a test that skips itself, which ctest looks for.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  moe64::support const answer = moe64::cuda_support();
  if (!answer && !testing::GTEST_FLAG(list_tests)) {
    std::printf("[  SKIPPED ] every test: %s\n", answer.reason().c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
