#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/load/repack.hpp"
#include "oracle/oracle.hpp"
#include "support/checkpoint_builder.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

using checkpoint::key_schema;
using checkpoint::layer_entry;
using checkpoint::projection_entry;
using checkpoint::scale_codec;
using checkpoint::value_codec;

constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;
constexpr index_t experts = case_extents::experts;

// ---- the library's way: bytes into one stack, looked at through a view --------------------------

struct loaded_part {
  std::vector<std::byte> values, scales;
  std::vector<float> globals;
  quantized_view view;
};

void append(std::vector<std::byte>& into, std::vector<std::byte> const& from, index_t begin,
            index_t count) {
  ASSERT_LE(begin + count, static_cast<index_t>(from.size()));
  into.insert(into.end(), from.begin() + begin, from.begin() + begin + count);
}

void load(checkpoint_builder const& builder, projection_entry const& entry, loaded_part& into) {
  auto const& format = entry.format;
  index_t const value_bytes = value_slice_bytes(format);
  index_t const scale_bytes = scale_slice_bytes(format);
  for (auto const& source : entry.experts) {
    append(into.values, builder.bytes_of(*source.values), source.slice * value_bytes, value_bytes);
    std::vector<std::byte> scales;
    index_t const slice = format.stored_scales.slice == 0 ? 0 : source.slice;
    append(scales, builder.bytes_of(*source.scales), slice * scale_bytes, scale_bytes);
    if (format.expand_scale_rows) {
      std::vector<std::byte> expanded(
          static_cast<std::size_t>(format.scales.slice * bits(format.scale_type) / 8));
      expand_scale_rows(format, scales, expanded);
      scales = expanded;
    }
    into.scales.insert(into.scales.end(), scales.begin(), scales.end());
    if (source.global == nullptr) continue;
    float global = 0;
    std::memcpy(&global, builder.bytes_of(*source.global).data(), sizeof(global));
    into.globals.push_back(global);
  }
  if (format.repack == checkpoint::value_repack::int4_from_offset) {
    checkpoint::int4_from_offset(into.values);
  }
  into.view = make_view(format, {into.values.data(),
                                 into.scales.data(),
                                 into.globals.data(),
                                 static_cast<index_t>(entry.experts.size()),
                                 {}});
}

// ---- the other way: the definitions of the formats, tensor by tensor ----------------------------

double minifloat(std::uint32_t code, int exponent_bits, int mantissa_bits, bool finite_top) {
  std::uint32_t const mantissa = code & ((1U << mantissa_bits) - 1U);
  std::uint32_t const exponent = (code >> mantissa_bits) & ((1U << exponent_bits) - 1U);
  double const sign = ((code >> (mantissa_bits + exponent_bits)) & 1U) != 0 ? -1.0 : 1.0;
  int const bias = (1 << (exponent_bits - 1)) - 1;
  std::uint32_t const all_ones = (1U << exponent_bits) - 1U;
  if (finite_top && exponent == all_ones && mantissa == (1U << mantissa_bits) - 1U) return NAN;
  if (!finite_top && exponent == all_ones) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : NAN;
  }
  double const fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, static_cast<int>(exponent) - bias);
}

class plain_decoder {
 public:
  plain_decoder(checkpoint_builder const& builder, dialect_case const& dialect,
                layer_entry const& layer)
      : builder_(builder), dialect_(dialect), layer_(layer) {}

  double number(projection_kind kind, index_t expert, index_t row, index_t col) {
    kind_ = kind;
    cols_ = kind == projection_kind::down ? inter : hidden;
    rows_ = kind == projection_kind::down ? hidden : inter;
    projection_entry const& entry = kind == projection_kind::down ? layer_.down
                                    : kind == projection_kind::up ? layer_.up
                                                                  : layer_.gate;
    source_ = entry.experts[static_cast<std::size_t>(expert)];
    double const code = value(expert, row, col);
    double const scale = scale_of(expert, row, col);
    // the product of a code and its scale is defined in f32
    if (source_.global == nullptr) return product(code, static_cast<float>(scale));
    float global = 0;
    std::memcpy(&global, bytes(*source_.global).data(), sizeof(global));
    auto const block = static_cast<float>(scale);
    float const whole = dialect_.scales == scale_codec::nv16_div ? block / global : block * global;
    return product(code, whole);
  }

