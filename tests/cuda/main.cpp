#include "moe64/cuda.hpp"

#include <gtest/gtest.h>

#include <cstdio>

/// Where there is no CUDA device no test can run, and the whole program counts as skipped: the code
/// is the one that ctest is told to look for.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  moe64::support const answer = moe64::cuda_support();
  if (!answer && !testing::GTEST_FLAG(list_tests)) {
    std::printf("[  SKIPPED ] every test: %s\n", answer.reason().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
