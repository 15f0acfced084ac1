// Experts at places on a GPU: allocated one by one, and at places that are none. That all
// implementations give the bits of one stack is in the suites of operations.
#include "support/places.hpp"

#include "support/gemm_call.hpp"
#include "support/implementations.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::difference;
using test::gemm_call;
using test::placed_weights;
using test::target;
using test::test_tensor;
using test::weight_spec;

/// Rows that lead to tiles of every size; expert 2 always has some.
std::vector<std::vector<index_t>> const row_counts{
    {0, 1, 17, 8}, {31, 0, 63, 1, 64}, {127, 128, 129, 0, 65}};

struct kind {
  weight_spec weights;
  bool x_codes, transpose, bias;
};
kind const kinds[] = {{{dtype::e4m3, g::block(128, 128)}, true, false, false},
                      {{dtype::e4m3, g::row(), dtype::bf16}, true, false, true},
                      {{dtype::e4m3, g::block(128, 128)}, false, false, true},
                      {{dtype::e4m3, g::row()}, false, false, false},
                      {{dtype::e4m3, g::block(128, 128), dtype::e8m0}, false, true, false},
                      {{dtype::e4m3, g::row(), dtype::bf16}, false, true, false},
                      {{dtype::fp4, g::group(16), dtype::e4m3}, false, false, false},
                      {{dtype::fp4, g::group(32), dtype::e8m0}, false, false, true},
                      {{dtype::int4, g::group(32), dtype::bf16}, false, false, false},
                      {{dtype::bf16}, false, false, false},
                      {{dtype::bf16}, false, false, true},
                      {{dtype::bf16}, false, true, false}};

/// A call of two parts, with codes for x where the kind has them.
struct call_of {
  gemm_call call;
  test::test_weights codes;

  call_of(kind const& k, std::vector<index_t> const& counts)
      : call(k.weights, {2, 160, 288}, counts, dtype::bf16, content::random,
             {k.transpose, k.bias, 0}) {
    if (!k.x_codes) return;
    codes = test::make_weights({dtype::e4m3, g::group(128)}, 1, 1, call.args.x.rows(),
                               call.args.x.cols(), content::random, 9);
    call.args.x = codes.stack.part(0);
  }
};

/// y with NaN in the rows and outputs that need part `part` of expert `lost`.
std::vector<double> without(gemm_call const& call, std::vector<double> y, index_t lost, int part) {
  index_t const outs = call.args.y.extent[1];
  index_t const first = call.args.transpose ? 0 : part * call.args.weights.part_rows();
  index_t const last = call.args.transpose ? outs : first + call.args.weights.part_rows();
  auto const begin = static_cast<index_t>(call.expert_begin.get(lost));
  auto const end = static_cast<index_t>(call.expert_begin.get(lost + 1));
  EXPECT_LT(begin, end);
  for (index_t r = begin; r < end; ++r) {
    for (index_t n = first; n < last; ++n) y[static_cast<std::size_t>(r * outs + n)] = std::nan("");
  }
  return y;
}

TEST(cuda_places, that_are_none_give_nan_and_nothing_else_changes) {
  constexpr index_t lost = 2, far = index_t{1} << 62;
  int use = 0;
  for (kind const& k : kinds) {
    for (auto const& counts : row_counts) {
      SCOPED_TRACE(test::to_string(k.weights) + (k.transpose ? " transposed" : ""));
      call_of made(k, counts);
      gemm_call& call = made.call;
      placed_weights placed(call.args.weights, 3);
      call.args.weights = placed.stack;
      test::for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
        grouped_gemm(args, target());
        std::vector<double> const whole = call.y.numbers();
        int const part = ++use % 2;
        bool const of_scales = use % 4 >= 2 && !args.weights.is_plain();
        quantized_view const& q = args.weights.part(part);
        index_t const places = (of_scales ? q.scales() : q.values()).extent[0];
        for (index_t const wrong : {index_t{-1}, places, far, -far}) {
          SCOPED_TRACE((of_scales ? "scales at " : "values at ") + std::to_string(wrong));
          index_t& place =
              of_scales ? placed.scales_place(part, lost) : placed.values_place(part, lost);
          index_t const right = place;
          place = wrong;
          call.y.poison();
          grouped_gemm(args, target());
          place = right;
          EXPECT_EQ(difference(call.y.numbers(), without(call, whole, lost, part)), "");
        }
      });
    }
  }
}

