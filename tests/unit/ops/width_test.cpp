// The implementations of the row operations against each other, with and without threads: quantize,
// dequantize, gather and combine are specified to the last bit, so all agree; slot_weight_gradient
// and the activations are the same at every vector width. Odd lengths, rows that begin anywhere,
// numbers of every kind, and outputs that are large enough to be streamed past the caches.
#include "support/buffer.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::random_source;
using test::test_plan;
using test::test_tensor;

constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};
constexpr dtype code_types[] = {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4};
constexpr index_t odd_lengths[] = {1, 7, 16, 33, 130, 517, 1030};

void call(quantize_args const& args, test::target_stream where) { quantize(args, where); }
void call(dequantize_args const& args, test::target_stream where) { dequantize(args, where); }
void call(gather_args const& args, test::target_stream where) { gather(args, where); }
void call(combine_args const& args, test::target_stream where) { combine(args, where); }
void call(slot_weight_gradient_args const& args, test::target_stream where) {
  slot_weight_gradient(args, where);
}
void call(activate_args const& args, test::target_stream where) { activate(args, where); }
void call(activate_backward_args const& args, test::target_stream where) {
  activate_backward(args, where);
}

/// Bytes of a tensor; NaN has many codes, which arithmetic may exchange: where wanted they become
/// one.
std::vector<std::uint8_t> bytes_of(test_tensor& tensor, bool nan_is_nan) {
  tensor_view const& v = tensor.view();
  for (index_t i = 0; nan_is_nan && i < v.extent[0]; ++i) {
    for (index_t j = 0; j < v.extent[1]; ++j) {
      for (index_t k = 0; k < (v.rank > 2 ? v.extent[2] : 1); ++k) {
        if (!std::isnan(tensor.get(i, j, k))) continue;
        tensor.set(std::numeric_limits<double>::quiet_NaN(), i, j, k);
      }
    }
  }
  return tensor.bytes();
}

/// Of what the implementations should be equal: all bytes; all but which NaN a NaN is; that of all
/// but the reference; or, where no NaN can be, the bytes of all but the reference.
enum class agreement { all, all_but_nan, widths, widths_without_nan };

/// On the CPU: one thread and three.
std::vector<test::target_stream> places() {
#ifdef MOE64_TEST_CUDA
  return {test::target()};
#else
  static cpu_pool pool(3);
  return {cpu_stream(), cpu_stream(&pool)};
#endif
}

/// The implementations write the same bytes to all outputs wherever they run. (That they write
/// nothing around them is for the destructor of an output to see.)
template <class Args>
void expect_agreement(Args args, std::vector<test_tensor*> const& outputs, agreement among) {
  std::vector<std::vector<std::uint8_t>> first(outputs.size());
  std::string first_name;
  bool const reference_too = among == agreement::all || among == agreement::all_but_nan;
  bool const nan_is_nan = among == agreement::widths || among == agreement::all_but_nan;
  int seen = 0;
  for (implementation_report const& report : explain(args, test::target())) {
    if (!report.answer) continue;
    if (!test::on_cuda && !reference_too && report.name == "reference") continue;
    args.implementation = report.name;
    for (test::target_stream const where : places()) {
      for (test_tensor* const output : outputs) output->poison();
      call(args, where);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        auto const bytes = bytes_of(*outputs[i], nan_is_nan);
        if (seen == 0) first[i] = bytes;
        EXPECT_TRUE(bytes == first[i]) << report.name << " and " << first_name << ", output " << i;
      }
      if (seen++ == 0) first_name = report.name;
    }
  }
  // Both runs of both implementations that every processor has, or of the one without the
  // reference; on a GPU some operations have no other.
  EXPECT_GE(seen, test::on_cuda ? 1 : reference_too ? 4 : 2);
}

/// Numbers of many sizes; a few are zeros, infinities, NaN or subnormal.
void fill_with_all_sorts(test_tensor& tensor, std::uint64_t seed, bool finite = false) {
  random_source const random(seed);
  tensor_view const& v = tensor.view();
  auto const mask = (std::uint64_t{1} << bits(v.type)) - 1;
  index_t i = 0;
  tensor.fill([&](index_t, index_t, index_t) { return random.uniform(i++, -9.0, 9.0); });
  i = 0;
  for (index_t a = 0; a < v.extent[0]; ++a) {
    for (index_t b = 0; b < (v.rank > 1 ? v.extent[1] : 1); ++b) {
      for (index_t c = 0; c < (v.rank > 2 ? v.extent[2] : 1); ++c, ++i) {
        if (!random.chance(i + 1'000'000, finite ? 0.02 : 0.05)) continue;
        std::uint64_t const code = random.bits(-i - 1) & mask;
        tensor.set_code(finite ? code & (mask >> 3) : code, a, b, c);
      }
    }
  }
}

