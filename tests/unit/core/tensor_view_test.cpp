#include "core/arena.hpp"
#include "core/view.hpp"
#include "moe64/tensor.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace moe64 {
namespace {

using test::test_tensor;
using testing::ElementsAre;

constexpr index_t most = std::numeric_limits<index_t>::max();

tensor_view absent_memory(dtype type, std::initializer_list<index_t> extents) {
  return tensor_view::contiguous(nullptr, type, extents);
}

TEST(tensor_view, contiguous_is_row_major) {
  float data[24] = {};
  tensor_view const t = tensor_view::contiguous(data, dtype::f32, {2, 3, 4}, device::cuda(3));
  EXPECT_EQ(t.data, data);
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.device, device::cuda(3));
  EXPECT_THAT(t.extent, ElementsAre(2, 3, 4));
  EXPECT_THAT(t.stride, ElementsAre(12, 4, 1));
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(t.span(), 24);
  EXPECT_EQ(t.span_bytes(), 96);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_TRUE(t.present());
  EXPECT_FALSE(tensor_view{}.present());
  EXPECT_EQ(tensor_view{}.size(), 0);
  EXPECT_EQ(tensor_view{}.span(), 0);
}

TEST(tensor_view, packed_rows_start_at_whole_bytes) {
  tensor_view const t = absent_memory(dtype::fp4, {2, 3, 5});
  EXPECT_THAT(t.stride, ElementsAre(18, 6, 1));
  EXPECT_EQ(t.size(), 30);
  EXPECT_EQ(t.span(), 18 + 12 + 5);
  EXPECT_EQ(t.span_bytes(), 18);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(to_string(t), "[2, 3, 5] fp4 cpu");
  EXPECT_EQ(absent_memory(dtype::int4, {7}).span_bytes(), 4);
}

TEST(tensor_view, empty_arrays_are_present_and_take_no_memory) {
  tensor_view const t = absent_memory(dtype::bf16, {4, 0, 7});
  EXPECT_TRUE(t.present());
  EXPECT_EQ(t.size(), 0);
  EXPECT_EQ(t.span(), 0);
  EXPECT_EQ(t.span_bytes(), 0);
  EXPECT_TRUE(t.is_contiguous());
}

TEST(tensor_view, extents_that_do_not_fit_are_refused_without_touching_memory) {
  EXPECT_MOE64_ERROR(absent_memory(dtype::f32, {index_t{1} << 31, index_t{1} << 32}),
                     errc::size_overflow);
  EXPECT_MOE64_ERROR(absent_memory(dtype::e4m3, {most, 2}), errc::size_overflow);
  EXPECT_MOE64_ERROR(absent_memory(dtype::f32, {most}), errc::size_overflow);   // its bytes
  EXPECT_MOE64_ERROR(absent_memory(dtype::int4, {most}), errc::size_overflow);  // rounded up
  EXPECT_MOE64_ERROR(
      absent_memory(dtype::e4m3, {index_t{1} << 21, index_t{1} << 21, index_t{1} << 21}),
      errc::size_overflow);
  // Bits are counted, so an eighth of the range is left.
  EXPECT_EQ(absent_memory(dtype::uint8, {index_t{1} << 40, 1 << 19}).span_bytes(),
            index_t{1} << 59);
  EXPECT_EQ(absent_memory(dtype::f32, {index_t{1} << 31, 4}).span_bytes(), index_t{1} << 35);
  EXPECT_MOE64_ERROR(absent_memory(dtype::f32, {3, -1}), errc::invalid_argument, "-1");
  EXPECT_MOE64_ERROR(absent_memory(dtype::f32, {1, 1, 1, 1}), errc::invalid_argument, "4");
  EXPECT_MOE64_ERROR(absent_memory(dtype::f32, {}), errc::invalid_argument, "0");
}

TEST(tensor_view, size_and_span_of_strided_views_are_checked) {
  tensor_view t = absent_memory(dtype::f32, {2, 2});
  t.extent[0] = t.extent[1] = index_t{1} << 32;
  EXPECT_MOE64_ERROR(t.size(), errc::size_overflow);
  t.extent[0] = 3;
  t.extent[1] = 2;
  t.stride[0] = most / 2 + 1;
  EXPECT_MOE64_ERROR(t.span(), errc::size_overflow);
  t.stride[0] = most / 2;
  t.stride[1] = 0;
  EXPECT_EQ(t.span(), most - 1 + 1);
  EXPECT_MOE64_ERROR(t.span_bytes(), errc::size_overflow);
}