TEST(cuda_places, that_are_none_dequantize_to_nan) {
  test::test_weights const weights =
      test::make_weights({dtype::e4m3, g::block(128, 128)}, 3, 1, 160, 272, content::random, 4);
  placed_weights placed(weights.stack, 5);
  test_tensor out(dtype::f32, {3, 160, 272});
  dequantize_args const args{.q = placed.stack.part(0), .out = out};
  dequantize(args, target());
  std::vector<double> expected = out.numbers();
  for (std::size_t i = 160 * 272; i < 2 * 160 * 272; ++i) expected[i] = std::nan("");
  for (bool const of_scales : {false, true}) {
    index_t& place = of_scales ? placed.scales_place(0, 1) : placed.values_place(0, 1);
    index_t const right = place;
    place = -1;
    out.poison();
    dequantize(args, target());
    place = right;
    EXPECT_EQ(difference(out.numbers(), expected), "");
  }
}

/// Each matrix of an array in an allocation of its own, and the table of where they are.
class apart {
 public:
  apart(tensor_view const& of, stream where) {
    if (!of.present()) return;
    std::vector<void const*> matrices;
    for (index_t e = 0; e < of.extent[0]; ++e) {
      tensor_view const matrix = of.slice(0, e, e + 1);
      memory_.emplace_back(matrix.span_bytes(), where.device);
      matrices.push_back(memory_.back().memory().data);
      cuda_copy(memory_.back().memory().data, matrix.data, matrix.span_bytes(), where);
      // So that neighbours are none.
      memory_.emplace_back(index_t{4096} << e % 3, where.device);
    }
    tensor_view like = of.slice(0, 0, 1);
    like.rank = 2;
    like.device = where.device;
    for (int d = 0; d < 2; ++d) {
      like.extent[d] = of.extent[d + 1];
      like.stride[d] = of.stride[d + 1];
    }
    std::vector<index_t> table(matrices.size());
    stack = place_matrices(matrices, like, 256 * 8 / bits(of.type), table);
    index_t const bytes = std::ssize(table) * index_t{sizeof(index_t)};
    memory_.emplace_back(bytes, where.device);
    cuda_copy(memory_.back().memory().data, table.data(), bytes, where);
    places = tensor_view::contiguous(memory_.back().memory().data, dtype::int64,
                                     {std::ssize(table)}, where.device);
    cuda_wait(where);
  }

  tensor_view stack, places;

 private:
  std::deque<cuda_buffer> memory_;
};

/// A tensor of the host in memory of the device.
class on_device {
 public:
  on_device(tensor_view const& of, stream where)
      : view(of), memory_(std::max<index_t>(of.span_bytes(), 1), where.device) {
    view.data = memory_.memory().data;
    view.device = where.device;
    cuda_copy(view.data, of.data, of.span_bytes(), where);
    cuda_wait(where);
  }
  tensor_view view;

 private:
  cuda_buffer memory_;
};

TEST(cuda_places, of_experts_that_were_allocated_one_by_one) {
  stream const where = target().where;
  for (kind const& k : kinds) {
    if (k.bias || k.x_codes || k.weights.has_global()) continue;
    for (auto const& counts : row_counts) {
      SCOPED_TRACE(test::to_string(k.weights) + (k.transpose ? " transposed" : ""));
      gemm_call call(k.weights, {2, 160, 288}, counts, dtype::bf16, content::random,
                     {k.transpose, false, 0});
      std::deque<apart> arrays;
      quantized_view parts[2];
      for (int part = 0; part < 2; ++part) {
        quantized_view const& q = call.args.weights.part(part);
        apart const& values = arrays.emplace_back(q.values(), where);
        apart const& scales = arrays.emplace_back(q.scales(), where);
        expert_places const places = {values.places, scales.places};
        parts[part] = q.is_plain() ? quantized_view::plain(values.stack, places)
                                   : quantized_view::scaled(values.stack, scales.stack, q.layout(),
                                                            {}, places);
      }
      on_device const x(call.x.view(), where), begin(call.expert_begin.view(), where);
      on_device const y(call.y.view(), where);
      test_tensor const back(dtype::bf16, {call.args.y.extent[0], call.args.y.extent[1]});
      test::for_each_implementation(call.args, [&](grouped_gemm_args const& args) {
        grouped_gemm(args, target());
        grouped_gemm_args there = args;
        there.x = quantized_view::plain(x.view);
        there.weights = weight_stack::gate_up(parts[0], parts[1]);
        there.expert_begin = begin.view;
        there.y = y.view;
        cuda_fill(y.view.data, 0xff, y.view.span_bytes(), where);
        grouped_gemm(there, where);
        cuda_copy(back.view().data, y.view.data, y.view.span_bytes(), where);
        cuda_wait(where);
        EXPECT_EQ(difference(back.numbers(), call.y.numbers()), "");
      });
    }
  }
}

}  // namespace
}  // namespace moe64
