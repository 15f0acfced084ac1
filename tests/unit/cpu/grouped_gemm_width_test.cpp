// The portable implementations give the same bits at every vector width.
#include "moe64/cpu.hpp"
#include "moe64/explain.hpp"
#include "support/gemm_call.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::gemm_call;
using test::make_weights;
using test::test_tensor;
using test::test_weights;
using test::weight_spec;

constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};
std::set<std::string> const widths{"avx512", "avx2", "scalar"};

/// The output of every portable implementation that takes the call has the same bits.
template <class Args>
void expect_same_bits_at_every_width(Args args, test_tensor& out) {
  std::vector<std::uint8_t> first;
  int seen = 0;
  for (implementation_report const& report : explain(args, cpu_stream())) {
    if (!report.answer || !widths.contains(report.name)) continue;
    SCOPED_TRACE("implementation " + report.name);
    args.implementation = report.name;
    out.poison();
    if constexpr (std::is_same_v<Args, grouped_gemm_args>) {
      grouped_gemm(args, cpu_stream());
    } else {
      grouped_gemm_wgrad(args, cpu_stream());
    }
    if (seen++ == 0) first = out.bytes();
    EXPECT_TRUE(out.bytes() == first);
  }
  // The scalar code runs everywhere.
  EXPECT_GE(seen, 1);
}

void expect_same_bits(gemm_call call) { expect_same_bits_at_every_width(call.args, call.y); }

std::vector<index_t> const every_count{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 130};

class grouped_gemm_width : public testing::TestWithParam<weight_spec> {};

TEST_P(grouped_gemm_width, every_storage_with_bias_and_low_rank) {
  for (auto const layout : {gate_up_layout::concatenated, gate_up_layout::interleaved}) {
    for (bool const in_first : {false, true}) {
      if (in_first && bits(GetParam().type) == 4) continue;
      weight_spec spec = GetParam();
      spec.layout = layout;
      spec.in_first = in_first;
      for (dtype const io : float_types) {
        for (bool const transpose : {false, true}) {
          SCOPED_TRACE(test::to_string(spec) + " " + std::string(name(io)) +
                       (transpose ? " transposed" : ""));
          expect_same_bits(
              {spec, {2, 21, 133}, {3, 0, 9}, io, content::random, {transpose, !transpose, 5}});
        }
      }
    }
  }
}

TEST_P(grouped_gemm_width, deep_and_wide) {
  for (bool const transpose : {false, true}) {
    expect_same_bits(
        {GetParam(), {1, 150, 320}, {4, 22}, dtype::bf16, content::random, {transpose, false, 0}});
  }
}

INSTANTIATE_TEST_SUITE_P(formats, grouped_gemm_width,
                         testing::ValuesIn(test::every_weight_format()),
                         [](auto const& tested) { return test::to_string(tested.param); });

TEST(grouped_gemm_widths, odd_extents_and_every_count_of_rows) {
  weight_spec const block{dtype::e4m3, g::block(128, 128)};
  for (index_t const depth : {1, 15, 17, 127, 2880}) {
    for (index_t const outs : {1, 5, 7}) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE(std::to_string(depth) + " by " + std::to_string(outs) +
                     (transpose ? " transposed" : ""));
        gemm_call::shape const s =
            transpose ? gemm_call::shape{1, depth, outs} : gemm_call::shape{1, outs, depth};
        for (weight_spec const& spec : {block, weight_spec{dtype::bf16}}) {
          expect_same_bits(
              {spec, s, every_count, dtype::bf16, content::random, {transpose, false, 0}});
        }
      }
    }
  }
}

TEST(grouped_gemm_widths, depths_that_no_tile_holds_whole) {
  for (bool const transpose : {false, true}) {
    gemm_call::shape const s =
        transpose ? gemm_call::shape{1, 5000, 7} : gemm_call::shape{1, 7, 5000};
    for (dtype const io : float_types) {
      expect_same_bits({{dtype::e4m3, g::block(128, 128)},
                        s,
                        {1, 13},
                        io,
                        content::random,
                        {transpose, false, 300}});
    }
  }
}

TEST(grouped_gemm_widths, quantised_x) {
  for (dtype const type : {dtype::e4m3, dtype::int8, dtype::fp4}) {
    for (g const& x_scale : {g::row(), g::group(128), g::group(20)}) {
      for (weight_spec const& spec : test::every_weight_format()) {
        SCOPED_TRACE(std::string(name(type)) + " by " + test::to_string(spec));
        std::vector<index_t> const counts{1, 0, 6};
        test_weights const x = make_weights({type, x_scale}, 1, 1, 8, 333, content::random, 3);
        test_weights const w = make_weights(spec, 3, 2, 9, 333, content::random, 4);
        test_tensor const begin = test::make_expert_begin(counts);
        test_tensor y(dtype::f32, {8, 18});
        grouped_gemm_args const args{x.stack.part(0), w.stack, begin, false, {}, {}, y};
        expect_same_bits_at_every_width(args, y);
      }
    }
  }
}

TEST(grouped_gemm_widths, weight_gradient) {
  for (dtype const io : float_types) {
    for (index_t const cols : {1, 17, 50, 200}) {
      for (index_t const outs : {1, 7, 66}) {
        index_t rows = 0;
        for (index_t const count : every_count) rows += count;
        index_t const experts = std::ssize(every_count);
        test_tensor dy(io, {rows, 2 * outs}), x(io, {rows, cols});
        dy.fill_uniform(1);
        x.fill_uniform(2);
        test_tensor const begin = test::make_expert_begin(every_count);
        test_tensor d_weights(io, {2, experts, outs * cols});
        grouped_gemm_wgrad_args args{dy, x, begin, 0.7F, 2, {}, {}, {}};
        for (std::size_t part = 0; part < 2; ++part) {
          tensor_view half = d_weights.view();
          half.data = static_cast<std::uint8_t*>(half.data) +
                      static_cast<index_t>(part) * half.stride[0] * bits(io) / 8;
          half.extent[0] = experts;
          half.extent[1] = outs;
          half.extent[2] = cols;
          half.stride[0] = outs * cols;
          half.stride[1] = cols;
          half.stride[2] = 1;
          args.d_weights[part] = half;
        }
        SCOPED_TRACE(std::string(name(io)) + " " + std::to_string(outs) + " x " +
                     std::to_string(cols));
        expect_same_bits_at_every_width(args, d_weights);
      }
    }
  }
}

}  // namespace
}  // namespace moe64