 private:
  static double product(double code, float scale) {
    return static_cast<double>(static_cast<float>(code) * scale);
  }
  std::vector<std::byte> const& bytes(checkpoint::tensor_entry const& tensor) {
    auto& known = bytes_[std::string(tensor.name)];
    if (known.empty()) known = builder_.bytes_of(tensor);
    return known;
  }
  std::uint32_t raw(checkpoint::tensor_entry const& tensor, index_t at, index_t width) {
    std::uint32_t result = 0;
    std::memcpy(&result, bytes(tensor).data() + at * width, static_cast<std::size_t>(width));
    return result;
  }
  std::uint32_t nibble(index_t at) {
    std::uint32_t const byte = raw(*source_.values, at / 2, 1);
    return at % 2 == 0 ? byte & 0xfU : byte >> 4;
  }
  double stored(checkpoint::tensor_entry const& tensor, index_t at) {
    switch (tensor.type) {
      case file_dtype::f32:
        return static_cast<double>(std::bit_cast<float>(raw(tensor, at, 4)));
      case file_dtype::bf16:
        return static_cast<double>(std::bit_cast<float>(raw(tensor, at, 2) << 16));
      case file_dtype::f16:
        return minifloat(raw(tensor, at, 2), 5, 10, false);
      case file_dtype::f8_e4m3:
        return minifloat(raw(tensor, at, 1), 4, 3, true);
      case file_dtype::u8:
      case file_dtype::f8_e8m0: {
        std::uint32_t const exponent = raw(tensor, at, 1);
        return exponent == 255 ? NAN : std::ldexp(1.0, static_cast<int>(exponent) - 127);
      }
      default:
        ADD_FAILURE() << "no number in " << name(tensor.type);
        return 0;
    }
  }

  bool up() const { return kind_ == projection_kind::up; }
  bool down() const { return kind_ == projection_kind::down; }
  /// The row of a stack in which gate and up are together.
  index_t fused_row(index_t row) const {
    if (down()) return row;
    if (dialect_.schema == key_schema::mlp_stack_blocks) return 2 * row + (up() ? 1 : 0);
    return row + (up() ? inter : 0);
  }
  index_t fused_rows() const { return down() ? hidden : 2 * inter; }

