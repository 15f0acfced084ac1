#include "checkpoint/synth/fault.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"
#include "core/float8.hpp"

#include <algorithm>
#include <cstring>

namespace moe64::checkpoint {
namespace {

using kind = synth_fault_kind;

constexpr synth_fault_row rows[] = {
    {kind::dropped_scale, "dropped-scale", "the scale of one matrix is not there", false},
    {kind::orphan_scale, "orphan-scale", "one weight is not there, but its scale is", false},
    {kind::duplicate_scale, "duplicate-scale", "one weight has two scales", false},
    {kind::missing_expert, "missing-expert", "one expert in the middle of a layer is not there",
     false},
    {kind::wrong_block_size, "wrong-block-size", "the config states another block than was used",
     false},
    {kind::wrong_scale_shape, "wrong-scale-shape", "one scale has a number too many", false},
    {kind::missing_declaration, "missing-declaration",
     "the config says nothing about the quantisation", false},
    {kind::duplicate_tensor, "duplicate-tensor", "one tensor is in two files", false},
    {kind::wrong_index, "wrong-index", "the index names the wrong file for one tensor", false},
    {kind::missing_shard, "missing-shard", "the last file is not there", false},
    {kind::truncated_shard, "truncated-shard", "the last file ends early", false},
    {kind::nan_code, "nan-code", "one code is NaN", true},
    {kind::zero_scale, "zero-scale", "one scale is zero, and its codes are not", true},
    {kind::nan_scale, "nan-scale", "one scale is NaN", true},
    {kind::negative_scale, "negative-scale", "one scale is negative", true},
    {kind::reciprocal_scale, "reciprocal-scale",
     "every scale is the reciprocal of what it should be", true},
    {kind::uneven_scale, "uneven-scale", "one scale is no power of two where all should be", true},
    {kind::inverted_layer, "inverted-layer", "the scales of one layer are reciprocals", true},
    {kind::inverted_projection, "inverted-projection",
     "the scales of up in every layer are reciprocals", true},
    {kind::inverted_matrix, "inverted-matrix", "the scales of one expert's up are reciprocals",
     true},
    {kind::scaled_layer, "scaled-layer", "the scales of one layer are 448 times too large", true},
    {kind::unit_scale, "unit-scale", "every scale is 1", true},
    {kind::zero_hole, "zero-hole", "up to 32 KiB in the middle of a weight are zero bytes", true},
    {kind::zero_matrix, "zero-matrix", "every code of one matrix is zero", true},
    {kind::missing_embeddings, "missing-embeddings", "the token embeddings are not there", true},
    {kind::missing_router, "missing-router", "the router of one layer is not there", true},
    {kind::missing_attention, "missing-attention",
     "the output projection of one layer's attention is not there", true},
    {kind::missing_shared_expert, "missing-shared-expert",
     "the down projection of one layer's shared expert is not there", true},
};

template <class Number>
Number load(std::byte const* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}
template <class Number>
void store(std::byte* into, Number number) {
  std::memcpy(into, &number, sizeof number);
}

/// change(number) of the first scale, or of all.
template <class Change>
void change_scales(file_dtype type, std::span<std::byte> bytes, bool all, Change const& change) {
  std::size_t const size = static_cast<std::size_t>(bits(type) / 8);
  for (std::size_t at = 0; at < bytes.size() && (all || at == 0); at += size) {
    std::byte* const place = bytes.data() + at;
    if (type == file_dtype::f32) {
      store(place, change(load<float>(place)));
    } else if (type == file_dtype::bf16) {
      store(place, encode_bf16(change(decode_bf16(load<std::uint16_t>(place)))));
    } else if (type == file_dtype::f8_e4m3) {
      auto const code = load<std::uint8_t>(place);
      store(place, static_cast<std::uint8_t>(
                       encode_float<e4m3_format>(change(decode_float<e4m3_format>(code)))));
    } else {
      store(place, encode_e8m0_up(change(decode_e8m0(load<std::uint8_t>(place)))));
    }
  }
}

/// Faults of files and names, and those of values that need no scale.
bool fits_plain_weights(kind fault) {
  return fault == kind::truncated_shard || fault == kind::missing_shard ||
         fault == kind::wrong_index || fault == kind::duplicate_tensor ||
         fault == kind::zero_hole || fault == kind::zero_matrix || takes_away(fault);
}

index_t slice_bytes(module_format const& format) {
  index_t const element_bits =
      format.values == value_codec::plain || format.values == value_codec::e4m3
          ? bits(format.value_type)
          : 4;
  return checked_mul(format.rows, format.cols) * element_bits / 8;
}

bool is_exponent(file_dtype type) { return type == file_dtype::u8 || type == file_dtype::f8_e8m0; }

}  // namespace

std::span<synth_fault_row const> synth_fault_table() noexcept { return rows; }

synth_fault_reach reach_of(synth_fault_kind fault) noexcept {
  switch (fault) {
    case kind::reciprocal_scale:
    case kind::unit_scale:
      return synth_fault_reach::all;
    case kind::inverted_layer:
    case kind::scaled_layer:
      return synth_fault_reach::layer;
    case kind::inverted_projection:
      return synth_fault_reach::projection;
    default:
      return synth_fault_reach::one;
  }
}

bool takes_away(synth_fault_kind fault) noexcept {
  return fault >= kind::missing_embeddings && fault <= kind::missing_shared_expert;
}

synth_fault_kind synth_fault_named(std::string_view name) {
  if (name.empty()) return kind::none;
  std::string names;
  for (synth_fault_row const& row : rows) {
    if (row.name == name) return row.kind;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  fail(errc::invalid_argument, "[synth] no fault is called {}; there are: {}", quoted(name, 60),
       names);
}

std::string_view synth_fault_refusal(synth_fault_kind fault, module_format const& format) {
  if (format.row == nullptr && !fits_plain_weights(fault)) return "has no quantised weights";
  switch (fault) {
    case kind::missing_expert:
      return format.stacked ? "stores all experts in one tensor" : "";
    case kind::wrong_block_size:
      return format.row->block == block_rule::declared ? "" : "states no block";
    case kind::missing_declaration:
      return "";
    case kind::zero_hole:
      return slice_bytes(format) < 2 * least_synth_hole ? "has matrices of less than 8 KiB here"
                                                        : "";
    case kind::nan_code:
      return format.values == value_codec::e4m3 ? "" : "has codes that are never NaN";
    case kind::zero_scale:
    case kind::negative_scale:
      return is_exponent(format.scale_type) ? "has exponents as scales" : "";
    case kind::uneven_scale:
      return format.scales == scale_codec::blk_pow2 && format.scale_type == file_dtype::f32
                 ? ""
                 : "states no powers of two in a type that can hold others";
    default:
      return "";
  }
}

void plant_in_values(synth_fault_kind fault, module_format const& format,
                     synth_bytes const& bytes) {
  auto const change = [&](bool all, auto const& changed) {
    change_scales(format.scale_type, bytes.scales, all, changed);
  };
  // where there is a second scale, it is the one that has the room for it
  auto const change_all = [&](auto const& changed) {
    if (bytes.global.empty()) {
      change(true, changed);
    } else {
      change_scales(file_dtype::f32, bytes.global, true, changed);
    }
  };
  switch (fault) {
    case kind::nan_code:
      bytes.values[bytes.values.size() / 2] = std::byte{0x7f};
      break;
    case kind::zero_scale:
      change(false, [](float) { return 0.0F; });
      break;
    case kind::nan_scale:
      change(false, [](float) { return std::numeric_limits<float>::quiet_NaN(); });
      break;
    case kind::negative_scale:
      change(false, [](float scale) { return -scale; });
      break;
    case kind::uneven_scale:
      change(false, [](float scale) { return scale * 1.5F; });
      break;
    case kind::reciprocal_scale:
    case kind::inverted_layer:
    case kind::inverted_projection:
    case kind::inverted_matrix:
      change_all([](float scale) { return 1.0F / scale; });
      break;
    case kind::scaled_layer: {
      bool const divides = format.scales == scale_codec::nv16_div;
      change_all([=](float scale) { return divides ? scale / 448.0F : scale * 448.0F; });
      break;
    }
    case kind::unit_scale:
      change(true, [](float) { return 1.0F; });
      break;
    case kind::zero_hole: {
      std::size_t const hole =
          std::min(static_cast<std::size_t>(synth_hole_bytes), bytes.values.size() / 2);
      std::ranges::fill(bytes.values.subspan(bytes.values.size() / 3 + 33, hole), std::byte{0});
      break;
    }
    case kind::zero_matrix:
      std::ranges::fill(bytes.values,
                        format.values == value_codec::int4x8 ? std::byte{0x88} : std::byte{0});
      break;
    default:
      break;
  }
}

}  // namespace moe64::checkpoint
