// Nothing outside of an operand matters or is touched: NaN on both sides of it, closed pages right
// before its first and right behind its last byte, NaN in all rows that no expert has.
#include "moe64/explain.hpp"
#include "support/gemm_call.hpp"
#include "support/implementations.hpp"
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::fence;
using test::layer_case;
using test::layer_result;
using test::random_layer_case;
using test::target;
using test::test_plan;
using test::test_tensor;
using views = std::vector<tensor_view>;
using g = granularity;

constexpr std::uint64_t problems = 120;
constexpr fence fences[] = {fence::behind, fence::in_front};
dtype const io_types[] = {dtype::f32, dtype::bf16, dtype::f16};
double const nan = std::numeric_limits<double>::quiet_NaN();

// ---- the layer ----------------------------------------------------------------------------------

void expect_the_same_behind_fences(layer_case c) {
  SCOPED_TRACE(to_string(c));
  layer_result const wanted = test::run(c);
  for (fence const around : fences) {
    c.around = around;
    EXPECT_EQ(test::run(c).difference(wanted), "") << static_cast<int>(around);
  }
}

TEST(fences, around_every_tensor_of_a_layer) {
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    expect_the_same_behind_fences(random_layer_case(seed));
  }
}

TEST(fences, around_every_tensor_of_a_layer_with_many_rows) {
  for (dtype const io : io_types) {
    layer_case c;
    c.hidden = 75;
    c.inter = 45;
    c.bias = true;
    c.lora_gate_up = 3;
    c.lora_down = 1;
    c.io = io;
    c.parameter_type = io;
    c.route(61, 3);
    c.weight = weight_format::bf16;
    test::for_each_implementation(c, expect_the_same_behind_fences);
    c.weight = weight_format::e4m3;
    c.scale = g::block(32, 32);
    test::for_each_implementation(c, expect_the_same_behind_fences);
    c.weight = weight_format::int4;
    c.scale = g::group(10);
    test::for_each_implementation(c, expect_the_same_behind_fences);
    c.lora_gate_up = c.lora_down = 0;
    c.weight = weight_format::int8;
    c.scale = g::row();
    c.mode = compute_mode::w8a8;
    test::for_each_implementation(c, expect_the_same_behind_fences);
  }
}

// ---- one operation at a time --------------------------------------------------------------------

/// A copy of the array, gaps included, with other surroundings.
test_tensor copy(test_tensor const& from, fence around) {
  tensor_view const& v = from.view();
  test_tensor to(v.type, std::vector<index_t>(v.extent, v.extent + v.rank),
                 std::vector<index_t>(v.stride, v.stride + v.rank), around);
  std::vector<std::uint8_t> const bytes = from.bytes();
  if (!bytes.empty()) std::memcpy(to.view().data, bytes.data(), bytes.size());
  return to;
}

/// Operands of a call, its outputs last.
struct fenced_call {
  std::vector<test_tensor> operands;
  std::size_t outputs;

  [[nodiscard]] std::vector<test_tensor> with(fence around) const {
    std::vector<test_tensor> result;
    for (test_tensor const& operand : operands) result.push_back(copy(operand, around));
    return result;
  }
  [[nodiscard]] std::vector<std::vector<std::uint64_t>> written(
      std::vector<test_tensor> const& memory) const {
    std::vector<std::vector<std::uint64_t>> codes;
    for (std::size_t i = memory.size() - outputs; i < memory.size(); ++i) {
      codes.push_back(memory[i].codes());
    }
    return codes;
  }

  /// make(views of the operands) is the call; run() is the operation.
  template <class Args>
  void check(std::function<Args(views const&)> const& make,
             void (*run)(Args const&, test::target_stream)) const {
    auto const views_of = [](std::vector<test_tensor> const& memory) {
      views result;
      for (test_tensor const& tensor : memory) result.push_back(tensor.view());
      return result;
    };
    views const given = views_of(operands);
    test::for_each_implementation(make(given), [&](Args const& forced) {
      std::vector<std::vector<std::uint64_t>> wanted;
      for (fence const around : {fence::canaries, fence::behind, fence::in_front}) {
        std::vector<test_tensor> const memory = with(around);
        Args args = make(views_of(memory));
        args.implementation = forced.implementation;
        run(args, target());
        if (around == fence::canaries) {
          wanted = written(memory);
          EXPECT_NE(wanted, written(operands)) << "nothing was written";
        } else {
          EXPECT_EQ(written(memory), wanted) << static_cast<int>(around);
        }
      }
    });
  }
};