TEST(tensor_view, span_counts_what_strides_reach) {
  tensor_view t = absent_memory(dtype::f16, {3, 5});
  t.stride[0] = 100;
  t.stride[1] = 2;
  EXPECT_EQ(t.span(), 200 + 8 + 1);
  EXPECT_EQ(t.span_bytes(), 418);
  EXPECT_FALSE(t.is_contiguous());
  t.stride[0] = 0;
  EXPECT_EQ(t.span(), 9);
}

TEST(tensor_view, slice) {
  test_tensor memory(dtype::int32, {4, 5});
  memory.fill([](index_t i, index_t j, index_t) { return static_cast<double>(10 * i + j); });
  tensor_view const part = memory.view().slice(0, 1, 3).slice(1, 2, 5);
  EXPECT_THAT(part.extent, ElementsAre(2, 3, 0));
  EXPECT_EQ((as<std::int32_t, 2>(part)(0, 0)), 12);
  EXPECT_EQ((as<std::int32_t, 2>(part)(1, 2)), 24);
  EXPECT_EQ(memory.view().slice(0, 4, 4).size(), 0);
  EXPECT_MOE64_ERROR(memory.view().slice(0, 2, 5), errc::invalid_argument, "[slice]", "[2, 5)");
  EXPECT_MOE64_ERROR(memory.view().slice(0, -1, 2), errc::invalid_argument);
  EXPECT_MOE64_ERROR(memory.view().slice(0, 3, 2), errc::invalid_argument);
  EXPECT_MOE64_ERROR(memory.view().slice(2, 0, 0), errc::invalid_argument, "dimension 2");
  EXPECT_MOE64_ERROR(memory.view().slice(-1, 0, 0), errc::invalid_argument);
  EXPECT_MOE64_ERROR(tensor_view{}.slice(0, 0, 0), errc::invalid_argument, "absent");
}

TEST(tensor_view, every) {
  test_tensor memory(dtype::int64, {7, 2});
  memory.fill([](index_t i, index_t j, index_t) { return static_cast<double>(10 * i + j); });
  tensor_view const odd = memory.view().every(0, 1, 2);
  EXPECT_THAT(odd.extent, ElementsAre(3, 2, 0));
  EXPECT_EQ((as<std::int64_t, 2>(odd)(2, 1)), 51);
  EXPECT_EQ(memory.view().every(0, 0, 3).extent[0], 3);
  EXPECT_EQ(memory.view().every(0, 7, 3).extent[0], 0);
  EXPECT_MOE64_ERROR(memory.view().every(0, 0, 0), errc::invalid_argument, "step 0");
  EXPECT_MOE64_ERROR(memory.view().every(0, 8, 1), errc::invalid_argument);
  EXPECT_MOE64_ERROR(memory.view().every(0, 0, most), errc::size_overflow);
}

TEST(tensor_view, packed_types_are_cut_at_whole_bytes_only) {
  std::uint8_t data[8] = {};
  tensor_view const t = tensor_view::contiguous(data, dtype::int4, {2, 8});
  EXPECT_EQ(t.slice(1, 2, 5).data, data + 1);
  EXPECT_EQ(t.slice(0, 1, 2).data, data + 4);
  EXPECT_MOE64_ERROR(t.slice(1, 1, 5), errc::invalid_argument, "whole byte");
  EXPECT_MOE64_ERROR(t.every(1, 1, 2), errc::invalid_argument, "whole byte");
}

TEST(tensor_view, transposed) {
  test_tensor memory(dtype::int32, {2, 3, 4});
  memory.fill(
      [](index_t i, index_t j, index_t k) { return static_cast<double>(100 * i + 10 * j + k); });
  tensor_view const t = memory.view().transposed();
  EXPECT_THAT(t.extent, ElementsAre(2, 4, 3));
  EXPECT_EQ((as<std::int32_t, 3>(t)(1, 3, 2)), 123);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(t.transposed().stride[1], 4);
  EXPECT_MOE64_ERROR(absent_memory(dtype::f32, {4}).transposed(), errc::invalid_argument);
}

TEST(tensor_view, as_matrix_folds_leading_dimensions) {
  tensor_view const t = absent_memory(dtype::f32, {2, 3, 4});
  EXPECT_THAT(t.as_matrix().extent, ElementsAre(6, 4, 0));
  EXPECT_THAT(t.as_matrix().stride, ElementsAre(4, 1, 0));
  EXPECT_EQ(t.as_matrix().rank, 2);
  EXPECT_THAT(absent_memory(dtype::f32, {4}).as_matrix().extent, ElementsAre(1, 4, 0));
  EXPECT_EQ(t.slice(2, 0, 3).as_matrix().stride[0], 4);  // gaps between rows are one stride
  EXPECT_MOE64_ERROR(t.slice(1, 0, 2).as_matrix(), errc::shape_mismatch, "[as_matrix]",
                     "[2, 2, 4]");
  EXPECT_THAT(t.slice(0, 1, 2).slice(1, 0, 2).as_matrix().extent, ElementsAre(2, 4, 0));
  EXPECT_MOE64_ERROR(tensor_view{}.as_matrix(), errc::invalid_argument);
  tensor_view huge = t;
  huge.extent[0] = huge.extent[1] = index_t{1} << 32;
  huge.stride[0] = huge.stride[1] = 0;
  EXPECT_MOE64_ERROR(huge.as_matrix(), errc::size_overflow);
}

