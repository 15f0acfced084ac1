// grouped_gemm and its weight gradient on CUDA: exact inputs bit by bit as the CPU, the reference
// bit by bit as the portable CPU implementations, tensor cores within the bound of f32 sums.
#include "support/buffer.hpp"
#include "support/gemm.hpp"
#include "support/gemm_call.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"
#include "support/weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::difference;
using test::gemm_call;
using test::test_tensor;
using test::test_weights;
using test::weight_spec;

constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};
/// Average rows that lead to tiles of 16, 64 and 128 rows.
std::vector<std::vector<index_t>> const row_counts{
    {0, 1, 7, 8, 9, 33, 0}, {31, 0, 127, 1, 64}, {127, 128, 129, 0, 257}};

class cuda_grouped_gemm : public testing::Test {
 protected:
  [[nodiscard]] static test::target_stream where() { return test::target(); }

  /// The implementations of CUDA that take a call.
  template <class Args>
  [[nodiscard]] std::vector<std::string> takers(Args const& args) const {
    std::vector<std::string> names;
    for (implementation_report const& report : explain(args, where())) {
      if (report.answer) names.push_back(report.name);
    }
    return names;
  }

  /// y of the CPU and of every CUDA implementation must have the same bits.
  void expect_as_cpu(grouped_gemm_args const& given, char const* cpu, bool on_tensor_cores) const {
    test_tensor const expected(given.y.type, {given.y.extent[0], given.y.extent[1]});
    test_tensor const actual(given.y.type, {given.y.extent[0], given.y.extent[1]});
    grouped_gemm_args args = given;
    args.y = expected;
    args.implementation = cpu;
    grouped_gemm(args, cpu_stream());
    args.y = actual;
    args.implementation = {};
    std::vector<std::string> const names = takers(args);
    EXPECT_EQ(names.front() != "reference", on_tensor_cores);
    for (std::string const& name : names) {
      if (*cpu != 0 && name != "reference") continue;
      SCOPED_TRACE(name);
      args.implementation = name;
      grouped_gemm(args, where());
      EXPECT_EQ(difference(actual.numbers(), expected.numbers()), "");
    }
  }

  void expect_close(gemm_call const& call) const {
    test::reference_product const expected = test::multiply(call.args);
    auto const bound = test::rounding_bound(expected, call.terms, call.y.view().type);
    grouped_gemm_args args = call.args;
    for (std::string const& name : takers(args)) {
      SCOPED_TRACE(name);
      args.implementation = name;
      grouped_gemm(args, where());
      EXPECT_EQ(difference(call.y.numbers(), expected.y, bound), "");
    }
  }
};

std::string words(weight_spec const& spec, dtype io, bool transpose) {
  return test::to_string(spec) + " by " + std::string(name(io)) + (transpose ? " transposed" : "");
}

/// Whether the tensor-core kernels have stages that such scales divide.
bool divides_stages(weight_spec const& spec) {
  auto const legal = [](index_t per) { return per == 0 || 64 % per == 0 || per % 64 == 0; };
  return legal(spec.scale.block_rows) && legal(spec.scale.block_cols) &&
         !(spec.scale == g::block(1, 1));
}