test_tensor uniform(dtype type, std::vector<index_t> const& extents, std::uint64_t seed) {
  test_tensor result(type, extents);
  result.fill_uniform(seed);
  return result;
}

/// Rows from `live` on become NaN.
test_tensor with_dead_rows(test_tensor tensor, index_t live) {
  for (index_t r = live; r < tensor.view().extent[0]; ++r) {
    for (index_t i = 0; i < tensor.view().extent[1]; ++i) tensor.set(nan, r, i);
  }
  return tensor;
}

index_t const widths[] = {1, 7, 33, 64, 131, 160};

TEST(fences, activate) {
  index_t const live = 5;
  for (dtype const io : io_types) {
    for (index_t const inter : widths) {
      for (activation const kind :
           {activation::silu_glu, activation::gelu_glu, activation::gelu_tanh_glu,
            activation::gptoss_glu, activation::clamped_silu_glu, activation::step_glu}) {
        SCOPED_TRACE(std::string(name(kind)) + " " + std::to_string(inter));
        fenced_call call;
        call.operands.push_back(with_dead_rows(uniform(io, {7, inter}, 1), live));
        call.operands.push_back(with_dead_rows(uniform(io, {7, inter}, 2), live));
        call.operands.push_back(with_dead_rows(uniform(io, {7, inter}, 3), live));
        call.operands.push_back(test_tensor(dtype::int64, {1}));
        call.operands.back().set(static_cast<double>(live), 0);
        call.operands.push_back(test_tensor(io, {7, inter}));
        call.operands.push_back(test_tensor(io, {7, inter}));
        call.outputs = 2;
        call.check<activate_backward_args>(
            [&](views const& v) {
              return activate_backward_args{.activation = {kind},
                                            .gate = v[0],
                                            .up = v[1],
                                            .d_out = v[2],
                                            .live_rows = v[3],
                                            .d_gate = v[4],
                                            .d_up = v[5]};
            },
            activate_backward);
        call.operands.pop_back();
        call.outputs = 1;
        call.check<activate_args>(
            [&](views const& v) {
              return activate_args{
                  .activation = {kind}, .gate = v[0], .up = v[1], .live_rows = v[3], .out = v[4]};
            },
            activate);
      }
    }
  }
}

TEST(fences, quantize_and_dequantize) {
  struct form {
    dtype type;
    granularity scale;
    dtype scale_type;
  };
  for (form const& f :
       {form{dtype::e4m3, g::block(4, 32), dtype::f32}, form{dtype::e4m3, g::row(), dtype::bf16},
        form{dtype::e5m2, g::group(32), dtype::e8m0}, form{dtype::int8, g::tensor(), dtype::f32},
        form{dtype::int8, g::group(5), dtype::f16}, form{dtype::int4, g::group(32), dtype::f32},
        form{dtype::fp4, g::group(32), dtype::e8m0}}) {
    for (dtype const io : io_types) {
      for (index_t const cols : widths) {
        SCOPED_TRACE(std::string(name(f.type)) + " " + to_string(f.scale) + " " +
                     std::to_string(cols));
        fenced_call call;
        call.operands.push_back(uniform(io, {2, 5, cols}, 1));
        call.operands.push_back(test_tensor(f.type, {2, 5, cols}));
        call.operands.push_back(
            test_tensor(f.scale_type, {2, f.scale.grid_rows(5), f.scale.grid_cols(cols)}));
        call.outputs = 2;
        call.check<quantize_args>(
            [&](views const& v) {
              return quantize_args{.x = v[0], .layout = f.scale, .values = v[1], .scales = v[2]};
            },
            quantize);
        quantize({.x = call.operands[0],
                  .layout = f.scale,
                  .values = call.operands[1],
                  .scales = call.operands[2]},
                 target());
        call.operands.push_back(test_tensor(io, {2, 5, cols}));
        call.outputs = 1;
        call.check<dequantize_args>(
            [&](views const& v) {
              return dequantize_args{.q = quantized_view::scaled(v[1], v[2], f.scale), .out = v[3]};
            },
            dequantize);
      }
    }
  }
}

/// Everything that moves rows, by one plan.
struct moved_rows {
  test_plan plan;
  index_t tokens = 9, top_k = 3, experts = 4, capacity = 27;

