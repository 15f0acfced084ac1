// A scale may be negative: nothing forbids it, and a product has the sign of both.
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

namespace moe64 {
namespace {

using test::target;
using test::test_tensor;

TEST(dequantize, negative_scales_turn_the_sign) {
  for (dtype const code : {dtype::e4m3, dtype::e5m2, dtype::int8}) {
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
      test_tensor values(code, {3, 256}), scales(dtype::f32, {3, 1});
      values.fill([](index_t r, index_t c, index_t) {
        return static_cast<double>((c % 15) - 7) * (r == 1 ? -1.0 : 1.0);
      });
      scales.fill([](index_t r, index_t, index_t) { return r == 2 ? 0.5 : -0.5; });
      test_tensor const out(type, {3, 256});
      dequantize_args const args{quantized_view::scaled(values, scales, granularity::row()), out};
      test::for_each_implementation(args, [&](dequantize_args const& call) {
        dequantize(call, target());
        for (index_t r = 0; r < 3; ++r) {
          for (index_t c = 0; c < 256; ++c) {
            ASSERT_EQ(out.get(r, c), values.get(r, c) * scales.get(r, 0)) << r << "," << c;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace moe64
