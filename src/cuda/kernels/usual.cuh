#pragma once

#include "cuda/kernels/quantize_rows.cuh"
#include "cuda/kernels/usual.hpp"

namespace moe64::cuda {

/// How many rows there are to do.
__device__ inline std::uint32_t count_rows(usual_target const& to) {
  if (to.live_rows == nullptr) return to.rows;
  index_t const live = max(*to.live_rows, index_t{0});
  return live < to.rows ? static_cast<std::uint32_t>(live) : to.rows;  // narrow-ok: below rows
}

/// Sixteen of a row of 2-byte numbers.
template <dtype Type>
__device__ inline raw16<Type> load_sixteen(usual_rows const& rows, std::uint32_t row,
                                           std::uint32_t sixteen) {
  return load16<Type>(rows.data + std::uint64_t{row} * rows.step + std::uint64_t{32} * sixteen);
}

__device__ inline std::uint8_t* codes_at(usual_target const& to, std::uint32_t row,
                                         std::uint32_t sixteen) {
  return to.codes + std::uint64_t{row} * to.code_step + std::uint64_t{16} * sixteen;
}

__device__ inline void store_group_scale(usual_target const& to, std::uint32_t row,
                                         std::uint32_t sixteen, std::uint32_t scale) {
  constexpr std::uint32_t lanes = usual_group / 16;
  if (threadIdx.x % lanes != 0) return;
  to.scales[std::uint64_t{row} * to.scale_step + std::uint64_t{sixteen / lanes} * to.group_step] =
      __uint_as_float(scale);
}

/// The largest of the lanes that hold one group.
__device__ inline std::uint32_t largest_of_group(std::uint32_t largest) {
#pragma unroll
  for (int distance = usual_group / 32; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
  }
  return largest;
}

template <dtype Type>
__device__ inline block_factor usual_factor(std::uint32_t largest) {
  return factor_for<dtype::e4m3, Type>(dtype::f32, largest, {});
}

/// A source has fetch(row, sixteen), and numbers(fetched) for all lanes of a warp together. A block
/// has `Threads` threads, which take `Held` sixteens each at a time.
template <int Threads, int Held, class Source>
__device__ void quantize_usual_groups(Source const& source, usual_target const& to) {
  constexpr std::uint32_t tile = Threads * Held;
  constexpr dtype type = Source::type;
  auto const across = static_cast<std::uint32_t>(to.row_sixteens.by);  // narrow-ok: usual_target_of
  std::uint32_t const rows = count_rows(to), items = rows * across;
  for (std::uint32_t first = blockIdx.x * tile; first < items; first += gridDim.x * tile) {
    typename Source::fetched inputs[Held] = {};
    std::uint32_t row[Held], sixteen[Held];
    bool exists[Held];
#pragma unroll
    for (int n = 0; n < Held; ++n) {
      std::uint32_t const item = first + n * Threads + threadIdx.x;
      row[n] = divided_short(item, to.row_sixteens);
      sixteen[n] = item - row[n] * across;
      exists[n] = item < items && 16 * sixteen[n] < to.cols;
      if (exists[n]) inputs[n] = source.fetch(row[n], sixteen[n]);
    }
#pragma unroll
    for (int n = 0; n < Held; ++n) {
      raw16<type> const x = source.numbers(inputs[n]);
      block_factor const by = usual_factor<type>(largest_of_group(largest_of(x)));
      raw16<dtype::e4m3> const codes = codes_of<dtype::e4m3>(x, by);
      if (!exists[n]) continue;
      store16<dtype::e4m3>(codes_at(to, row[n], sixteen[n]), codes);
      store_group_scale(to, row[n], sixteen[n], by.scale);
    }
  }
}

/// A scale per row: of a warp with `OneWarp`, else of a block.
template <bool OneWarp, class Source>
__device__ void quantize_usual_rows(Source const& source, usual_target const& to) {
  constexpr int held = 2;
  constexpr dtype type = Source::type;
  std::uint32_t const threads = OneWarp ? 32 : blockDim.x, thread = threadIdx.x % threads;
  std::uint32_t const at_once = OneWarp ? blockDim.x / 32 : 1, rows = count_rows(to);
  block_maximum maximum;
  for (std::uint32_t row = blockIdx.x * at_once + threadIdx.x / threads; row < rows;
       row += gridDim.x * at_once) {
    typename Source::fetched inputs[held] = {};
#pragma unroll
    for (int n = 0; n < held; ++n) {
      std::uint32_t const sixteen = thread + n * threads;
      if (16 * sixteen < to.cols) inputs[n] = source.fetch(row, sixteen);
    }
    raw16<type> x[held];
    std::uint32_t largest = 0;
#pragma unroll
    for (int n = 0; n < held; ++n) {
      x[n] = source.numbers(inputs[n]);
      largest = max(largest, largest_of(x[n]));
    }
    largest = OneWarp ? __reduce_max_sync(0xffffffffU, largest) : maximum.of(largest);
    block_factor const by = usual_factor<type>(largest);
    if (thread == 0) to.scales[std::uint64_t{row} * to.scale_step] = __uint_as_float(by.scale);
#pragma unroll
    for (int n = 0; n < held; ++n) {
      std::uint32_t const sixteen = thread + n * threads;
      if (16 * sixteen >= to.cols) continue;
      store16<dtype::e4m3>(codes_at(to, row, sixteen), codes_of<dtype::e4m3>(x[n], by));
    }
  }
}

}  // namespace moe64::cuda
