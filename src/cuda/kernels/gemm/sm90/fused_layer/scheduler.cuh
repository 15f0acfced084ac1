#pragma once

#include "cuda/kernels/gemm/sm90/fused_layer/tile.cuh"

/// Which tiles there are: every CTA sorts all slots and finds the same row tiles, and numbers tiles
/// by them alike.
namespace moe64::cuda {

/// By all threads, of which the first have the ids of slots; ends with a barrier.
template <class Tile>
__device__ void find_row_tiles(plan_rounds_parameters const& p, index_t id,
                               layer_memory<Tile>& memory) {
  int const slot = thread_number();
  small_batch_slot const mine = small_batch_sort(p, id, memory.sorted);
  bool const begins = mine.row >= 0 && mine.among % Tile::rows == 0;
  if (slot < p.slots) memory.begins[slot] = begins ? mine.row : small_batch_slots::nobody;
  int const count = __syncthreads_count(begins ? 1 : 0);
  if (thread_number() == 0) memory.row_tile_count = count;
  if (begins) {
    int number = 0, rows = -mine.among;
    for (int s = 0; s < p.slots; ++s) {
      number += memory.begins[s] < mine.row ? 1 : 0;
      rows += memory.sorted.expert[s] == mine.expert ? 1 : 0;
    }
    memory.row_tiles[number] = {mine.expert, mine.row, min(rows, Tile::rows)};
  }
  __syncthreads();
}

/// The same by the first warp, for up to warp_slots slots; others see it with the first tile.
template <class Tile>
__device__ void find_row_tiles_in_warp(plan_rounds_parameters const& p, index_t id,
                                       layer_memory<Tile>& memory) {
  constexpr unsigned all = ~0U;
  small_batch_slot const mine = small_batch_sort_in_warp(p, id);
  int const rows = __popc(__match_any_sync(all, mine.expert)) - mine.among;
  bool const begins = mine.row >= 0 && mine.among % Tile::rows == 0;
  int const begin = begins ? mine.row : small_batch_slots::nobody;
  int number = 0;
  for (int s = 0; s < p.slots; ++s) number += __shfl_sync(all, begin, s) < begin ? 1 : 0;
  int const count = __popc(__ballot_sync(all, begins));
  if (begins) memory.row_tiles[number] = {mine.expert, mine.row, min(rows, Tile::rows)};
  if (lane_number() < p.slots) memory.sorted.row[lane_number()] = mine.row;
  if (lane_number() == 0) memory.row_tile_count = count;
  __syncwarp();
}

/// The tiles of all row tiles by number: those of gate_up, then those of down.
template <class Tile>
class layer_tiles {
 public:
  __device__ layer_tiles(sm90_fused_layer_parameters const& p, layer_memory<Tile> const& memory)
      : memory_(memory),
        parts_(static_cast<unsigned>(p.gemm[gate_up].parts)),  // narrow-ok: 1 or 2
        of_gate_up_(parts_ * tiles_of(p.gemm[gate_up])),
        of_down_(tiles_of(p.gemm[down])) {}

  /// Without an expert where there is none.
  [[nodiscard]] __device__ layer_tile operator[](unsigned number) const {
    layer_tile tile = {};
    tile.expert = -1;
    auto const row_tiles = static_cast<unsigned>(memory_.row_tile_count);  // narrow-ok: few
    bool const is_down = number >= row_tiles * of_gate_up_;
    if (is_down) number -= row_tiles * of_gate_up_;
    unsigned const each = is_down ? of_down_ : of_gate_up_;
    if (number >= row_tiles * each) return tile;
    unsigned const at = number / each, out_tile = number % each;
    // Gate and up of the same outputs side by side: their activation can be had early.
    unsigned const parts = is_down ? 1 : parts_;
    row_tile const& rows = memory_.row_tiles[at];
    tile.expert = rows.expert;
    tile.row = rows.row;
    tile.rows = rows.rows;
    tile.part = static_cast<int>(out_tile % parts);              // narrow-ok: 0 or 1
    tile.out = static_cast<int>(out_tile / parts * Tile::outs);  // narrow-ok: host looked
    tile.gemm = is_down ? down : gate_up;
    tile.row_tile = static_cast<int>(at);  // narrow-ok: few
    return tile;
  }

  [[nodiscard]] __device__ unsigned gate_up_tiles() const {
    return static_cast<unsigned>(memory_.row_tile_count) * of_gate_up_;  // narrow-ok: few
  }

 private:
  [[nodiscard]] static __device__ unsigned tiles_of(sm90_gemm_parameters const& gemm) {
    return static_cast<unsigned>(ceil_div(gemm.n_part, index_t{Tile::outs}));  // narrow-ok: host
  }

  layer_memory<Tile> const& memory_;
  unsigned parts_, of_gate_up_, of_down_;
};

}  // namespace moe64::cuda
