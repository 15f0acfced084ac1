// Which tiles of Hopper's kernels a product gets, by the launches of the mock: a function of rows
// per expert and of the shape of the weights alone.
#include "backend.hpp"
#include "cases/problem_case.hpp"
#include "cuda/gemm/sm90/operands.hpp"
#include "cuda_host/machine.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

class door_tiles : public on_mock {
 protected:
  void SetUp() override {
    on_mock::SetUp();
    if (backend_of(device::cuda(5)).layer.empty()) GTEST_SKIP() << "no kernels of sm_90a";
  }
  /// How the one kernel of a product is launched.
  cuda::launch_config launch_of(std::string const& words) {
    // Every token is on both experts: as many rows for each as there are tokens.
    cases::problem_case const c(
        parse_problem("op=grouped_gemm experts=2 top_k=2 device=cuda:5 " + words));
    cases::queue const queue(device::cuda(5), nullptr);
    machine.reset();
    c.execute(queue.get());
    std::vector<mock_cuda::launched> const launches = machine.launches();
    machine.reset();
    EXPECT_EQ(launches.size(), 1U) << words;
    return launches.empty() ? cuda::launch_config{} : launches[0].config;
  }
  auto kernel_of(std::string const& words, index_t rows) {
    return launch_of(words + " tokens=" + std::to_string(rows)).function;
  }
  /// Next to them there is one producer warpgroup.
  unsigned consumer_warpgroups_of(std::string const& words) {
    return launch_of(words).threads / 128 - 1;
  }
  void expect_consumer_warpgroups(unsigned warpgroups, std::string const& shape,
                                  std::vector<index_t> const& row_counts) {
    for (index_t const rows : row_counts) {
      EXPECT_EQ(consumer_warpgroups_of(shape + " tokens=" + std::to_string(rows)), warpgroups)
          << rows << " rows, " << shape;
    }
  }
};

TEST_F(door_tiles, of_small_experts) {
  for (std::string const shape :
       {"mode=w8a8 hidden=1024 inter=64", "mode=w8a8 hidden=1024 inter=2048 act=silu",
        "mode=w8a8 hidden=2048 inter=64 scale=row"}) {
    expect_consumer_warpgroups(2, shape, {1, 16, 17, 48, 161, 256, 272});
    expect_consumer_warpgroups(3, shape, {49, 64, 160, 273, 368, 369, 512, 2048});
  }
}

TEST_F(door_tiles, of_large_experts) {
  for (std::string const shape :
       {"mode=w8a8 hidden=2176 inter=64", "mode=w8a8 hidden=1024 inter=2064"}) {
    expect_consumer_warpgroups(2, shape, {48, 161, 256, 272, 369, 512, 1024});
    expect_consumer_warpgroups(3, shape, {49, 160, 273, 368});
  }
}

TEST_F(door_tiles, of_three_warpgroups_have_tma_stores_where_most_are_full) {
  for (std::string const shape :
       {"mode=w8a8 hidden=1024 inter=64", "mode=w8a8 hidden=2176 inter=64"}) {
    auto const run = [&](index_t rows) { return kernel_of(shape, rows); };
    EXPECT_EQ(run(49), run(160)) << shape;
    EXPECT_NE(run(160), run(273)) << shape;
    EXPECT_EQ(run(273), run(368)) << shape;
  }
}

// TMA stores, and stores of 16 bytes, would write past the ends of such rows.
TEST_F(door_tiles, of_an_odd_width_have_no_vec8) {
  alignas(16) static std::uint16_t memory[64 * 208];
  tensor_view y = tensor_view::contiguous(memory, dtype::bf16, {64, 208}, device::cuda(5));
  cases::queue const queue(device::cuda(5), nullptr);
  cuda::sm90::encoder const encode(queue.get());
  for (auto const& [parts, n_part] : {std::pair{1, 208}, {1, 200}, {2, 104}}) {
    EXPECT_TRUE(cuda::sm90::has_vec8(y, n_part)) << n_part;
    EXPECT_NO_THROW(static_cast<void>(cuda::sm90::map_of_y(y, parts, n_part, 64, encode)));
  }
  EXPECT_FALSE(cuda::sm90::has_vec8(y, 203));
  y.stride[0] = 203;
  EXPECT_FALSE(cuda::sm90::has_vec8(y, 200));
}

// In a process of its own: the environment is read once.
TEST_F(door_tiles, say_what_they_go_without) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const run = [&](std::string const& words) {
    ::setenv("MOE64_VERBOSE", "2", 1);
    static_cast<void>(launch_of(words));
    std::_Exit(0);
  };
  for (std::string const k : {"768", "1024"}) {
    EXPECT_EXIT(run("mode=w8a8 inter=203 act=silu tokens=300 hidden=" + k),
                testing::ExitedWithCode(0),
                "moe64,refused,grouped_gemm,cuda:5,y by TMA store,y .* of 203 outputs");
    EXPECT_EXIT(run("mode=w8a8 inter=208 act=silu tokens=300 hidden=" + k),
                testing::ExitedWithCode(0),
                "^moe64,tile,grouped_gemm,[^\n]*\nmoe64,launch,grouped_gemm");
  }
}

