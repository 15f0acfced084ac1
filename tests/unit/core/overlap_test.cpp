#include "ops/overlap.hpp"

#include "moe64/quant.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace {

using namespace moe64;

std::vector<unsigned char> memory(1 << 16);

/// The bytes of every element, one by one.
std::set<unsigned char*> bytes_of_elements(tensor_view const& t) {
  std::set<unsigned char*> bytes;
  auto const extent = [&](int d) { return d < t.rank ? t.extent[d] : index_t{1}; };
  for (index_t i = 0; i < extent(0); ++i) {
    for (index_t j = 0; j < extent(1); ++j) {
      for (index_t k = 0; k < extent(2); ++k) {
        index_t const bit = (i * t.stride[0] + j * t.stride[1] + k * t.stride[2]) * bits(t.type);
        for (index_t b = bit / 8; b <= (bit + bits(t.type) - 1) / 8; ++b) {
          bytes.insert(static_cast<unsigned char*>(t.data) + b);
        }
      }
    }
  }
  return bytes;
}

bool share_a_byte(tensor_view const& left, tensor_view const& right) {
  auto const other = bytes_of_elements(right);
  for (auto* byte : bytes_of_elements(left)) {
    if (other.contains(byte)) return true;
  }
  return false;
}

TEST(overlap, parts_of_one_tensor_are_told_apart) {
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::e4m3}) {
    auto const whole = tensor_view::contiguous(memory.data(), type, {3, 10, 7});
    for (auto const layout : {gate_up_layout::concatenated, gate_up_layout::interleaved}) {
      auto const [gate, up] = split_gate_up(whole, layout);
      EXPECT_FALSE(overlaps(gate, up));
      EXPECT_FALSE(overlaps(up, gate));
      EXPECT_TRUE(overlaps(gate, gate));
      EXPECT_TRUE(overlaps(gate, whole));
      EXPECT_FALSE(overlaps(gate.transposed(), up.transposed()));
    }
    auto const matrix = tensor_view::contiguous(memory.data(), type, {6, 10});
    EXPECT_FALSE(overlaps(matrix.slice(1, 0, 4), matrix.slice(1, 4, 10)));
    EXPECT_TRUE(overlaps(matrix.slice(1, 0, 5), matrix.slice(1, 4, 10)));
    EXPECT_FALSE(overlaps(matrix.every(1, 0, 2), matrix.every(1, 1, 2)));
    EXPECT_FALSE(overlaps(matrix.slice(0, 0, 3), matrix.slice(0, 3, 6)));
  }
}

TEST(overlap, columns_of_different_types_in_one_pitch) {
  auto codes = tensor_view::contiguous(memory.data(), dtype::e4m3, {5, 64}).slice(1, 0, 56);
  auto scales = tensor_view::contiguous(memory.data(), dtype::f32, {5, 16}).slice(1, 14, 16);
  EXPECT_FALSE(overlaps(codes, scales));
  EXPECT_TRUE(overlaps(codes, tensor_view::contiguous(memory.data(), dtype::f32, {5, 16})));
}

/// Never a missed overlap; among views of equal strides never a false one either.
TEST(overlap, agrees_with_listing_every_byte) {
  unsigned seed = 1;
  auto const draw = [&](index_t low, index_t high) {
    seed = seed * 1664525U + 1013904223U;
    return low + static_cast<index_t>(seed >> 8) % (high - low + 1);
  };
  int met = 0;
  int apart = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    tensor_view left;
    left.rank = static_cast<std::uint8_t>(draw(1, 3));
    left.type = draw(0, 1) == 0 ? dtype::bf16 : dtype::e4m3;
    for (int d = 0; d < left.rank; ++d) {
      left.extent[d] = draw(1, 4);
      left.stride[d] = draw(1, 20);
    }
    tensor_view right = left;
    for (int d = 0; d < left.rank; ++d) right.extent[d] = draw(1, 4);
    bool const same_strides = draw(0, 3) != 0;
    if (!same_strides) right.stride[0] = draw(1, 20);
    left.data = memory.data() + 1024;
    right.data = memory.data() + 1024 + 2 * draw(-40, 40);
    bool const truth = share_a_byte(left, right);
    if (truth) {
      EXPECT_TRUE(overlaps(left, right)) << to_string(left) << " and " << to_string(right);
    } else if (same_strides) {
      EXPECT_FALSE(overlaps(left, right)) << to_string(left) << " and " << to_string(right);
    }
    (truth ? met : apart)++;
  }
  EXPECT_GT(met, 400);
  EXPECT_GT(apart, 400);
}

TEST(overlap, a_view_may_overlap_itself) {
  auto const matrix = tensor_view::contiguous(memory.data(), dtype::f32, {4, 8});
  EXPECT_FALSE(overlaps_itself(matrix));
  EXPECT_FALSE(overlaps_itself(matrix.transposed()));
  tensor_view broadcast = matrix;
  broadcast.stride[0] = 0;
  EXPECT_TRUE(overlaps_itself(broadcast));
  tensor_view sliding = matrix;
  sliding.stride[0] = 7;
  EXPECT_TRUE(overlaps_itself(sliding));
  sliding.extent[0] = 1;
  EXPECT_FALSE(overlaps_itself(sliding));
}

}  // namespace
