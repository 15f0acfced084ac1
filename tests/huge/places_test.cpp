// Experts gigabytes apart: places past 2^31 and 2^32, and distances past 2^32 bytes.
#include "support/gemm_call.hpp"
#include "support/huge_memory.hpp"
#include "support/implementations.hpp"

#include <cstring>

namespace moe64::test {
namespace {

constexpr index_t gigabyte = index_t{1} << 30;

/// The matrices of an array at these addresses of `memory`, which is zero elsewhere.
struct far_apart {
  tensor_view stack;
  std::vector<index_t> table;

  far_apart(tensor_view const& of, address_range const& memory, std::vector<index_t> const& at,
            index_t step) {
    std::vector<void const*> matrices;
    for (index_t e = 0; e < of.extent[0]; ++e) {
      tensor_view const matrix = of.slice(0, e, e + 1);
      auto* const to = memory.data() + at[static_cast<std::size_t>(e)];
      std::memcpy(to, matrix.data, static_cast<std::size_t>(matrix.span_bytes()));
      matrices.push_back(to);
    }
    tensor_view const like =
        tensor_view::contiguous(nullptr, of.type, {of.extent[1], of.extent[2]});
    table.resize(matrices.size());
    stack = place_matrices(matrices, like, step, table);
  }
  [[nodiscard]] tensor_view places() const {
    return tensor_view::contiguous(table.data(), dtype::int64, {std::ssize(table)});
  }
};

void expect_same_bits(weight_spec const& spec, index_t step) {
  on_huge_memory([&] {
    gemm_call call(spec, {1, 48, 64}, {5, 20, 0, 3}, dtype::bf16, content::random, {});
    std::vector<index_t> const at{9 * gigabyte, 0, 2 * gigabyte, 4 * gigabyte + 64};
    address_range const values(10 * gigabyte), scales(10 * gigabyte);
    quantized_view const& q = call.args.weights.part(0);
    far_apart const far_values(q.values(), values, at, step);
    EXPECT_EQ(far_values.table[0] * step * bits(spec.type) / 8, 9 * gigabyte);
    weight_stack stack;
    std::vector<far_apart> far_scales;
    if (q.is_plain()) {
      stack =
          weight_stack::single(quantized_view::plain(far_values.stack, {far_values.places(), {}}));
    } else {
      far_scales.emplace_back(q.scales(), scales, at, 1);
      stack = weight_stack::single(
          quantized_view::scaled(far_values.stack, far_scales[0].stack, q.layout(), {},
                                 {far_values.places(), far_scales[0].places()}));
    }
    for_each_implementation(call.args, [&](grouped_gemm_args args) {
      grouped_gemm(args, target());
      std::vector<double> const expected = call.y.numbers();
      call.y.poison();
      args.weights = stack;
      grouped_gemm(args, target());
      EXPECT_EQ(difference(call.y.numbers(), expected), "");
    });
  });
}

TEST(huge_places, of_bytes_past_2_to_the_33) {
  expect_same_bits({dtype::e4m3, granularity::row()}, 1);
}
TEST(huge_places, of_numbers_past_2_to_the_32) { expect_same_bits({dtype::bf16}, 1); }
TEST(huge_places, of_steps_of_64_numbers) {
  expect_same_bits({dtype::e4m3, granularity::row()}, 64);
  expect_same_bits({dtype::int4, granularity::group(32)}, 64);
}

}  // namespace
}  // namespace moe64::test
