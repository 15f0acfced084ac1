#pragma once

#include "cuda/kernels/device/divide.cuh"
#include "cuda/kernels/device/encode_fp8.cuh"
#include "cuda/kernels/quantize/quantize.hpp"

#include <type_traits>

/// Quantising in one pass, whatever the elements come from, a vec16 (16 adjacent columns) per
/// thread at a time. A source has
///   type               of its elements
///   held               vec16s of one block that a thread holds
///   row(expert, row)   a loader with fetch(down, col, exists): the vec16 `down` rows below and
///   from
///                      column `col` on, or what it is made of; zeros where it does not exist
///   elements(fetched)  as raw16; all lanes of a warp together
namespace moe64::cuda {

template <dtype Type>
using type_constant = std::integral_constant<dtype, Type>;

/// The address of the codes at (expert, row, col); col is even.
template <dtype Code>
__device__ inline std::uint8_t* codes_at(tensor_view const& values, index_t expert, index_t row,
                                         index_t col) {
  return static_cast<std::uint8_t*>(values.data) +
         (offset_of(values, expert, row) + col) * bits(Code) / 8;
}

/// The codes of a vec16 and the scale of their group. A scale for every block_cols = 16 * 2^n <=
/// 512 columns: neighbouring lanes hold one group, and reduce its largest magnitude by shuffles.
template <dtype Code>
struct group_codes {
  raw16<Code> codes;
  std::uint32_t scale;

  template <dtype X>
  __device__ static group_codes of(raw16<X> const& x, quantize_target const& t,
                                   global_factor const& global = {}) {
    std::uint32_t largest = largest_of(x);
    for (unsigned distance = lanes_of(t) / 2; distance > 0; distance /= 2) {
      largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
    }
    block_factor const by = factor_for<Code, X>(t.scales.type, largest, global);
    return {codes_of<Code>(x, by), by.scale};
  }

  /// Lanes that hold one group.
  __device__ static unsigned lanes_of(quantize_target const& t) {
    return static_cast<unsigned>(t.block_cols) / 16;  // narrow-ok: at most 512
  }
};

/// Codes from one row on, and the scales of their groups.
template <dtype Code>
class group_rows {
 public:
  __device__ group_rows(quantize_target const& t, index_t expert, index_t row)
      : target_(t),
        codes_(codes_at<Code>(t.values, expert, row, 0)),
        scales_(offset_of(t.scales, expert, row)) {}

  /// `down` rows below the first one.
  __device__ void store(index_t down, index_t col, group_codes<Code> const& made) const {
    store16<Code>(codes_ + (down * target_.values.stride[1] + col) * bits(Code) / 8, made.codes);
    if ((threadIdx.x & (group_codes<Code>::lanes_of(target_) - 1)) != 0) return;
    tensor_view const& scales = target_.scales;
    index_t const group = col >> (__ffsll(target_.block_cols) - 1);
    store_scale(scales, scales_ + down * scales.stride[1] + group * scales.stride[2], made.scale);
  }

 private:
  quantize_target const& target_;
  std::uint8_t* codes_;
  index_t scales_;
};

/// A tile per CTA at a time: groups_tile vec16s of one matrix, in row-major order, whatever their
/// rows. A row is as many vec16s as whole groups have, so that no group is in two warps.
template <dtype Code, class Source>
__device__ void quantize_groups_of(Source const& source, quantize_target const& t) {
  constexpr int held = groups_held / 16;
  index_t const rows = count_rows(t.live_rows, t.values.extent[1]), cols = t.values.extent[2];
  auto const across = static_cast<std::uint32_t>(t.row_vec16s.by);  // narrow-ok: can_make_groups
  for (index_t task = blockIdx.x; task < t.values.extent[0] * t.tiles.by; task += gridDim.x) {
    index_t const expert = t.values.extent[0] == 1 ? 0 : divided(task, t.tiles);
    index_t const first = (task - expert * t.tiles.by) * groups_tile;
    index_t const row = divided(first, t.row_vec16s);
    if (row >= rows) continue;
    auto const begin = static_cast<std::uint32_t>(first - row * across);  // narrow-ok: below across
    index_t const rows_left = rows - row;
    auto const from = source.row(expert, row);
    group_rows<Code> const to(t, expert, row);
    auto const global = global_factor::of(t.global, t.global_divides, expert);
    typename Source::fetched inputs[held];
    std::uint32_t down[held], col[held];
    bool exists[held];
#pragma unroll
    for (int n = 0; n < held; ++n) {
      std::uint32_t const vec16 = begin + n * groups_threads + threadIdx.x;
      down[n] = divided_short(vec16, t.row_vec16s);
      col[n] = 16 * (vec16 - down[n] * across);
      exists[n] = down[n] < rows_left && col[n] < cols;
      inputs[n] = from.fetch(down[n], col[n], exists[n]);
    }
#pragma unroll
    for (int n = 0; n < held; ++n) {
      auto const made = group_codes<Code>::of(source.elements(inputs[n]), t, global);
      if (exists[n]) to.store(down[n], col[n], made);
    }
  }
}

/// The largest of all threads of a CTA, with one barrier for each call: shared memory is a double
/// buffer.
class cta_maximum {
 public:
  __device__ std::uint32_t of(std::uint32_t mine) {
    __shared__ std::uint32_t of_warp[2][32];
    std::uint32_t largest = __reduce_max_sync(0xffffffffU, mine);
    parity_ ^= 1;
    if (threadIdx.x % 32 == 0) of_warp[parity_][threadIdx.x / 32] = largest;
    __syncthreads();
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
      largest = max(largest, of_warp[parity_][warp]);
    }
    return largest;
  }

