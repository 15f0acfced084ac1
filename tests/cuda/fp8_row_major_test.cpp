// What is usually asked of operations that quantise on the way, on a CUDA device, where it has
// kernels of its own: e4m3 with scales of f32 for every 128 columns or every row; and what is
// nearly so. target() compares every call with the CPU, bit for bit.
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::for_each_implementation;
using test::target;
using test::test_tensor;

test::test_plan plan_of(index_t tokens, index_t top_k) {
  return test::make_plan({.tokens = tokens,
                          .top_k = top_k,
                          .experts = 5,
                          .ids = test::random_ids(2, tokens * top_k, 5, 0.2),
                          .weights = test::random_weights(3, tokens * top_k)});
}

/// Some rows of zeros, some with infinity or NaN, some too small for easy quotients.
void fill(test_tensor& x, double size) {
  test::random_source const random(4);
  index_t n = 0;
  x.fill([&](index_t row, index_t, index_t) {
    if (row % 9 == 4) return -0.0;
    if (row % 9 == 7 && random.chance(++n, 0.01)) return std::numeric_limits<double>::quiet_NaN();
    if (row % 9 == 8 && random.chance(++n, 0.01)) return std::numeric_limits<double>::infinity();
    return (row % 9 == 2 ? 0x1p-60 : size) * random.uniform(++n);
  });
}

TEST(cuda_row_major, activations_of_many_widths) {
  test::test_plan const p = plan_of(15, 3);
  for (index_t const inter : {16, 64, 112, 128, 144, 512, 768, 1024, 1040, 2048, 2880, 16400}) {
    for (dtype const type : {dtype::bf16, dtype::f16}) {
      test_tensor both(type, {45, 2 * inter});
      fill(both, 20.0);
      tensor_view const gate = both.view().slice(1, 0, inter);
      tensor_view const up = both.view().slice(1, inter, 2 * inter);
      for (activation_spec const& spec :
           {activation_spec{activation::silu_glu}, activation_spec{activation::gelu_glu},
            activation_spec{activation::gptoss_glu, 1.702F, 7.0F},
            activation_spec{activation::clamped_silu_glu, 1.0F, 0.3F},
            activation_spec{activation::step_glu, 1.0F, 0.3F}}) {
        for (g const& layout : {g::group(128), g::row(), g::group(64), g::group(1024)}) {
          for (dtype const scale : {dtype::f32, dtype::bf16}) {
            SCOPED_TRACE(to_string(gate) + " " + std::string(name(spec.kind)) + " " +
                         to_string(layout) + " " + std::string(name(scale)));
            test_tensor const out(dtype::e4m3, {45, inter});
            test_tensor const scales(scale, {layout.grid_rows(45), layout.grid_cols(inter)});
            activate_args args{spec, gate, up, p.plan.live_rows(), out};
            args.quantized = layout;
            args.scales = scales;
            for_each_implementation(args,
                                    [](activate_args const& call) { activate(call, target()); });
          }
        }
      }
    }
  }
}

TEST(cuda_row_major, rows_of_many_widths) {
  for (index_t const top_k : {1, 3, 8, 9, 33}) {
    test::test_plan const p = plan_of(19, top_k);
    for (index_t const hidden : {16, 128, 144, 2048, 7168, 16384, 16400}) {
      for (dtype const type : {dtype::bf16, dtype::f16}) {
        test_tensor x(type, {19, hidden});
        fill(x, 3.0);
        for (g const& layout : {g::group(128), g::row()}) {
          SCOPED_TRACE(to_string(x.view()) + " " + to_string(layout) + " top_k " +
                       std::to_string(top_k));
          index_t const rows = 19 * top_k;
          test_tensor const codes(dtype::e4m3, {rows, hidden});
          test_tensor const scales(dtype::f32, {layout.grid_rows(rows), layout.grid_cols(hidden)});
          for (bool const weighted : {false, true}) {
            gather_args args{x, {}, p.plan, weighted, codes};
            args.quantized = layout;
            args.row_scales = scales;
            for_each_implementation(args, [](gather_args const& call) { gather(call, target()); });
          }
        }
      }
    }
  }
}

/// Enough numbers for the table of gates; rows of one warp, of several, and not of whole warps.
TEST(cuda_row_major, every_gate_by_the_table) {
  for (index_t const inter : {1024, 800, 2048, 24576}) {
    index_t const rows = ceil_div(index_t{1} << 22, inter) + 3;
    test_tensor gate(dtype::bf16, {rows, inter}), up(dtype::bf16, {rows, inter});
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < inter; ++j) {
        // Every gate in the first rows; in the others what the table has.
        auto const n = static_cast<std::uint64_t>(inter * i + j);
        std::uint64_t const code = n < 0x10000 ? n : 0x3380 + n % 0x1000 + (n / 3 % 2 << 15);
        gate.set_code(code, i, j);
        up.set_code(0x3f80 + n % 251, i, j);
      }
    }
    for (activation const kind : {activation::gelu_glu, activation::gelu}) {
      SCOPED_TRACE(std::string(name(kind)) + " " + std::to_string(inter));
      tensor_view const second = is_gated(kind) ? up.view() : tensor_view{};
      test_tensor const out(dtype::bf16, {rows, inter});
      activate(activate_args{{kind}, gate, second, {}, out}, target());
      for (g const& layout : {g::group(128), g::row()}) {
        test_tensor const codes(dtype::e4m3, {rows, inter});
        test_tensor const scales(dtype::f32, {rows, layout.grid_cols(inter)});
        activate_args quantised{{kind}, gate, second, {}, codes};
        quantised.quantized = layout;
        quantised.scales = scales;
        activate(quantised, target());
      }
    }
  }
}

}  // namespace
}  // namespace moe64
