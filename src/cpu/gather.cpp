#include "cpu/permute/gather.hpp"

#include "cpu/quantize/rows.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/widths.hpp"

#include <algorithm>
#include <cstring>

namespace moe64::cpu {

MOE64_DECLARE_WIDTHS(gather_args, gather_simd)

bool has_byte_rows(tensor_view const& matrix) { return matrix.stride[1] == 1; }

byte_row bytes_of_row(tensor_view const& matrix, index_t i) {
  index_t const size = bits(matrix.type);
  // A packed row begins at a whole byte.
  auto* const data = static_cast<std::uint8_t*>(matrix.data) + offset_of(matrix, i) * size / 8;
  return {data, ceil_div(matrix.extent[1] * size, 8)};
}

namespace {

template <class Word>
void copy_words(tensor_view const& from, index_t i, tensor_view const& to, index_t j) {
  auto const* const source = static_cast<Word const*>(from.data) + offset_of(from, i);
  auto* const target = static_cast<Word*>(to.data) + offset_of(to, j);
  for (index_t c = 0; c < to.extent[1]; ++c) target[c * to.stride[1]] = source[c * from.stride[1]];
}

}  // namespace

void copy_row(tensor_view const& from, index_t i, tensor_view const& to, index_t j) {
  if (has_byte_rows(from) && has_byte_rows(to)) {
    byte_row const target = bytes_of_row(to, j);
    if (target.bytes == 0) return;
    std::memcpy(target.data, bytes_of_row(from, i).data, static_cast<std::size_t>(target.bytes));
    return;
  }
  switch (bits(from.type)) {
    case 8:
      return copy_words<std::uint8_t>(from, i, to, j);
    case 16:
      return copy_words<std::uint16_t>(from, i, to, j);
    case 32:
      return copy_words<std::uint32_t>(from, i, to, j);
    default:
      return copy_words<std::uint64_t>(from, i, to, j);
  }
}

namespace {

void copy_weighted(tensor_view const& from, index_t i, float weight, tensor_view const& to,
                   index_t j) {
  float run[run_length];
  for (index_t col = 0; col < to.extent[1]; col += run_length) {
    index_t const count = std::min(run_length, to.extent[1] - col);
    load_row(row_of(from, i), col, count, run);
    for (index_t c = 0; c < count; ++c) run[c] *= weight;
    store_row(row_of(to, j), col, count, run);
  }
}

/// Row `row` of a gather that quantises: what copy_row or copy_weighted would write, as codes.
void quantize_gathered(gather_args const& args, index_t token, float weight, index_t row) {
  auto const load = [&](index_t col, index_t count, float* run) {
    load_row(row_of(args.x, token), col, count, run);
    if (!args.weighted) return;
    for (index_t c = 0; c < count; ++c) run[c] *= weight;
    round_row(args.x.type, count, run);
  };
  quantize_row({args.rows, args.row_scales, args.quantized}, row, load);
}

void gather_reference(gather_args const& args, stream where) {
  routing_plan const& plan = args.plan;
  auto const row_to_slot = as<std::int64_t, 1>(plan.row_to_slot);
  auto const slot_weight = as<float, 1>(plan.slot_weight);
  index_t const rows = count_rows("gather", plan.live_rows(), plan.slots());
  index_t const row_bytes = args.x.extent[1] * bits(args.x.type) / 4;
  parallel_ranges(where, rows, row_bytes, [&](index_t begin, index_t end) {
    for (index_t row = begin; row < end; ++row) {
      index_t const slot = row_to_slot(row);
      index_t const token = slot / plan.top_k;
      if (args.quantized.kind != scale_kind::none) {
        quantize_gathered(args, token, slot_weight(slot), row);
      } else if (args.weighted) {
        copy_weighted(args.x, token, slot_weight(slot), args.rows, row);
      } else {
        copy_row(args.x, token, args.rows, row);
      }
      if (args.scales.present()) copy_row(args.scales, token, args.row_scales, row);
    }
  });
}

constexpr implementation<gather_args> gatherers[] = {
    MOE64_WIDTHS(gather_args, gather_simd, any_call<gather_args>),
    {"reference", any_call<gather_args>, gather_reference},
};

}  // namespace

implementation_list<gather_args> gather_list() { return gatherers; }

}  // namespace moe64::cpu