/// Rows that begin at odd places, those of packed types at whole bytes.
test_tensor odd_rows(dtype type, index_t rows, index_t cols) {
  index_t const stride = bits(type) == 4 ? cols / 2 * 2 + 2 : cols + 3;
  return test_tensor(type, {1, rows, cols}, {rows * stride, stride, 1});
}

TEST(width, quantize_and_dequantize) {
  granularity const layouts[] = {granularity::tensor(),      granularity::row(),
                                 granularity::block(2, 128), granularity::block(4, 5),
                                 granularity::group(32),     granularity::group(7)};
  std::uint64_t seed = 1;
  for (dtype const from : float_types) {
    for (dtype const type : code_types) {
      for (granularity const& layout : layouts) {
        for (index_t const cols : odd_lengths) {
          SCOPED_TRACE(std::string(name(from)) + " to " + std::string(name(type)) + " " +
                       to_string(layout) + " cols " + std::to_string(cols));
          constexpr index_t rows = 5;
          test_tensor x = odd_rows(from, rows, cols), values = odd_rows(type, rows, cols);
          fill_with_all_sorts(x, ++seed, cols % 2 == 0);
          test_tensor scales(seed % 2 == 0 ? dtype::f32 : dtype::f16,
                             {1, layout.grid_rows(rows), layout.grid_cols(cols)});
          expect_agreement(quantize_args{x, layout, values, scales}, {&values, &scales},
                           agreement::all);
          test_tensor out = odd_rows(from, rows, cols);
          expect_agreement(dequantize_args{quantized_view::scaled(values, scales, layout), out},
                           {&out}, agreement::all_but_nan);
          test_tensor across(from, {1, cols, rows});
          expect_agreement(dequantize_args{quantized_view::plain(x), across.view().transposed()},
                           {&across}, agreement::all);
        }
      }
    }
  }
}

TEST(width, quantize_with_a_global_scale_and_extreme_factors) {
  for (double const size : {1e-44, 1e-38, 1e-20, 1.0, 1e20, 3e38}) {
    for (auto const applied :
         {global_scale::direction::multiply, global_scale::direction::divide}) {
      test_tensor x(dtype::f32, {1, 3, 130}), values(dtype::fp4, {1, 3, 130});
      test_tensor scales(dtype::e4m3, {1, 3, 9}), global(dtype::f32, {1});
      x.fill_uniform(3, -size, size);
      expect_agreement(quantize_args{x, granularity::group(16), values, scales, {global, applied}},
                       {&values, &scales, &global}, agreement::all);
      for (dtype const type : code_types) {
        test_tensor codes(type, {1, 3, 130}), factors(dtype::f32, {1, 3, 1});
        expect_agreement(quantize_args{x, granularity::row(), codes, factors}, {&codes, &factors},
                         agreement::all);
      }
    }
  }
}

test_plan plan_of(index_t tokens, index_t top_k, double sentinels = 0.2) {
  return test::make_plan({.tokens = tokens,
                          .top_k = top_k,
                          .experts = 4,
                          .ids = test::random_ids(4, tokens * top_k, 4, sentinels),
                          .weights = test::random_weights(5, tokens * top_k)});
}

test_tensor odd_matrix(dtype type, index_t rows, index_t cols) {
  return test_tensor(type, {rows, cols}, {cols + 3, 1});
}

TEST(width, movement) {
  std::uint64_t seed = 100;
  for (index_t const top_k : {1, 3, 11}) {
    constexpr index_t tokens = 6;
    test_plan const p = plan_of(tokens, top_k);
    for (dtype const type : float_types) {
      for (index_t const hidden : odd_lengths) {
        SCOPED_TRACE(std::string(name(type)) + " hidden " + std::to_string(hidden));
        test_tensor x = odd_matrix(type, tokens, hidden);
        test_tensor rows = odd_matrix(type, tokens * top_k, hidden);
        fill_with_all_sorts(x, ++seed, true);
        for (bool const weighted : {false, true}) {
          expect_agreement(gather_args{x, {}, p.plan, weighted, rows}, {&rows}, agreement::all);
          fill_with_all_sorts(rows, ++seed, true);
          for (dtype const out : float_types) {
            test_tensor y = odd_matrix(out, tokens, hidden);
            expect_agreement(combine_args{quantized_view::plain(rows), p.plan, weighted, y}, {&y},
                             agreement::all);
          }
          test_tensor left = odd_matrix(type, tokens * top_k, hidden);
          fill_with_all_sorts(left, ++seed);
          test_tensor bias(type, {4, hidden}), d_weights(dtype::f32, {tokens, top_k});
          fill_with_all_sorts(bias, ++seed, true);
          expect_agreement(
              slot_weight_gradient_args{left, rows, weighted ? rows.view() : tensor_view{},
                                        weighted ? bias.view() : tensor_view{}, p.plan, d_weights},
              {&d_weights}, agreement::widths);
        }
      }
    }
  }
}

