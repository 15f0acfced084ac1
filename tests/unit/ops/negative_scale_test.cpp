// A scale may be negative: nothing forbids it, and a product has the sign of both.
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <string>

namespace moe64 {
namespace {

using test::test_tensor;

constexpr index_t rows = 48;
constexpr index_t cols = 256;

/// Codes of both signs under scales of both signs.
struct negative_scales {
  granularity layout;
  test_tensor values, scales;

  negative_scales(dtype code, granularity const& of)
      : layout(of),
        values(code, {1, rows, cols}),
        scales(dtype::f32, {1, of.grid_rows(rows), of.grid_cols(cols)}) {
    values.fill([](index_t, index_t r, index_t c) {
      return static_cast<double>((c % 15) - 7) * (r % 2 == 1 ? -1.0 : 1.0);
    });
    scales.fill([](index_t, index_t r, index_t c) { return (r + c) % 3 == 2 ? 0.5 : -0.5; });
  }
  [[nodiscard]] quantized_view view() const {
    return quantized_view::scaled(values, scales, layout);
  }
  [[nodiscard]] double number(index_t r, index_t c) const {
    return values.get(0, r, c) *
           scales.get(0, r / layout.rows_per_scale(rows), c / layout.cols_per_scale(cols));
  }
};

/// body(stored) for codes of one byte and scales of a row, a group and a block.
template <class Body>
void for_each_format(Body const& body) {
  for (dtype const code : {dtype::e4m3, dtype::e5m2, dtype::int8}) {
    for (granularity const& layout :
         {granularity::row(), granularity::group(64), granularity::block(16, 128)}) {
      SCOPED_TRACE(std::string(name(code)) + " " + to_string(layout));
      body(negative_scales(code, layout));
    }
  }
}

TEST(dequantize, negative_scales_turn_the_sign) {
  for_each_format([](negative_scales const& stored) {
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
      test_tensor const out(type, {rows, cols});
      test::for_each_implementation(dequantize_args{stored.view(), out},
                                    [&](dequantize_args const& call) {
                                      dequantize(call, test::target());
                                      for (index_t r = 0; r < rows; ++r) {
                                        for (index_t c = 0; c < cols; ++c)
                                          ASSERT_EQ(out.get(r, c), stored.number(r, c));
                                      }
                                    });
    }
  });
}

TEST(grouped_gemm, negative_scales_turn_the_sign) {
  for_each_format([](negative_scales const& stored) {
    for (bool const transpose : {false, true}) {
      for (index_t const tokens : {1, 5, 40}) {
        index_t const depth = transpose ? rows : cols;
        index_t const outs = transpose ? cols : rows;
        test_tensor x(dtype::bf16, {tokens, depth});
        x.fill_integers(3, -4, 4);
        test_tensor const y(dtype::f32, {tokens, outs}), begin = test::make_expert_begin({tokens});
        grouped_gemm_args args;
        args.x = quantized_view::plain(x);
        args.weights = weight_stack::single(stored.view());
        args.expert_begin = begin;
        args.transpose = transpose;
        args.y = y;
        test::for_each_implementation(args, [&](grouped_gemm_args const& call) {
          grouped_gemm(call, test::target());
          for (index_t i = 0; i < tokens; ++i) {
            for (index_t o = 0; o < outs; ++o) {
              double sum = 0.0;
              for (index_t d = 0; d < depth; ++d) {
                sum += x.get(i, d) * (transpose ? stored.number(d, o) : stored.number(o, d));
              }
              ASSERT_EQ(y.get(i, o), sum) << i << ", " << o;
            }
          }
        });
      }
    }
  });
}

}  // namespace
}  // namespace moe64
