// dequantize of matrices that lie anywhere.
#include "moe64/ops.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/places.hpp"
#include "support/weights.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace moe64 {
namespace {

using test::difference;
using test::placed_weights;
using test::target;
using test::test_tensor;
using test::test_weights;

TEST(quantize_places, dequantize_as_one_stack) {
  for (test::weight_spec const& spec : test::every_weight_format()) {
    SCOPED_TRACE(test::to_string(spec));
    for (index_t const cols : {37, 128}) {
      test_weights const weights =
          test::make_weights(spec, 3, 1, 20, cols, test::content::random, 4);
      placed_weights const placed(weights.stack, 5);
      for (dtype const type : {dtype::f32, dtype::bf16}) {
        test_tensor expected(type, {3, 20, cols}), out(type, {3, 20, cols});
        dequantize({.q = weights.stack.part(0), .out = expected}, target());
        test::for_each_implementation(dequantize_args{.q = placed.stack.part(0), .out = out},
                                      [&](dequantize_args const& args) {
                                        out.poison();
                                        dequantize(args, target());
                                        EXPECT_EQ(difference(out.numbers(), expected.numbers()),
                                                  "");
                                      });
      }
    }
  }
}

TEST(quantize_places, that_are_none_are_refused_on_the_cpu) {
  test_weights const weights =
      test::make_weights({dtype::e4m3, granularity::row()}, 3, 1, 4, 8, test::content::random, 4);
  placed_weights placed(weights.stack, 5);
  placed.values_place(0, 1) = -2;
  test_tensor const out(dtype::f32, {3, 4, 8});
  EXPECT_MOE64_ERROR(dequantize({.q = placed.stack.part(0), .out = out}, cpu_stream()),
                     errc::invalid_argument, "[dequantize] q places of expert 1 is -2");
}

}  // namespace
}  // namespace moe64
