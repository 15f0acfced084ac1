#pragma once

#include "cuda/kernels/quantize/fp8_row_major.hpp"
#include "cuda/kernels/quantize/rows.cuh"

namespace moe64::cuda {

/// How many rows there are to do.
__device__ inline std::uint32_t count_rows(row_major_target const& to) {
  if (to.live_rows == nullptr) return to.rows;
  index_t const live = max(*to.live_rows, index_t{0});
  return live < to.rows ? static_cast<std::uint32_t>(live) : to.rows;  // narrow-ok: below rows
}

/// The elements of an item: `Width` vectors of 16, adjacent.
template <dtype Type, int Width>
struct raw_item {
  raw16<Type> vec[Width];
};

/// The address of an item of a row of bf16 or f16.
template <int Width>
__device__ inline std::uint8_t const* item_at(row_major_rows const& rows, std::uint32_t row,
                                              std::uint32_t item) {
  return rows.data + std::uint64_t{row} * rows.step + std::uint64_t{32 * Width} * item;
}

template <dtype Type, int Width>
__device__ inline raw_item<Type, Width> load_item(row_major_rows const& rows, std::uint32_t row,
                                                  std::uint32_t item) {
  std::uint8_t const* const from = item_at<Width>(rows, row, item);
  raw_item<Type, Width> result;
#pragma unroll
  for (int i = 0; i < Width; ++i) result.vec[i] = load16<Type>(from + 32 * i);
  return result;
}

template <dtype Type, int Width>
__device__ inline std::uint32_t largest_of(raw_item<Type, Width> const& x) {
  std::uint32_t largest = largest_of(x.vec[0]);
#pragma unroll
  for (int i = 1; i < Width; ++i) largest = max(largest, largest_of(x.vec[i]));
  return largest;
}

template <int Width>
using item_codes = raw_item<dtype::e4m3, Width>;

template <dtype Type, int Width>
__device__ inline item_codes<Width> codes_of(raw_item<Type, Width> const& x,
                                             block_factor const& by) {
  item_codes<Width> result;
#pragma unroll
  for (int i = 0; i < Width; ++i) result.vec[i] = codes_of<dtype::e4m3>(x.vec[i], by);
  return result;
}

template <int Width>
__device__ inline void store_codes(row_major_target const& to, std::uint32_t row,
                                   std::uint32_t item, item_codes<Width> const& codes) {
  std::uint8_t* const at =
      to.codes + std::uint64_t{row} * to.code_step + std::uint64_t{16 * Width} * item;
#pragma unroll
  for (int i = 0; i < Width; ++i) store16<dtype::e4m3>(at + 16 * i, codes.vec[i]);
}

/// Items, and so lanes, of one group.
template <int Width>
inline constexpr std::uint32_t group_items = row_major_group / (16 * Width);

/// The largest of the lanes that hold one group, by shuffles.
template <int Width>
__device__ inline std::uint32_t largest_of_group(std::uint32_t largest) {
#pragma unroll
  for (std::uint32_t distance = group_items<Width> / 2; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
  }
  return largest;
}

template <dtype Type>
__device__ inline block_factor row_major_factor(std::uint32_t largest) {
  return factor_for<dtype::e4m3, Type>(dtype::f32, largest, {});
}

__device__ inline std::uint32_t items_of_row(row_major_target const& to) {
  return static_cast<std::uint32_t>(to.row_items.by);  // narrow-ok: row_major_target_of
}

/// An item by its row, and its index there.
struct row_item {
  std::uint32_t row, index;
  bool exists;
};
/// Item `item` of the `items` of all rows.
__device__ inline row_item row_item_of(row_major_target const& to, std::uint32_t item,
                                       std::uint32_t items, std::uint32_t width) {
  std::uint32_t const row = divided_short(item, to.row_items);
  std::uint32_t const index = item - row * items_of_row(to);
  return {row, index, item < items && 16 * width * index < to.cols};
}

/// Stores the codes of an item and, by the first lane of its group, the scale. All lanes of a warp
/// together.
template <dtype Type, int Width>
__device__ inline void quantize_row_major_group(row_major_target const& to, row_item const& at,
                                                raw_item<Type, Width> const& x) {
  std::uint32_t const largest = at.exists ? largest_of(x) : 0;
  block_factor const by = row_major_factor<Type>(largest_of_group<Width>(largest));
  item_codes<Width> const codes = codes_of(x, by);
  if (!at.exists) return;
  store_codes(to, at.row, at.index, codes);
  if (threadIdx.x % group_items<Width> != 0) return;
  to.scales[std::uint64_t{at.row} * to.scale_step + std::uint64_t{at.index / group_items<Width>} *
                                                        to.group_step] = __uint_as_float(by.scale);
}

/// Groups: a grid-stride loop over items, `Held` for each of the `Threads` threads of a CTA at a
/// time. A source has a type, a width, fetch(row, item), and elements(fetched) for all lanes of a
/// warp together.
template <int Threads, int Held, class Source>
__device__ void quantize_row_major_groups(Source const& source, row_major_target const& to) {
  constexpr std::uint32_t tile = Threads * Held;
  std::uint32_t const items = count_rows(to) * items_of_row(to);
  for (std::uint32_t first = blockIdx.x * tile; first < items; first += gridDim.x * tile) {
    typename Source::fetched inputs[Held];
    row_item at[Held];
#pragma unroll
    for (int n = 0; n < Held; ++n) {
      at[n] = row_item_of(to, first + n * Threads + threadIdx.x, items, Source::width);
      // Something is always there, and cheaper to read than zeros to make.
      inputs[n] = source.fetch(at[n].exists ? at[n].row : 0, at[n].exists ? at[n].index : 0);
    }
#pragma unroll
    for (int n = 0; n < Held; ++n) {
      quantize_row_major_group<Source::type, Source::width>(to, at[n], source.elements(inputs[n]));
    }
  }
}

/// The largest of all threads of a CTA that hold the same row, for up to 32 rows: `row` ascends
/// with the thread. One barrier for each call.
class row_maximum {
 public:
  __device__ std::uint32_t of(std::uint32_t mine, std::uint32_t row, std::uint32_t rows) {
    if (rows == 1) return of_cta_.of(mine);
    // Three buffers: that of the next call is cleared while no thread reads or writes it.
    __shared__ std::uint32_t of_row[3][32];
    std::uint32_t* const now = of_row[buffer_];
    buffer_ = buffer_ == 2 ? 0 : buffer_ + 1;
    if (first_ && threadIdx.x < 32) now[threadIdx.x] = 0;
    if (threadIdx.x < 32) of_row[buffer_][threadIdx.x] = 0;
    if (first_) __syncthreads();
    first_ = false;
    unsigned const together = __match_any_sync(0xffffffffU, row);
    std::uint32_t const largest = __reduce_max_sync(together, mine);
    if ((together & ((1U << (threadIdx.x % 32)) - 1)) == 0) atomicMax(&now[row], largest);
    __syncthreads();
    return now[row];
  }