  double value(index_t expert, index_t row, index_t col) {
    index_t at = row * cols_ + col;
    switch (dialect_.schema) {
      case key_schema::mlp_stack:
      case key_schema::feed_forward_stack:
        at = (expert * cols_ + col) * fused_rows() + fused_row(row);
        break;
      case key_schema::mlp_stack_blocks:
      case key_schema::block_sparse_moe_stack:
        at = (expert * fused_rows() + fused_row(row)) * cols_ + col;
        break;
      case key_schema::moe_stack:
        at = (expert * rows_ + row) * cols_ + col;
        break;
      default:
        break;
    }
    switch (dialect_.values) {
      case value_codec::e4m3:
        return stored(*source_.values, at);
      case value_codec::fp4x2:
      case value_codec::fp4blk: {
        constexpr double table[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
        std::uint32_t const code = nibble(at);
        return (code & 8U) != 0 ? -table[code & 7U] : table[code & 7U];
      }
      case value_codec::int4x8: {
        std::uint32_t const word = raw(*source_.values, row * (cols_ / 8) + col / 8, 4);
        return static_cast<double>((word >> (4 * (col % 8))) & 0xfU) - 8.0;
      }
      default:
        ADD_FAILURE();
        return 0;
    }
  }

  double scale_of(index_t expert, index_t row, index_t col) {
    auto const& tensor = *source_.scales;
    index_t const block_cols = ceil_div(cols_, 128);
    switch (dialect_.scales) {
      case scale_codec::tensor:
        return stored(tensor, 0);
      case scale_codec::blk:
      case scale_codec::blk_pow2:
      case scale_codec::blk4d:
        if (dialect_.schema == key_schema::mlp_stack) {
          index_t const block_rows = ceil_div(fused_rows(), 128);
          return stored(tensor,
                        (expert * block_cols + col / 128) * block_rows + fused_row(row) / 128);
        }
        if (dialect_.schema == key_schema::moe_stack) {
          return stored(tensor,
                        (expert * ceil_div(rows_, 128) + row / 128) * block_cols + col / 128);
        }
        return stored(tensor, row / 128 * block_cols + col / 128);
      case scale_codec::row:
        if (dialect_.schema == key_schema::block_sparse_moe_stack) {
          return stored(tensor, expert * fused_rows() + fused_row(row));
        }
        return stored(tensor, row);
      case scale_codec::col3d:
        return stored(tensor, expert * fused_rows() + fused_row(row));
      case scale_codec::mx32:
      case scale_codec::grp:
        if (dialect_.schema == key_schema::mlp_stack_blocks) {
          return stored(tensor, (expert * fused_rows() + fused_row(row)) * (cols_ / 32) + col / 32);
        }
        return stored(tensor, row * (cols_ / 32) + col / 32);
      case scale_codec::nv16_mul:
      case scale_codec::nv16_div:
        return stored(tensor, row * (cols_ / 16) + col / 16);
      default:
        ADD_FAILURE();
        return 0;
    }
  }

  checkpoint_builder const& builder_;
  dialect_case const& dialect_;
  layer_entry const& layer_;
  std::map<std::string, std::vector<std::byte>> bytes_;
  checkpoint::expert_source source_;
  projection_kind kind_ = projection_kind::gate;
  index_t rows_ = 0, cols_ = 0;
};

bool same(double left, double right) {
  return (std::isnan(left) && std::isnan(right)) ||
         std::bit_cast<std::uint64_t>(left) == std::bit_cast<std::uint64_t>(right);
}

class every_decoding : public testing::TestWithParam<dialect_case> {};

TEST_P(every_decoding, equals_the_definition_of_the_format_bit_for_bit) {
  dialect_case const& dialect = GetParam();
  checkpoint_builder builder = dialect.build();
  auto const resolved = builder.resolve();
  ASSERT_TRUE(resolved.sound());
  layer_entry const& layer = resolved.layers.front();
  plain_decoder decoder(builder, dialect, layer);
  index_t numbers = 0;
  for (auto const& [kind, entry] :
       {std::pair{projection_kind::gate, &layer.gate}, std::pair{projection_kind::up, &layer.up},
        std::pair{projection_kind::down, &layer.down}}) {
    loaded_part part;
    load(builder, *entry, part);
    for (index_t expert = 0; expert < experts; ++expert) {
      for (index_t row = 0; row < entry->format.rows; ++row) {
        for (index_t col = 0; col < entry->format.cols; col += 1 + (row + col) % 3) {
          double const expected = decoder.number(kind, expert, row, col);
          double const got = oracle::at(part.view, expert, row, col);
          ASSERT_TRUE(same(got, expected)) << name(kind) << " " << expert << " " << row << " "
                                           << col << ": " << got << " is not " << expected;
          numbers += std::isnan(expected) ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(numbers, 10'000);
}

INSTANTIATE_TEST_SUITE_P(table, every_decoding, testing::ValuesIn(dialect_cases()),
                         [](auto const& entry) { return entry.param.id; });

// ---- repacking ----------------------------------------------------------------------------------

TEST(repack, offset_nibbles_become_twos_complement) {
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
  checkpoint::int4_from_offset(codes);
  for (index_t i = 0; i < 512; ++i) {
    auto const byte = static_cast<std::uint32_t>(i / 2);
    auto const nibble = static_cast<double>(i % 2 == 0 ? byte & 0xfU : byte >> 4);
    EXPECT_EQ(oracle::load(codes.data(), dtype::int4, i), nibble - 8.0);
  }
}

TEST(repack, scale_rows_of_a_straddling_block_go_to_both_parts) {
  checkpoint::module_format format;
  format.row = checkpoint::dialect_table().data();
  format.values = value_codec::e4m3;
  format.value_type = file_dtype::f8_e4m3;
  format.scales = scale_codec::blk;
  format.block_rows = format.block_cols = 4;
  format.rows = 12;  // gate rows 0 to 5, up rows 6 to 11: block 1 covers both
  format.cols = 8;
  format.fused = true;
  format.stacked = true;
  auto const up = part_format(format, 1);
  ASSERT_TRUE(up.expand_scale_rows);
  std::vector<float> const stored = {0, 1, 2, 3, 4, 5};
  std::vector<float> expanded(12, -1.0F);
  expand_scale_rows(up, std::as_bytes(std::span(stored)),
                    std::as_writable_bytes(std::span(expanded)));
  EXPECT_EQ(expanded, (std::vector<float>{2, 3, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5}));
  EXPECT_THROW(expand_scale_rows(up, std::as_bytes(std::span(stored)).first(20),
                                 std::as_writable_bytes(std::span(expanded))),
               error);
}

}  // namespace
}  // namespace moe64::test