TEST_F(door_tiles, of_few_rows_are_smaller) {
  for (std::string const shape :
       {"mode=w8a8 hidden=256 inter=64", "weight=bf16 hidden=256 inter=64"}) {
    auto const run = [&](index_t rows) { return kernel_of(shape, rows); };
    EXPECT_EQ(run(1), run(16)) << shape;
    EXPECT_NE(run(16), run(17)) << shape;
    EXPECT_EQ(run(17), run(48)) << shape;
    EXPECT_NE(run(48), run(49)) << shape;
    EXPECT_EQ(run(49), run(600)) << shape;
  }
}

TEST_F(door_tiles, of_mixed_input) {
  auto const run = [&](std::string const& words, index_t rows) {
    return kernel_of(words + " hidden=256 inter=64", rows);
  };
  for (std::string const words : {"mode=w8a16", "mode=w8a16 io=f16"}) {
    EXPECT_NE(run(words, 48), run(words, 49)) << words;
    EXPECT_EQ(run(words, 49), run(words, 128)) << words;
    EXPECT_NE(run(words, 128), run(words, 129)) << words;
    EXPECT_EQ(run(words, 129), run(words, 600)) << words;
  }
  // Of the others there is one large tile.
  for (std::string const words : {"mode=w8a16 backward=1", "weight=int4"}) {
    EXPECT_NE(run(words, 48), run(words, 49)) << words;
    EXPECT_EQ(run(words, 49), run(words, 600)) << words;
  }
}

TEST_F(door_tiles, of_large_experts_are_scheduled_dynamically) {
  auto const fills = [&](std::string const& words, index_t rows) {
    cases::problem_case const c(parse_problem("experts=1 top_k=1 device=cuda:5 " + words +
                                              " tokens=" + std::to_string(rows)));
    cases::queue const queue(device::cuda(5), nullptr);
    int const before = machine.calls(runtime_call::fill);
    c.execute(queue.get());
    return machine.calls(runtime_call::fill) - before;
  };
  std::string const codes = "op=grouped_gemm mode=w8a8 ";
  EXPECT_EQ(fills(codes + "hidden=2176 inter=2048", 161), 1);
  EXPECT_EQ(fills(codes + "hidden=2176 inter=2048", 369), 1);
  EXPECT_EQ(fills("op=grouped_gemm weight=bf16 hidden=2176 inter=1024", 161), 1);
  EXPECT_EQ(fills(codes + "hidden=2176 inter=2048", 160), 0);  // few rows
  EXPECT_EQ(fills(codes + "hidden=2176 inter=2048", 300), 0);  // three warpgroups
  // More than 8 MiB for an expert; and the layer lends memory however small its plan is.
  EXPECT_EQ(fills(codes + "hidden=4112 inter=1024", 369), 1);
  EXPECT_EQ(fills(codes + "hidden=4096 inter=1024", 369), 0);
  EXPECT_EQ(fills("mode=w8a8 impl=sm90_w8a8 hidden=4112 inter=1024", 369),
            1 + fills("mode=w8a8 impl=sm90_w8a8 hidden=4096 inter=1024", 369));
}

TEST_F(door_tiles, of_a_short_k_are_broad) {
  for (std::string const shape :
       {"mode=w8a8 hidden=528 inter=64", "mode=w8a8 hidden=768 inter=2048 act=silu",
        "mode=w8a8 hidden=1008 inter=64 scale=row"}) {
    auto const run = [&](index_t rows) { return kernel_of(shape, rows); };
    EXPECT_EQ(run(49), run(176)) << shape;
    EXPECT_NE(run(176), run(177)) << shape;
    EXPECT_EQ(run(177), run(2048)) << shape;
    EXPECT_NE(run(177), kernel_of("mode=w8a8 hidden=1024 inter=64", 177)) << shape;
  }
  for (std::string const shape :
       {"mode=w8a8 hidden=512 inter=64", "weight=bf16 hidden=768 inter=64"}) {
    EXPECT_EQ(kernel_of(shape, 176), kernel_of(shape, 177)) << shape;
  }
}

TEST_F(door_tiles, of_a_short_k_and_of_bf16) {
  expect_consumer_warpgroups(2, "mode=w8a8 hidden=1008 inter=64", {64, 160, 300, 512});
  expect_consumer_warpgroups(2, "weight=bf16 hidden=1024 inter=64", {64, 160, 300, 512});
}

}  // namespace
}  // namespace moe64::test
