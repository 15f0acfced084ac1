#pragma once

#include "cuda/kernels/quantize/fp8_row_major.cuh"

/// Quantising by persistent CTAs, one per multiprocessor, because they prepare something that must
/// serve for much: while a warp works on 32 items, cp.async loads its next 32 to shared memory. A
/// source also has
///   operands           that an item is made of
///   item(o, row, item) the address of that of operand o
///   made_of(piece)     what fetch gives, of piece(o, i): 16-byte piece i of operand o
namespace moe64::cuda {

/// The shared memory for a warp's next items.
template <class Source>
class warp_inputs {
 public:
  /// `memory` has persistent_item_bytes for each thread of the CTA.
  __device__ explicit warp_inputs(uint4* memory)
      : mine_(memory + threadIdx.x / 32 * (32 * pieces * Source::operands)) {}

  /// Issues the copies of the items item_of(0) to item_of(31), neighbouring pieces by neighbouring
  /// lanes.
  template <class ItemOf>
  __device__ void issue(Source const& source, ItemOf const& item_of) const {
    std::uint32_t const lane = threadIdx.x % 32, piece = lane % pieces;
#pragma unroll
    for (std::uint32_t i = 0; i < pieces; ++i) {
      std::uint32_t const n = i * (32 / pieces) + lane / pieces;
      row_item const at = item_of(n);
      if (!at.exists) continue;
#pragma unroll
      for (int o = 0; o < Source::operands; ++o) {
        copy(spot(o, n, piece), source.item(o, at.row, at.index) + 16 * piece);
      }
    }
  }

  /// Waits for the copies; then there is room for the next ones.
  __device__ typename Source::fetched wait() const {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    auto const result =
        Source::made_of([&](int o, std::uint32_t i) { return *spot(o, threadIdx.x % 32, i); });
    __syncwarp();
    return result;
  }

 private:
  static constexpr std::uint32_t pieces = 2 * Source::width;  ///< of 16 bytes, of an operand's item
  static_assert(pieces == 4);

  /// Swizzled: lanes that read the same piece of their items at a time read from all banks.
  __device__ uint4* spot(int o, std::uint32_t n, std::uint32_t piece) const {
    return mine_ + o * (32 * pieces) + n * pieces + (piece ^ (n / 2 % pieces));
  }
  __device__ static void copy(uint4* to, void const* from) {
    auto const at =
        static_cast<std::uint32_t>(__cvta_generic_to_shared(to));  // narrow-ok: shared memory
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  }

  uint4* mine_;
};

/// Groups: an item per thread at a time, warps independent of each other.
template <class Source>
class persistent_groups {
 public:
  /// Issues the first copies.
  __device__ persistent_groups(Source const& source, row_major_target const& to, uint4* memory)
      : source_(source),
        to_(to),
        inputs_(memory),
        items_(count_rows(to) * items_of_row(to)),
        first_(blockIdx.x * blockDim.x + threadIdx.x / 32 * 32) {
    issue();
  }

  /// elements(fetched) as of a source.
  template <class Elements>
  __device__ void quantize(Elements const& elements) {
    while (first_ < items_) {
      row_item const mine = item_of(threadIdx.x % 32);
      auto const fetched = inputs_.wait();
      first_ += gridDim.x * blockDim.x;
      issue();
      quantize_row_major_group(to_, mine, elements(fetched));
    }
  }

 private:
  __device__ row_item item_of(std::uint32_t n) const {
    return row_item_of(to_, first_ + n, items_, Source::width);
  }
  __device__ void issue() const {
    if (first_ >= items_) return;
    inputs_.issue(source_, [&](std::uint32_t n) { return item_of(n); });
  }

  Source source_;
  row_major_target const& to_;
  warp_inputs<Source> inputs_;
  std::uint32_t items_, first_;  ///< first_: of the warp's
};

/// A scale per row: a row per team of warps at a time, of as many as hold it. A team has a named
/// barrier of its own; a CTA has whole teams, and of more than one warp at most 16.
template <class Source>
class persistent_rows {
 public:
  __device__ persistent_rows(Source const& source, row_major_target const& to, uint4* memory)
      : source_(source),
        to_(to),
        inputs_(memory),
        rows_(count_rows(to)),
        warps_((items_of_row(to) + 31) / 32),
        team_(threadIdx.x / 32 / warps_),
        teams_(blockDim.x / 32 / warps_),
        row_(blockIdx.x * teams_ + team_) {
    issue();
  }

  template <class Elements>
  __device__ void quantize(Elements const& elements) {
    while (row_ < rows_) {
      row_item const mine = item_of(threadIdx.x % 32);
      auto const fetched = inputs_.wait();
      row_ += gridDim.x * teams_;
      issue();
      auto const x = elements(fetched);
      block_factor const by =
          row_major_factor<Source::type>(largest(mine.exists ? largest_of(x) : 0));
      if (!mine.exists) continue;
      if (mine.index == 0) {
        to_.scales[std::uint64_t{mine.row} * to_.scale_step] = __uint_as_float(by.scale);
      }
      store_codes(to_, mine.row, mine.index, codes_of(x, by));
    }
  }

 private:
  __device__ row_item item_of(std::uint32_t n) const {
    std::uint32_t const index = (threadIdx.x / 32 - team_ * warps_) * 32 + n;
    return {row_, index, 16 * Source::width * index < to_.cols};
  }
  __device__ void issue() const {
    if (row_ >= rows_) return;
    inputs_.issue(source_, [&](std::uint32_t n) { return item_of(n); });
  }

  /// The largest of all threads of the team.
  __device__ std::uint32_t largest(std::uint32_t mine) {
    __shared__ std::uint32_t of_warp[2][32];
    std::uint32_t largest = __reduce_max_sync(0xffffffffU, mine);
    if (warps_ == 1) return largest;
    parity_ ^= 1;  // double buffer: the next call writes the other half
    if (threadIdx.x % 32 == 0) of_warp[parity_][threadIdx.x / 32] = largest;
    asm volatile("barrier.sync %0, %1;" ::"r"(team_), "r"(warps_ * 32) : "memory");
    for (std::uint32_t warp = 0; warp < warps_; ++warp) {
      largest = max(largest, of_warp[parity_][team_ * warps_ + warp]);
    }
    return largest;
  }

  Source source_;
  row_major_target const& to_;
  warp_inputs<Source> inputs_;
  std::uint32_t rows_, warps_, team_, teams_, row_;
  int parity_ = 0;
};

}  // namespace moe64::cuda