TEST_F(cuda_grouped_gemm, every_format_is_exact_on_tensor_cores) {
  std::size_t use = 0;
  for (weight_spec spec : test::every_weight_format()) {
    for (bool const in_first : {false, true}) {
      if (in_first && bits(spec.type) == 4) continue;
      spec.in_first = in_first;
      for (dtype const io : {dtype::bf16, dtype::f16}) {
        for (bool const transpose : {false, true}) {
          SCOPED_TRACE(words(spec, io, transpose) + (in_first ? " in first" : ""));
          bool const plain = spec.scale.kind == scale_kind::none;
          bool const taken = plain ? spec.type == io : divides_stages(spec);
          // Every format meets every height of tiles in one of its uses.
          auto const& counts = row_counts[use++ % row_counts.size()];
          gemm_call const call(spec, {2, 80, 160}, counts, io, content::integers,
                               {transpose, !transpose, 5});
          expect_as_cpu(call.args, "", taken);
        }
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, tiles_and_stages_may_be_partial) {
  for (weight_spec const& spec :
       {weight_spec{dtype::bf16}, weight_spec{dtype::e4m3, g::block(128, 128)},
        weight_spec{dtype::fp4, g::group(32), dtype::e8m0}}) {
    for (auto const& counts : row_counts) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE(words(spec, dtype::bf16, transpose));
        gemm_call const call(spec, {2, 320, 288}, counts, dtype::bf16, content::integers,
                             {transpose, false, 0});
        expect_as_cpu(call.args, "", true);
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, few_outputs) {
  for (index_t const outs : {8, 16, 40, 64}) {
    for (auto const& counts : row_counts) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE(std::to_string(outs) + (transpose ? " transposed" : ""));
        gemm_call::shape const shape = {1, transpose ? 328 : outs, transpose ? outs : 328};
        gemm_call const call({dtype::bf16}, shape, counts, dtype::bf16, content::integers,
                             {transpose, !transpose, 5});
        expect_as_cpu(call.args, "", true);
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, few_outputs_have_the_bits_that_they_have_among_many) {
  for (bool const transpose : {false, true}) {
    gemm_call::shape const shape = {1, transpose ? 328 : 160, transpose ? 160 : 328};
    gemm_call const wide({dtype::bf16}, shape, {70, 1, 0, 300}, dtype::bf16, content::random,
                         {transpose, false, 0});
    grouped_gemm_args args = wide.args;
    args.implementation = "sm80_mma";
    grouped_gemm(args, where());
    for (index_t const outs : {16, 64}) {
      test_tensor const y(dtype::bf16, {wide.y.view().extent[0], outs});
      tensor_view const part = wide.weights.values.view().slice(transpose ? 2 : 1, 0, outs);
      args.weights = weight_stack::single(quantized_view::plain(part));
      args.y = y;
      grouped_gemm(args, where());
      for (index_t r = 0; r < 371; ++r) {
        for (index_t n = 0; n < outs; ++n)
          ASSERT_EQ(y.get(r, n), wide.y.get(r, n)) << r << " " << n;
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, widths_of_models) {
  struct shape {
    index_t inter, hidden;
    bool taken;
  };
  for (auto const& [inter, hidden, taken] : {shape{192, 2560, true},
                                             {2880, 33, false},
                                             {704, 64, true},
                                             {1, 2880, true},
                                             {320, 2880, true},
                                             {33, 704, true},
                                             {64, 36, false}}) {
    SCOPED_TRACE(std::to_string(inter) + " x " + std::to_string(hidden));
    gemm_call const call({dtype::bf16}, {1, inter, hidden}, {3, 20}, dtype::bf16, content::integers,
                         {});
    expect_as_cpu(call.args, "", taken);
  }
}

TEST_F(cuda_grouped_gemm, any_number_of_experts) {
  for (index_t const experts : {1, 2, 257, 1025, 4099}) {
    std::vector<index_t> counts;
    for (index_t e = 0; e < experts; ++e) counts.push_back(e % 7 == 3 ? e % 40 : e % 3);
    SCOPED_TRACE(experts);
    expect_as_cpu(
        gemm_call({dtype::bf16}, {1, 8, 16}, counts, dtype::bf16, content::integers, {}).args, "",
        true);
  }
}

TEST_F(cuda_grouped_gemm, the_reference_has_the_bits_of_the_portable_cpu_implementations) {
  for (weight_spec const& spec : test::every_weight_format()) {
    for (dtype const io : float_types) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE(words(spec, io, transpose));
        gemm_call const call(spec, {2, 35, 147}, {9, 0, 21}, io, content::random,
                             {transpose, !transpose, 6});
        expect_as_cpu(call.args, "scalar", false);
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, quantised_x_has_the_bits_of_the_portable_cpu_implementations) {
  for (weight_spec const& x_spec :
       {weight_spec{dtype::e4m3, g::row()}, weight_spec{dtype::e4m3, g::group(128)},
        weight_spec{dtype::int8, g::group(48)},
        weight_spec{dtype::fp4, g::group(32), dtype::e8m0}}) {
    for (weight_spec const& spec : test::every_weight_format()) {
      SCOPED_TRACE(test::to_string(x_spec) + " by " + test::to_string(spec));
      gemm_call call(spec, {2, 35, 290}, {9, 0, 21}, dtype::bf16, content::random,
                     {false, true, 6});
      test_weights const x = test::make_weights(x_spec, 1, 1, 33, 290, content::random, 9);
      call.args.x = x.stack.part(0);
      expect_as_cpu(call.args, "scalar", false);
    }
  }
}

TEST_F(cuda_grouped_gemm, random_numbers_stay_within_the_bound_of_f32_sums) {
  for (weight_spec const& spec : test::every_weight_format()) {
    for (dtype const io : {dtype::bf16, dtype::f16}) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE(words(spec, io, transpose));
        expect_close(
            {spec, {2, 48, 96}, {9, 1, 0, 21}, io, content::random, {transpose, !transpose, 6}});
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, low_rank_weights_may_be_f32) {
  for (bool const transpose : {false, true}) {
    gemm_call call({dtype::bf16}, {2, 48, 96}, {9, 1, 0, 70}, dtype::bf16, content::random,
                   {transpose, false, 6});
    test_weights const low =
        transpose ? test::make_weights({dtype::f32}, 4, 1, 6, 96, content::random, 3)
                  : test::make_weights({dtype::f32}, 4, 2, 48, 6, content::random, 3);
    call.args.low_rank.weights = low.stack;
    EXPECT_EQ(takers(call.args).front(), "sm80_mma");
    expect_close(call);
  }
}

TEST_F(cuda_grouped_gemm, a_row_has_the_same_bits_alone_and_in_a_batch) {
  for (weight_spec const& spec :
       {weight_spec{dtype::bf16}, weight_spec{dtype::e4m3, g::block(128, 128)},
        weight_spec{dtype::int4, g::group(32)}}) {
    for (bool const transpose : {false, true}) {
      SCOPED_TRACE(words(spec, dtype::bf16, transpose));
      gemm_call const batch(spec, {2, 320, 288}, {150, 40, 129}, dtype::bf16, content::random,
                            {transpose, false, 4});
      grouped_gemm_args args = batch.args;
      for (std::string const& name : takers(args)) {
        SCOPED_TRACE(name);
        args = batch.args;
        args.implementation = name;
        grouped_gemm(args, where());
        std::vector<double> const all = batch.y.numbers();
        index_t const outs = batch.y.view().extent[1];
        for (index_t const row : {0, 149, 150, 200, 318}) {
          index_t const expert = row < 150 ? 0 : row < 190 ? 1 : 2;
          std::vector<index_t> counts(3, 0);
          counts[static_cast<std::size_t>(expert)] = 1;
          test_tensor const begin = test::make_expert_begin(counts);
          test_tensor const y(dtype::bf16, {1, outs});
          args.x = quantized_view::plain(batch.x.view().slice(0, row, row + 1));
          args.low_rank.u = batch.u.view().slice(0, row, row + 1);
          args.expert_begin = begin;
          args.y = y;
          grouped_gemm(args, where());
          auto const first = all.begin() + row * outs;
          EXPECT_EQ(difference(y.numbers(), {first, first + outs}), "") << row;
        }
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, strided_operands_and_mixed_types) {
  for (dtype const x_type : float_types) {
    for (dtype const y_type : float_types) {
      gemm_call const call({dtype::e4m3, g::row()}, {2, 48, 64}, {40, 9}, x_type, content::integers,
                           {false, true, 2});
      test_tensor x(x_type, {52, 64}, {72, 1});
      x.fill([&](index_t r, index_t c, index_t) { return call.x.get(r, c); });
      for (auto const& strides : {std::vector<index_t>{96, 1}, {97, 1}, {1, 52}, {192, 2}}) {
        test_tensor const y(y_type, {52, 96}, strides);
        grouped_gemm_args args = call.args;
        args.x = quantized_view::plain(x);
        args.y = y;
        auto const expected = test::rounded(test::multiply(args).y, y_type);
        for (std::string const& name : takers(args)) {
          args.implementation = name;
          grouped_gemm(args, where());
          EXPECT_EQ(difference(y.numbers(), expected), "") << name;
        }
      }
    }
  }
}

TEST_F(cuda_grouped_gemm, sums_over_nothing) {
  for (gemm_call const& call :
       {gemm_call({dtype::bf16}, {1, 8, 16}, {0, 0}, dtype::bf16, content::integers, {}),
        gemm_call({dtype::bf16}, {1, 0, 16}, {2, 1}, dtype::bf16, content::integers, {}),
        gemm_call({dtype::bf16}, {1, 8, 0}, {2, 1}, dtype::bf16, content::integers,
                  {false, true, 0}),
        gemm_call({dtype::bf16}, {1, 8, 16}, {}, dtype::bf16, content::integers, {})}) {
    expect_as_cpu(call.args, "", call.args.weights.cols() > 0);
  }
}

/// A call of grouped_gemm_wgrad; rows past the last expert are NaN.
struct wgrad_call {
  test_tensor expert_begin, dy, x, d_weights[2], d_bias[2];
  grouped_gemm_wgrad_args args;

  wgrad_call(int parts, index_t part_rows, index_t cols, std::vector<index_t> const& counts,
             dtype io, dtype out, content what) {
    index_t const live = std::accumulate(counts.begin(), counts.end(), index_t{0});
    index_t const experts = std::ssize(counts);
    expert_begin = test::make_expert_begin(counts);
    dy = test_tensor(io, {live + 2, parts * part_rows});
    x = test_tensor(io, {live + 2, cols});
    gemm_call::fill(dy, live, what, 1);
    gemm_call::fill(x, live, what, 2);
    args = {dy, x, expert_begin, what == content::integers ? -2.0F : 0.7F, parts, {}, {}};
    for (int part = 0; part < parts; ++part) {
      auto const i = static_cast<std::size_t>(part);
      d_weights[part] = test_tensor(out, {experts, part_rows, cols});
      d_bias[part] = test_tensor(out, {experts, part_rows});
      args.d_weights[i] = d_weights[part];
      args.d_bias[i] = d_bias[part];
    }
  }
  [[nodiscard]] std::vector<double> results() const {
    std::vector<double> all;
    for (test_tensor const* tensor : {&d_weights[0], &d_weights[1], &d_bias[0], &d_bias[1]}) {
      if (!tensor->view().present()) continue;
      std::vector<double> const numbers = tensor->numbers();
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    return all;
  }
  void poison() {
    for (int part = 0; part < 2; ++part) {
      if (d_weights[part].view().present()) d_weights[part].poison();
      if (d_bias[part].view().present()) d_bias[part].poison();
    }
  }
};

class cuda_grouped_gemm_wgrad : public cuda_grouped_gemm {
 protected:
  void expect_as_cpu(wgrad_call call, char const* cpu, bool on_tensor_cores) const {
    grouped_gemm_wgrad_args args = call.args;
    args.implementation = cpu;
    grouped_gemm_wgrad(args, cpu_stream());
    std::vector<double> const expected = call.results();
    args.implementation = {};
    std::vector<std::string> const names = takers(args);
    EXPECT_EQ(names.front() == "sm80_mma", on_tensor_cores);
    for (std::string const& name : names) {
      if (*cpu != 0 && name != "reference") continue;
      SCOPED_TRACE(name);
      call.poison();
      args.implementation = name;
      grouped_gemm_wgrad(args, where());
      EXPECT_EQ(difference(call.results(), expected), "");
    }
  }
};

TEST_F(cuda_grouped_gemm_wgrad, exact_on_integers) {
  std::vector<index_t> const counts{0, 1, 7, 64, 0, 129, 65, 0};
  for (dtype const io : float_types) {
    for (dtype const out : float_types) {
      for (int const parts : {1, 2}) {
        SCOPED_TRACE(std::string(name(io)) + " to " + std::string(name(out)));
        bool const small = io != dtype::f32;
        expect_as_cpu({parts, 80, 160, counts, io, out, content::integers}, "", small);
        expect_as_cpu({parts, 24, 280, counts, io, out, content::integers}, "", small);
        expect_as_cpu({parts, 320, 40, counts, io, out, content::integers}, "", small);
        expect_as_cpu({parts, 19, 37, counts, io, out, content::integers}, "", false);
      }
    }
  }
}

TEST_F(cuda_grouped_gemm_wgrad, the_reference_has_the_bits_of_the_portable_cpu_implementations) {
  for (dtype const io : float_types) {
    expect_as_cpu({2, 19, 40, {0, 5, 77, 1}, io, dtype::f32, content::random}, "scalar", false);
  }
}

TEST_F(cuda_grouped_gemm_wgrad, one_gradient_of_many) {
  wgrad_call call(2, 80, 160, {3, 70}, dtype::bf16, dtype::f32, content::integers);
  call.args.d_weights[0] = {};
  call.args.d_bias[1] = {};
  grouped_gemm_wgrad(call.args, cpu_stream());
  std::vector<double> const expected = call.results();
  for (std::string const& name : takers(call.args)) {
    call.poison();
    call.args.implementation = name;
    grouped_gemm_wgrad(call.args, where());
    EXPECT_EQ(difference(call.results(), expected), "") << name;
  }
}

}  // namespace
}  // namespace moe64