TEST(tensor_view, as_stack) {
  tensor_view const t = absent_memory(dtype::f32, {3, 4});
  EXPECT_THAT(t.as_stack().extent, ElementsAre(1, 3, 4));
  EXPECT_EQ(t.as_stack().as_stack().rank, 3);
  EXPECT_MOE64_ERROR(absent_memory(dtype::f32, {3}).as_stack(), errc::shape_mismatch);
}

TEST(tensor_view, prints_what_is_unusual) {
  tensor_view t = absent_memory(dtype::e4m3, {64, 3072, 2048});
  EXPECT_EQ(to_string(t), "[64, 3072, 2048] e4m3 cpu");
  t.stride[1] = 4096;
  EXPECT_THAT(to_string(t), testing::HasSubstr("strides"));
  EXPECT_EQ(to_string(tensor_view{}), "(absent)");
  EXPECT_EQ(to_string(device::cuda(7)), "cuda:7");
}

TEST(view, addresses_past_32_bits_are_exact) {
  // Nothing is read: only addresses are formed.
  auto* const base = reinterpret_cast<float*>(std::uintptr_t{1} << 40);
  tensor_view const t =
      tensor_view::contiguous(base, dtype::f32, {3, index_t{1} << 20, index_t{1} << 12});
  auto const& typed = as<float, 3>(t);
  index_t const row = (index_t{1} << 20) - 1;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&typed(2, row, 4095)),
            (std::uintptr_t{1} << 40) + 4 * ((std::uintptr_t{3} << 32) - 1));
  EXPECT_EQ(offset_of(t, 2, row, 4095), (index_t{3} << 32) - 1);
  EXPECT_EQ(row_of(t, 2, row).offset, (index_t{3} << 32) - 4096);
  EXPECT_MOE64_ERROR((as<std::int64_t, 3>(t)), errc::internal, "int64");
  EXPECT_MOE64_ERROR((as<float, 2>(t)), errc::internal, "rank 2");
}

TEST(arena, a_query_and_its_run_agree_to_the_byte) {
  auto const cut = [](arena& memory) {
    static_cast<void>(memory.take(dtype::e4m3, {3}));
    static_cast<void>(memory.take(dtype::f32, {5, 2}));
    return memory.take(dtype::int4, {3, 3});
  };
  arena measure{device::cpu()};
  static_cast<void>(cut(measure));
  EXPECT_EQ(measure.bytes(), 64 + 64 + 6);
  test_tensor const memory = test::make_workspace(measure.bytes());
  arena real{memory.as_workspace(), device::cpu()};
  tensor_view const last = cut(real);
  EXPECT_EQ(real.bytes(), measure.bytes());
  EXPECT_EQ(last.data, static_cast<char*>(memory.view().data) + 128);
  EXPECT_MOE64_ERROR(measure.take(dtype::f32, {most}), errc::size_overflow);
}

TEST(arena, workspaces_are_checked) {
  test_tensor const memory = test::make_workspace(128);
  workspace w = memory.as_workspace();
  EXPECT_NO_THROW(check_workspace("op", "arg", w, 128, device::cpu()));
  EXPECT_NO_THROW(check_workspace("op", "arg", {}, 0, device::cpu()));
  EXPECT_MOE64_ERROR(check_workspace("op", "arg", w, 129, device::cpu()), errc::workspace_too_small,
                     "[op] arg", "128", "129");
  EXPECT_MOE64_ERROR(check_workspace("op", "arg", w, 1, device::cuda(0)), errc::device_mismatch,
                     "cuda:0");
  w.data = static_cast<char*>(w.data) + 8;
  EXPECT_MOE64_ERROR(check_workspace("op", "arg", w, 8, device::cpu()), errc::workspace_too_small,
                     "aligned");
  w.data = nullptr;
  EXPECT_MOE64_ERROR(check_workspace("op", "arg", w, 8, device::cpu()), errc::workspace_too_small);
}

}  // namespace
}  // namespace moe64