 private:
  int parity_ = 0;
};

/// A quantisation block per CTA at a time, in the registers of its threads: one row, or rows of 2^n
/// vec16s.
template <dtype Code, class Source>
__device__ void quantize_blocks_of(Source const& source, quantize_target const& t) {
  constexpr int held = Source::held;
  index_t const rows = count_rows(t.live_rows, t.values.extent[1]), cols = t.values.extent[2];
  index_t const grid_rows = t.scales.extent[1], grid_cols = t.scales.extent[2];
  // With one row every vec16 is of it.
  int const shift = t.block_rows == 1 ? 31 : __ffsll(t.block_cols / 16) - 1;
  cta_maximum maximum;
  for (index_t task = blockIdx.x; task < t.values.extent[0] * grid_rows * grid_cols;
       task += gridDim.x) {
    index_t const band = grid_cols == 1 ? task : divide(task, grid_cols);
    index_t const expert = t.values.extent[0] == 1 ? 0 : divide(band, grid_rows);
    index_t const grid_col = task - band * grid_cols, grid_row = band - expert * grid_rows;
    index_t const row = grid_row * t.block_rows, col = grid_col * t.block_cols;
    if (row >= rows) continue;
    // A block is no larger than the threads hold.
    auto const height = static_cast<unsigned>(min(t.block_rows, rows - row));  // narrow-ok: < 2^17
    auto const width = static_cast<unsigned>(min(t.block_cols, cols - col));   // narrow-ok: < 2^17
    auto const row_of = [&](int n) { return (threadIdx.x + n * blockDim.x) >> shift; };
    auto const col_of = [&](int n) {
      return 16 * ((threadIdx.x + n * blockDim.x) & ((1U << shift) - 1U));
    };
    auto const exists = [&](int n) { return row_of(n) < height && col_of(n) < width; };
    auto const from = source.row(expert, row);
    typename Source::fetched inputs[held];
#pragma unroll
    for (int n = 0; n < held; ++n) inputs[n] = from.fetch(row_of(n), col + col_of(n), exists(n));
    raw16<Source::type> x[held];
    std::uint32_t largest = 0;
#pragma unroll
    for (int n = 0; n < held; ++n) {
      x[n] = source.elements(inputs[n]);
      largest = max(largest, largest_of(x[n]));
    }
    auto const global = global_factor::of(t.global, t.global_divides, expert);
    block_factor const by =
        factor_for<Code, Source::type>(t.scales.type, maximum.of(largest), global);
    if (threadIdx.x == 0) {
      store_scale(t.scales, offset_of(t.scales, expert, grid_row, grid_col), by.scale);
    }
    std::uint8_t* const to = codes_at<Code>(t.values, expert, row, col);
#pragma unroll
    for (int n = 0; n < held; ++n) {
      if (!exists(n)) continue;
      store16<Code>(to + (row_of(n) * t.values.stride[1] + col_of(n)) * bits(Code) / 8,
                    codes_of<Code>(x[n], by));
    }
  }
}

}  // namespace moe64::cuda
