// Which tiles of sm80_mma a product gets, by the launches of the mock: a function of rows per
// expert, of the shape of the weights and of the device's shared memory.
#include "cases/problem_case.hpp"
#include "cuda/kernels/gemm/sm80/tile_config.hpp"
#include "cuda_host/machine.hpp"

#include <cstdlib>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

class door_mma_tiles : public on_mock {
 protected:
  cuda::launch_config launch_of(std::string const& words) {
    // Every token is on both experts: as many rows for each as there are tokens.
    cases::problem_case const c(
        parse_problem("experts=2 top_k=2 device=cuda:5 impl=sm80_mma " + words));
    cases::queue const queue(device::cuda(5), nullptr);
    std::size_t const before = machine.launches().size();
    c.execute(queue.get());
    std::vector<mock_cuda::launched> const launches = machine.launches();
    EXPECT_EQ(launches.size(), before + 1) << words;
    return launches.size() == before ? cuda::launch_config{} : launches.back().config;
  }
  void expect_tile(cuda::mma_tile tile, bool quantized, std::string const& words) {
    cuda::mma_tile_config const& config = cuda::config_of(tile);
    cuda::launch_config const launch = launch_of(words);
    EXPECT_EQ(launch.shared_bytes, static_cast<unsigned>(config.shared_bytes(quantized))) << words;
    EXPECT_EQ(launch.threads, static_cast<unsigned>(config.threads())) << words;
  }
};

using enum cuda::mma_tile;

TEST_F(door_mma_tiles, of_plain_weights) {
  std::string const shape = "op=grouped_gemm weight=bf16 hidden=256 inter=128 tokens=";
  expect_tile(m16n128, false, shape + "16");
  expect_tile(m64n128, false, shape + "17");
  expect_tile(m64n128, false, shape + "64");
  expect_tile(m128n256, false, shape + "65");
}

TEST_F(door_mma_tiles, of_few_outputs) {
  std::string const shape = "op=grouped_gemm weight=bf16 act=silu hidden=256 inter=64 tokens=";
  expect_tile(m16n128, false, shape + "16");
  expect_tile(m128n64, false, shape + "17");
  expect_tile(m128n64, false, shape + "600");
}

TEST_F(door_mma_tiles, of_codes) {
  for (std::string const words : {"weight=e4m3", "weight=int8", "weight=int4 scale=group:32"}) {
    std::string const shape = "op=grouped_gemm mode=w8a16 hidden=256 inter=128 " + words;
    expect_tile(m16n128, true, shape + " tokens=16");
    expect_tile(m64n128, true, shape + " tokens=64");
    expect_tile(m256n128, true, shape + " tokens=65");
  }
}

TEST_F(door_mma_tiles, of_codes_that_are_scaled_one_by_one) {
  // Of k no whole stages, whatever the rows.
  std::string const shape = "op=grouped_gemm mode=w8a16 weight=e4m3 hidden=272 inter=128 tokens=";
  expect_tile(m32n128, true, shape + "1");
  expect_tile(m32n128, true, shape + "600");
}

TEST_F(door_mma_tiles, of_weight_gradients) {
  std::string const shape = "op=grouped_gemm_wgrad weight=bf16 act=silu tokens=8 ";
  expect_tile(m64n128, false, shape + "inter=64 hidden=256");
  expect_tile(m128n64, false, shape + "inter=128 hidden=64");
  expect_tile(m128n256, false, shape + "inter=128 hidden=128");
}

// sm_86, sm_89 and sm_120 have 99 KiB. The gradient was once launched with less than its tile has.
TEST_F(door_mma_tiles, fit_the_shared_memory_of_small_devices) {
  machine.make_shared_bytes(99 << 10);
  std::string const gemm = "op=grouped_gemm hidden=256 inter=128 tokens=600 ";
  expect_tile(m16n128, false, gemm + "weight=bf16");
  expect_tile(m16n128, true, gemm + "weight=e4m3 mode=w8a16");
  for (std::string const shape :
       {"inter=64 hidden=256", "inter=128 hidden=64", "inter=128 hidden=128"}) {
    expect_tile(m64n128, false, "op=grouped_gemm_wgrad weight=bf16 act=silu tokens=8 " + shape);
  }
}

// In a process of its own: the environment is read once.
TEST_F(door_mma_tiles, say_why) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const run = [&](std::string const& words) {
    ::setenv("MOE64_VERBOSE", "2", 1);
    static_cast<void>(launch_of(words));
    std::_Exit(0);
  };
  EXPECT_EXIT(run("op=grouped_gemm weight=bf16 hidden=256 inter=128 tokens=600"),
              testing::ExitedWithCode(0),
              "grouped_gemm,cuda:5,m128n256,rows=600 n=256 k=256: most MMAs for each byte");
}

}  // namespace
}  // namespace moe64::test
