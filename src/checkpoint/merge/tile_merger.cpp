#include "checkpoint/merge/tile_merger.hpp"

#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

/// Rows that are done in one go: their numbers stay in the caches.
constexpr index_t rows_at_once = 8;

index_t f32_bytes(index_t rows, index_t cols) {
  return checked_mul(checked_mul(rows, cols), index_t{sizeof(float)});
}

tensor_view f32_matrix(float const* numbers, index_t rows, index_t cols) {
  return tensor_view::contiguous(const_cast<float*>(numbers), dtype::f32, {rows, cols});
}

}  // namespace

void merge_memory::cover(merge_memory const& other) noexcept {
  factors.cover(other.factors);
  deltas = std::max(deltas, other.deltas);
  written = std::max(written, other.written);
}

merge_memory memory_of(delta_region const& region, bool quantised) {
  merge_memory memory;
  memory.factors = memory_of(region);
  memory.deltas =
      f32_bytes(quantised ? region.rows : std::min(rows_at_once, region.rows), region.cols);
  memory.written = f32_bytes(std::min(rows_at_once, region.rows), region.cols);
  return memory;
}

tile_merger::tile_merger(weight_deltas const& deltas, merge_memory const& memory)
    : reader_(deltas, memory.factors),
      memory_(memory),
      deltas_(memory.deltas),
      written_(memory.written) {}

delta_sums tile_merger::widen(delta_region const& region, float* numbers, tensor_view const& out) {
  factor_reader::factors const factors = reader_.read(region, false);
  auto* const deltas = reinterpret_cast<float*>(deltas_.first(memory_.deltas).data());
  auto* const written = reinterpret_cast<float*>(written_.first(memory_.written).data());
  delta_sums sums;
  for (index_t row = 0; row < region.rows; row += rows_at_once) {
    index_t const rows = std::min(rows_at_once, region.rows - row);
    float* const here = numbers + row * region.cols;
    tensor_view const part = out.slice(0, row, row + rows);
    if (factors.rank > 0) {
      low_rank_update update;
      update.numbers = here;
      update.pitch = region.cols;
      update.rows = rows;
      update.cols = region.cols;
      update.rank = factors.rank;
      update.left = factors.left + row * factors.rank;
      update.right = factors.right;
      update.deltas = deltas;
      update.to_odd = out.type != dtype::f32;
      add_low_rank(update);
    }
    dequantize({quantized_view::plain(f32_matrix(here, rows, region.cols)), part}, cpu_stream());
    if (factors.rank == 0) continue;
    tensor_view const back = f32_matrix(written, rows, region.cols);
    dequantize({quantized_view::plain(part), back}, cpu_stream());
    sums.add(measure_deltas(written, here, deltas, rows * region.cols));
  }
  return sums;
}

void tile_merger::add(delta_region const& region, float* numbers, index_t pitch) {
  factor_reader::factors const factors = reader_.read(region, true);
  auto* const deltas = reinterpret_cast<float*>(deltas_.first(memory_.deltas).data());
  if (factors.rank == 0) {
    std::fill_n(deltas, region.rows * region.cols, 0.0F);
    return;
  }
  low_rank_update update;
  update.numbers = numbers;
  update.pitch = pitch;
  update.rows = region.rows;
  update.cols = region.cols;
  update.rank = factors.rank;
  update.narrow_left = factors.narrow_left;
  update.right = factors.right;
  update.deltas = deltas;
  add_low_rank(update);
}

delta_sums tile_merger::measure(delta_region const& region, float const* numbers, index_t pitch,
                                quantized_view const& codes) {
  auto const* const deltas = reinterpret_cast<float const*>(deltas_.first(memory_.deltas).data());
  auto* const written = reinterpret_cast<float*>(written_.first(memory_.written).data());
  index_t const block = codes.layout().rows_per_scale(region.rows);
  delta_sums sums;
  for (index_t row = 0; row < region.rows;) {
    // rows of one row of blocks, which then is all that the grid of scales has
    index_t const end = std::min({row + rows_at_once, region.rows, (row / block + 1) * block});
    index_t const rows = end - row;
    index_t const grid = row / block;
    quantized_view const part = quantized_view::scaled(
        codes.values().slice(1, row, end),
        codes.scales().slice(1, grid, block == 1 ? end : grid + 1), codes.layout());
    dequantize({part, f32_matrix(written, rows, region.cols)}, cpu_stream());
    for (index_t i = 0; i < rows; ++i) {
      sums.add(measure_deltas(written + i * region.cols, numbers + (row + i) * pitch,
                              deltas + (row + i) * region.cols, region.cols));
    }
    row = end;
  }
  return sums;
}

}  // namespace moe64::checkpoint