  moved_rows()
      : plan(test::make_plan({9, 3, 4, test::random_ids(3, 27, 4), test::random_weights(4, 27)})) {}
  /// The plan's tensors become operands from 0 on.
  void add_to(fenced_call& call) const {
    for (test_tensor const* tensor : {&plan.expert_begin, &plan.row_to_slot, &plan.slot_to_row,
                                      &plan.slot_weight, &plan.status}) {
      call.operands.push_back(copy(*tensor, fence::canaries));
    }
  }
  [[nodiscard]] routing_plan of(views const& v) const {
    return {tokens, top_k, experts, v[0], v[1], v[2], v[3], v[4]};
  }
};

TEST(fences, gather_combine_and_slot_weights) {
  moved_rows const moved;
  index_t const live = moved.plan.live();
  for (dtype const io : io_types) {
    for (index_t const hidden : widths) {
      SCOPED_TRACE(std::string(name(io)) + " " + std::to_string(hidden));
      for (bool const weighted : {false, true}) {
        fenced_call gathers, combines;
        moved.add_to(gathers);
        gathers.operands.push_back(uniform(io, {moved.tokens, hidden}, 1));
        gathers.operands.push_back(test_tensor(io, {moved.capacity, hidden}));
        gathers.outputs = 1;
        gathers.check<gather_args>(
            [&](views const& v) {
              return gather_args{
                  .x = v[5], .plan = moved.of(v), .weighted = weighted, .rows = v[6]};
            },
            gather);
        moved.add_to(combines);
        combines.operands.push_back(with_dead_rows(uniform(io, {moved.capacity, hidden}, 2), live));
        combines.operands.push_back(test_tensor(io, {moved.tokens, hidden}));
        combines.outputs = 1;
        combines.check<combine_args>(
            [&](views const& v) {
              return combine_args{.rows = quantized_view::plain(v[5]),
                                  .plan = moved.of(v),
                                  .weighted = weighted,
                                  .y = v[6]};
            },
            combine);
      }
      fenced_call gradient;
      moved.add_to(gradient);
      gradient.operands.push_back(with_dead_rows(uniform(io, {moved.capacity, hidden}, 3), live));
      gradient.operands.push_back(with_dead_rows(uniform(io, {moved.capacity, hidden}, 4), live));
      gradient.operands.push_back(test_tensor(dtype::f32, {moved.tokens, moved.top_k}));
      gradient.outputs = 1;
      gradient.check<slot_weight_gradient_args>(
          [&](views const& v) {
            return slot_weight_gradient_args{
                .left = v[5], .right = v[6], .plan = moved.of(v), .d_weights = v[7]};
          },
          slot_weight_gradient);
    }
  }
}

TEST(fences, route) {
  for (dtype const io : io_types) {
    for (index_t const experts : widths) {
      for (scoring const score :
           {scoring::softmax, scoring::softmax_of_selected, scoring::sigmoid}) {
        index_t const top_k = std::min<index_t>(experts, 4);
        route_options const options{.score = score, .renormalize = true};
        SCOPED_TRACE(std::string(name(io)) + " " + std::to_string(experts));
        fenced_call call;
        call.operands.push_back(uniform(io, {5, experts}, 1));
        call.operands.push_back(test_tensor(dtype::int32, {5, top_k}));
        call.operands.push_back(test_tensor(dtype::f32, {5, top_k}));
        call.outputs = 2;
        call.check<route_args>(
            [&](views const& v) {
              return route_args{
                  .logits = v[0], .options = options, .expert_ids = v[1], .weights = v[2]};
            },
            route);
        route({.logits = call.operands[0],
               .options = options,
               .expert_ids = call.operands[1],
               .weights = call.operands[2]},
              target());
        call.operands.push_back(test_tensor(io, {5, experts}));
        call.outputs = 1;
        call.check<route_backward_args>(
            [&](views const& v) {
              return route_backward_args{.logits = v[0],
                                         .options = options,
                                         .expert_ids = v[1],
                                         .d_weights = v[2],
                                         .d_logits = v[3]};
            },
            route_backward);
      }
    }
  }
}

