#pragma once

#include "cuda/kernels/device/fp8_row_major.hpp"
#include "cuda/kernels/quantize/rows.cuh"

namespace moe64::cuda {

/// How many rows there are to do.
__device__ inline std::uint32_t count_rows(row_major_target const& to) {
  if (to.live_rows == nullptr) return to.rows;
  index_t const live = max(*to.live_rows, index_t{0});
  return live < to.rows ? static_cast<std::uint32_t>(live) : to.rows;  // narrow-ok: below rows
}

/// Sixteens side by side.
template <dtype Type, int Width>
struct sixteens {
  raw16<Type> of[Width];
};

/// Where an item of a row of 2-byte numbers lies.
template <int Width>
__device__ inline std::uint8_t const* item_at(row_major_rows const& rows, std::uint32_t row,
                                              std::uint32_t item) {
  return rows.data + std::uint64_t{row} * rows.step + std::uint64_t{32 * Width} * item;
}

template <dtype Type, int Width>
__device__ inline sixteens<Type, Width> load_item(row_major_rows const& rows, std::uint32_t row,
                                                  std::uint32_t item) {
  std::uint8_t const* const from = item_at<Width>(rows, row, item);
  sixteens<Type, Width> result;
#pragma unroll
  for (int i = 0; i < Width; ++i) result.of[i] = load16<Type>(from + 32 * i);
  return result;
}

template <dtype Type, int Width>
__device__ inline std::uint32_t largest_of(sixteens<Type, Width> const& x) {
  std::uint32_t largest = largest_of(x.of[0]);
#pragma unroll
  for (int i = 1; i < Width; ++i) largest = max(largest, largest_of(x.of[i]));
  return largest;
}

template <int Width>
using item_codes = sixteens<dtype::e4m3, Width>;

template <dtype Type, int Width>
__device__ inline item_codes<Width> codes_of(sixteens<Type, Width> const& x,
                                             block_factor const& by) {
  item_codes<Width> result;
#pragma unroll
  for (int i = 0; i < Width; ++i) result.of[i] = codes_of<dtype::e4m3>(x.of[i], by);
  return result;
}

template <int Width>
__device__ inline void store_codes(row_major_target const& to, std::uint32_t row,
                                   std::uint32_t item, item_codes<Width> const& codes) {
  std::uint8_t* const at =
      to.codes + std::uint64_t{row} * to.code_step + std::uint64_t{16 * Width} * item;
#pragma unroll
  for (int i = 0; i < Width; ++i) store16<dtype::e4m3>(at + 16 * i, codes.of[i]);
}

/// Items, and so lanes, of one group.
template <int Width>
inline constexpr std::uint32_t group_items = row_major_group / (16 * Width);

/// The largest of the lanes that hold one group.
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

/// Where an item lies, of `items` that there are.
struct item_place {
  std::uint32_t row, place;
  bool exists;
};
__device__ inline item_place place_of(row_major_target const& to, std::uint32_t item,
                                      std::uint32_t items, std::uint32_t width) {
  std::uint32_t const row = divided_short(item, to.row_items);
  std::uint32_t const place = item - row * items_of_row(to);
  return {row, place, item < items && 16 * width * place < to.cols};
}

/// The codes of an item and, by the first lane of its group, the scale. All lanes of a warp
/// together.
template <dtype Type, int Width>
__device__ inline void quantize_row_major_group(row_major_target const& to, item_place const& at,
                                                sixteens<Type, Width> const& x) {
  std::uint32_t const largest = at.exists ? largest_of(x) : 0;
  block_factor const by = row_major_factor<Type>(largest_of_group<Width>(largest));
  item_codes<Width> const codes = codes_of(x, by);
  if (!at.exists) return;
  store_codes(to, at.row, at.place, codes);
  if (threadIdx.x % group_items<Width> != 0) return;
  to.scales[std::uint64_t{at.row} * to.scale_step + std::uint64_t{at.place / group_items<Width>} *
                                                        to.group_step] = __uint_as_float(by.scale);
}

/// A source has a type, a width, fetch(row, item), and numbers(fetched) for all lanes of a warp
/// together. A block has `Threads` threads, which hold `Held` items each at a time.
template <int Threads, int Held, class Source>
__device__ void quantize_row_major_groups(Source const& source, row_major_target const& to) {
  constexpr std::uint32_t tile = Threads * Held;
  std::uint32_t const items = count_rows(to) * items_of_row(to);
  for (std::uint32_t first = blockIdx.x * tile; first < items; first += gridDim.x * tile) {
    typename Source::fetched inputs[Held];
    item_place at[Held];
#pragma unroll
    for (int n = 0; n < Held; ++n) {
      at[n] = place_of(to, first + n * Threads + threadIdx.x, items, Source::width);
      // Something is always there, and cheaper to read than zeros to make.
      inputs[n] = source.fetch(at[n].exists ? at[n].row : 0, at[n].exists ? at[n].place : 0);
    }
#pragma unroll
    for (int n = 0; n < Held; ++n) {
      quantize_row_major_group<Source::type, Source::width>(to, at[n], source.numbers(inputs[n]));
    }
  }
}

/// The largest of all threads of a block that have the same `which`, below `teams` <= 32: ascending
/// numbers.
class team_maximum {
 public:
  __device__ std::uint32_t of(std::uint32_t mine, std::uint32_t which, std::uint32_t teams) {
    if (teams == 1) return of_block_.of(mine);
    __shared__ std::uint32_t of_team[3][32];
    // What is used next is cleared while nobody looks at it.
    std::uint32_t* const now = of_team[turn_];
    turn_ = turn_ == 2 ? 0 : turn_ + 1;
    if (first_ && threadIdx.x < 32) now[threadIdx.x] = 0;
    if (threadIdx.x < 32) of_team[turn_][threadIdx.x] = 0;
    if (first_) __syncthreads();
    first_ = false;
    unsigned const together = __match_any_sync(0xffffffffU, which);
    std::uint32_t const largest = __reduce_max_sync(together, mine);
    if ((together & ((1U << (threadIdx.x % 32)) - 1)) == 0) atomicMax(&now[which], largest);
    __syncthreads();
    return now[which];
  }

 private:
  int turn_ = 0;
  bool first_ = true;
  block_maximum of_block_;
};

/// A scale per row, one item per thread.
template <class Source>
__device__ void quantize_row_major_rows(Source const& source, row_major_target const& to) {
  std::uint32_t const across = items_of_row(to), rows = count_rows(to);
  std::uint32_t const down = divided_short(threadIdx.x, to.row_items);
  std::uint32_t const place = threadIdx.x - down * across;
  std::uint32_t const rows_each = divided_short(blockDim.x, to.row_items);
  team_maximum maximum;
  for (std::uint32_t first = blockIdx.x * rows_each; first < rows; first += gridDim.x * rows_each) {
    // A group may be longer than the row.
    bool const in_row = 16 * Source::width * place < to.cols;
    bool const exists = down < rows_each && first + down < rows && in_row;
    std::uint32_t const row = exists ? first + down : 0;
    auto const x = source.numbers(source.fetch(row, exists ? place : 0));
    block_factor const by =
        row_major_factor<Source::type>(maximum.of(exists ? largest_of(x) : 0, down, rows_each));
    if (!exists) continue;
    if (place == 0) to.scales[std::uint64_t{row} * to.scale_step] = __uint_as_float(by.scale);
    store_codes(to, row, place, codes_of(x, by));
  }
}

}  // namespace moe64::cuda
