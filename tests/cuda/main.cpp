#include "moe64/cuda.hpp"

#include <gtest/gtest.h>

namespace {

/// Where there is no CUDA device every test counts as skipped, and says why.
class needs_cuda final : public testing::Environment {
 public:
  void SetUp() override {
    if (auto const answer = moe64::cuda_support(); !answer) GTEST_SKIP() << answer.reason();
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new needs_cuda);
  return RUN_ALL_TESTS();
}