TEST(fences, weight_gradient) {
  std::vector<index_t> const counts{35, 0, 5, 1};  // the few rows next to the fence
  index_t const live = 41, capacity = 44;
  for (dtype const io : io_types) {
    for (index_t const cols : widths) {
      for (index_t const outs : {1, 19}) {
        SCOPED_TRACE(std::string(name(io)) + " " + std::to_string(outs) + " x " +
                     std::to_string(cols));
        fenced_call call;
        call.operands.push_back(with_dead_rows(uniform(io, {capacity, outs}, 1), live));
        call.operands.push_back(with_dead_rows(uniform(io, {capacity, cols}, 2), live));
        call.operands.push_back(test::make_expert_begin(counts));
        call.operands.push_back(test_tensor(io, {4, outs, cols}));
        call.operands.push_back(test_tensor(dtype::f32, {4, outs}));
        call.outputs = 2;
        call.check<grouped_gemm_wgrad_args>(
            [&](views const& v) {
              return grouped_gemm_wgrad_args{.dy = v[0],
                                             .x = v[1],
                                             .expert_begin = v[2],
                                             .d_weights = {v[3], {}},
                                             .d_bias = {v[4], {}}};
            },
            grouped_gemm_wgrad);
      }
    }
  }
}

TEST(fences, grouped_gemm) {
  std::vector<index_t> const counts{35, 0, 5, 1};  // the few rows next to the fence
  struct form {
    dtype type;
    granularity scale;
    dtype scale_type = dtype::f32;
  };
  for (form const& f : {form{dtype::bf16, g::none()}, form{dtype::f32, g::none()},
                        form{dtype::e4m3, g::block(16, 32)}, form{dtype::e4m3, g::block(128, 128)},
                        form{dtype::e4m3, g::row()}, form{dtype::e5m2, g::block(64, 64)},
                        form{dtype::int8, g::row()}, form{dtype::int4, g::group(10)},
                        form{dtype::fp4, g::group(32), dtype::e8m0}}) {
    for (dtype const io : io_types) {
      for (index_t const cols : widths) {
        for (bool const transpose : {false, true}) {
          index_t const rows = 37;
          test::gemm_call const made({f.type, f.scale, f.scale_type}, {1, rows, cols}, counts, io,
                                     test::content::random, {transpose, false, 0});
          SCOPED_TRACE(std::string(name(f.type)) + " " + to_string(f.scale) + " in " +
                       std::string(name(io)) + " " + std::to_string(cols) +
                       (transpose ? " transposed" : ""));
          bool const plain = f.scale.kind == scale_kind::none;
          fenced_call call;
          call.operands.push_back(copy(made.x, fence::canaries));
          call.operands.push_back(copy(made.weights.values, fence::canaries));
          call.operands.push_back(plain ? test_tensor(dtype::f32, {1, 1})
                                        : copy(made.weights.scales, fence::canaries));
          call.operands.push_back(copy(made.expert_begin, fence::canaries));
          call.operands.push_back(copy(made.y, fence::canaries));
          call.outputs = 1;
          call.check<grouped_gemm_args>(
              [&](views const& v) {
                return grouped_gemm_args{.x = quantized_view::plain(v[0]),
                                         .weights = weight_stack::single(
                                             plain ? quantized_view::plain(v[1])
                                                   : quantized_view::scaled(v[1], v[2], f.scale)),
                                         .expert_begin = v[3],
                                         .transpose = transpose,
                                         .y = v[4]};
              },
              grouped_gemm);
        }
      }
    }
  }
}

TEST(fences, grouped_gemm_of_codes) {
  std::vector<index_t> const counts{35, 0, 5, 1};  // the few rows next to the fence
  for (dtype const type : {dtype::e4m3, dtype::int8}) {
    for (granularity const& scale : {g::row(), g::group(128)}) {
      for (index_t const cols : {1, 63, 128, 131, 260}) {
        SCOPED_TRACE(std::string(name(type)) + " " + to_string(scale) + std::to_string(cols));
        auto const x = test::make_weights({type, scale}, 1, 1, 44, cols, test::content::random, 1);
        auto const w = test::make_weights({type, scale}, 4, 1, 29, cols, test::content::random, 2);
        fenced_call call;
        for (test_tensor const* tensor : {&x.values, &x.scales, &w.values, &w.scales}) {
          call.operands.push_back(copy(*tensor, fence::canaries));
        }
        call.operands.push_back(test::make_expert_begin(counts));
        call.operands.push_back(test_tensor(dtype::f32, {44, 29}));
        call.outputs = 1;
        call.check<grouped_gemm_args>(
            [&](views const& v) {
              return grouped_gemm_args{
                  .x = quantized_view::scaled(v[0], v[1], scale),
                  .weights = weight_stack::single(quantized_view::scaled(v[2], v[3], scale)),
                  .expert_begin = v[4],
                  .y = v[5]};
            },
            grouped_gemm);
      }
    }
  }
}

}  // namespace
}  // namespace moe64