constexpr activation every_activation[] = {
    activation::silu_glu,         activation::gelu_glu, activation::gelu_tanh_glu,
    activation::gptoss_glu,       activation::silu,     activation::gelu,
    activation::clamped_silu_glu, activation::relu2,    activation::step_glu};

void expect_equal_activations(activation kind, dtype type, dtype other, index_t inter,
                              std::uint64_t seed) {
  SCOPED_TRACE(std::string(name(kind)) + " " + std::string(name(type)) + " " +
               std::string(name(other)) + " inter " + std::to_string(inter));
  constexpr index_t rows = 3;
  test_tensor gate = odd_matrix(type, rows, inter), up = odd_matrix(type, rows, inter);
  test_tensor d_out = odd_matrix(other, rows, inter), out = odd_matrix(other, rows, inter);
  test_tensor d_gate = odd_matrix(type, rows, inter), d_up = odd_matrix(type, rows, inter);
  fill_with_all_sorts(gate, seed);
  fill_with_all_sorts(up, seed + 1000);
  fill_with_all_sorts(d_out, seed + 2000);
  bool const gated = is_gated(kind);
  tensor_view const second = gated ? up.view() : tensor_view{};
  expect_agreement(activate_args{{kind}, gate, second, {}, out}, {&out}, agreement::widths);
  std::vector<test_tensor*> outputs{&d_gate};
  if (gated) outputs.push_back(&d_up);
  expect_agreement(
      activate_backward_args{
          {kind}, gate, second, d_out, {}, {}, d_gate, gated ? d_up.view() : second},
      outputs, agreement::widths);
}

TEST(width, activations) {
  std::uint64_t seed = 200;
  for (activation const kind : every_activation) {
    for (dtype const type : float_types) {
      for (dtype const other : {type, type == dtype::bf16 ? dtype::f16 : dtype::bf16}) {
        for (index_t const inter : odd_lengths) {
          expect_equal_activations(kind, type, other, inter, ++seed);
        }
        expect_equal_activations(kind, type, other, 541, ++seed);  // 512, and 29 of 32
      }
    }
  }
}

/// Outputs of 34 MB, whose rows begin at every place of a cache line.
TEST(width, large_outputs) {
  constexpr index_t rows = 1050, cols = 8171, quarters = 4 * rows - 3;
  test_tensor x(dtype::f32, {1, rows, cols}), codes(dtype::e4m3, {1, quarters, cols});
  random_source const random(1);
  for (index_t i = 0; i < rows * cols; ++i) {
    static_cast<float*>(x.view().data)[i] = static_cast<float>(random.uniform(i, -4.0, 4.0));
  }
  test_tensor factors(dtype::f32, {1, quarters, 1});
  tensor_view overlapping = x.view();
  overlapping.extent[1] = quarters;
  overlapping.stride[1] = cols / 4;
  expect_agreement(quantize_args{overlapping, granularity::row(), codes, factors},
                   {&codes, &factors}, agreement::all);
  test_tensor out(dtype::f32, {1, rows, cols});
  auto const q = quantized_view::scaled(codes.view().slice(1, 0, rows),
                                        factors.view().slice(1, 0, rows), granularity::row());
  expect_agreement(dequantize_args{q, out}, {&out}, agreement::all);
  test_plan const p = plan_of(rows / 2, 2, 0.0);
  tensor_view const tokens = x.view().as_matrix().slice(0, 0, rows / 2);
  test_tensor moved(dtype::f32, {rows, cols}), y(dtype::f32, {rows, cols});
  for (bool const weighted : {false, true}) {
    expect_agreement(gather_args{tokens, {}, p.plan, weighted, moved}, {&moved}, agreement::all);
  }
  test_plan const single = plan_of(rows, 1, 0.0);
  tensor_view const gate = x.view().as_matrix();
  expect_agreement(combine_args{quantized_view::plain(gate), single.plan, true, y}, {&y},
                   agreement::all);
  test_tensor d_up(dtype::f32, {rows, cols});
  expect_agreement(activate_args{{activation::relu2}, gate, {}, {}, y}, {&y},
                   agreement::widths_without_nan);
  expect_agreement(activate_backward_args{{}, gate, moved, gate, {}, {}, y, d_up}, {&y, &d_up},
                   agreement::widths_without_nan);
}

}  // namespace
}  // namespace moe64