 private:
  int buffer_ = 0;
  bool first_ = true;
  cta_maximum of_cta_;
};

/// A scale per row: as many whole rows per CTA at a time as its threads have items for.
template <class Source>
__device__ void quantize_row_major_rows(Source const& source, row_major_target const& to) {
  std::uint32_t const across = items_of_row(to), rows = count_rows(to);
  std::uint32_t const down = divided_short(threadIdx.x, to.row_items);
  std::uint32_t const index = threadIdx.x - down * across;
  std::uint32_t const rows_each = divided_short(blockDim.x, to.row_items);
  row_maximum maximum;
  for (std::uint32_t first = blockIdx.x * rows_each; first < rows; first += gridDim.x * rows_each) {
    // A group may be longer than the row.
    bool const in_row = 16 * Source::width * index < to.cols;
    bool const exists = down < rows_each && first + down < rows && in_row;
    std::uint32_t const row = exists ? first + down : 0;
    auto const x = source.elements(source.fetch(row, exists ? index : 0));
    block_factor const by =
        row_major_factor<Source::type>(maximum.of(exists ? largest_of(x) : 0, down, rows_each));
    if (!exists) continue;
    if (index == 0) to.scales[std::uint64_t{row} * to.scale_step] = __uint_as_float(by.scale);
    store_codes(to, row, index, codes_of(x, by));
  }
}

}  // namespace moe64::cuda
