#pragma once

#include "cuda/kernels/gemm/balanced_tiles.cuh"
#include "cuda/kernels/gemm/sm90/swap_ab/kernel.cuh"

/// Many rows per expert. Rows of x are the left operand here, 64 at a time, so that a thread has
/// two of them and needs two scales for each block along k, where weights on the left would need
/// one for every other row of the tile: what those loads take of shared memory the tensor cores
/// lack. Up to 32 rows that are left over are the right operand, as in the tiles of few rows.
namespace moe64::cuda {

/// How the rows of a tile are multiplied.
struct row_blocks {
  int blocks;  ///< of 64
  bool rest;   ///< up to 32 behind them

  __device__ explicit row_blocks(int rows) : blocks(rows / 64), rest(rows % 64 != 0) {
    if (rows % 64 <= 32) return;
    ++blocks;
    rest = false;
  }
  [[nodiscard]] __device__ int copied() const { return blocks * 64 + (rest ? 32 : 0); }
};

/// What all large tiles have in common.
struct large_tile {
  /// Of rows: a block on the left, and up to so many on the right.
  static constexpr int block = 64, rest = 32;
  static constexpr int cluster = 2;
  /// Those that bring scales.
  static constexpr int scale_threads = 64;
  /// Scales come by fours along k: 16 bytes of a row.
  static constexpr int chunk = 4, chunks = 2;
  /// Rows that a warp has of a block; outputs that are a line of the cache.
  static constexpr int warp_rows = 16, out_cols = 64;
  /// What is handed to the copy engine lies 64 outputs by all rows of a block together.
  static constexpr int handed_bytes = block * out_cols * 2;
  /// Where 8 of these outputs of a row lie: neither matrices nor rows meet in the banks.
  [[nodiscard]] static __device__ int place_out(int row, int eight) {
    return row * out_cols * 2 + (eight ^ row % 8) * 16;
  }
};

/// Two blocks of threads are a pair: the same rows, neighbouring outputs; each copies half of the
/// rows to both.
///
/// Two groups have two blocks of rows each and share what is left over. Of codes they leave the
/// tensor cores idle for a quarter of the time: a group multiplies, then scales, and two such
/// chains do not fill the time between them. Three groups, with registers for one block each, do;
/// but tiles of fewer rows copy more for each product, and where power is what limits nothing is
/// gained.
///
/// Hands: y of whole blocks of rows is handed to the copy engine, which writes it while the next
/// tile is multiplied; the memory that it waits in is a stage less.
template <class Elements, int Groups, bool Hands = false>
struct large_m_tile : large_tile {
  static_assert(Groups == 2 || (Groups == 3 && Elements::scaled));
  static_assert(!Hands || Groups == 3);
  using elements = Elements;
  static constexpr int groups = Groups;
  static constexpr bool hands = Hands;
  static constexpr int rows = (Groups == 2 ? 4 : 3) * block;
  /// Three groups leave a rest to the third, which has no block then.
  static constexpr int most_rows = rows + (Groups == 2 ? rest : 0);
  /// Products of numbers go on into the next stage, so that one more is in use. Those of codes end
  /// with theirs: beside 256 rows a fourth stage gives them nothing, and room for y does
  /// (docs/hopper.md).
  static constexpr int stages = Hands ? 4 : Groups == 3 ? 5 : Elements::scaled ? 3 : 4;
  static constexpr int outs = 128, out_blocks = 1, threads = (Groups + 1) * 128;
  /// Registers of a thread: those of a block begin with 168 of each of 384 threads, with 128 of
  /// 512.
  static constexpr int feeding = producer_registers;
  static constexpr int multiplying = Groups == 2 ? consumer_registers : 152;
  static_assert(Groups == 2 || feeding + 3 * multiplying <= 4 * 128);
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + most_rows * 128;
  static constexpr int scaled_rows = Elements::scaled ? most_rows : 1;
  /// Rows of y that a warp writes at a time, and its memory for y.
  static constexpr int out_rows = Groups == 2 ? 16 : 8;
  static constexpr int out_bytes = Hands ? warp_rows * outs * 2 : out_rows * out_cols * 2;
  /// What a tile takes, in about 8 ns of Hopper: its end, and along k its weights and its rows.
  /// Measured with two groups, and taken for three as well.
  [[nodiscard]] static __device__ std::uint32_t time(row_blocks const& rows, int k_blocks) {
    auto const depth = static_cast<std::uint32_t>(min(k_blocks, 8192));  // narrow-ok: positive
    auto const halves =
        static_cast<std::uint32_t>(2 * rows.blocks) + (rows.rest ? 1U : 0U);  // narrow-ok: <= 9
    return 192 + depth * (8 + 11 * halves);
  }
  static_assert(192 + 8192 * (8 + 11 * 9) < greedy_queue::most_time);
};

/// Two blocks of threads are a pair: the same outputs, two tiles of rows. Where those are of one
/// expert, each copies half of the weights to both.
struct m128n192_tile : large_tile {
  using elements = e4m3_elements;
  static constexpr int groups = 2, threads = (groups + 1) * 128;
  static constexpr bool hands = true;
  static constexpr int rows = groups * block, most_rows = rows, scaled_rows = rows;
  static constexpr int outs = 192, out_blocks = 2;
  static constexpr int stages = 4;
  static constexpr int weight_bytes = outs * 128, stage_bytes = weight_bytes + rows * 128;
  /// Registers of a thread. Pairs of tiles take more to find than other tiles.
  static constexpr int feeding = 56, multiplying = 224;
  static_assert(feeding + groups * multiplying <= 3 * 168);
  static constexpr int out_rows = 16, out_bytes = warp_rows * outs * 2;
};

template <class Tile>
struct large_m_memory {
  alignas(1024) std::uint8_t stage[Tile::stages][Tile::stage_bytes];
  alignas(16) float row_scale[Tile::chunks][Tile::scaled_rows][Tile::chunk];
  float out_scale[Tile::chunks][Tile::out_blocks * Tile::chunk];  ///< by blocks of 128 outputs
  alignas(Tile::hands ? 1024 : 16) std::uint8_t out[4 * Tile::groups][Tile::out_bytes];
  output_terms<Tile::outs> terms;
  gemm_tile tile[tile_slots];
  ring_barriers<Tile::stages> stages;
  ring_barriers<tile_slots> tiles;
  ring_barriers<Tile::chunks> scales;
};

template <class Tile>
constexpr gemm_config large_m_config = {.rows = Tile::rows,
                                        .outs = Tile::cluster* Tile::outs,
                                        .most_rows = Tile::most_rows,
                                        .cluster = Tile::cluster,
                                        .threads = Tile::threads,
                                        .shared_bytes = sizeof(large_m_memory<Tile>)};

template <class Elements, tile_shape Tile>
struct large_m_tile_named;
template <class Elements>
struct large_m_tile_named<Elements, tile_shape::m256n128> {
  using type = large_m_tile<Elements, 2>;
};
template <class Elements>
struct large_m_tile_named<Elements, tile_shape::m192n128> {
  using type = large_m_tile<Elements, 3>;
};
template <class Elements>
struct large_m_tile_named<Elements, tile_shape::m192n128_tma_store> {
  using type = large_m_tile<Elements, 3, true>;
};
template <>
struct large_m_tile_named<e4m3_elements, tile_shape::m128n192> {
  using type = m128n192_tile;
};
template <class Elements, tile_shape Tile>
using large_m_tile_of = typename large_m_tile_named<Elements, Tile>::type;

template <class Elements, tile_shape Tile>
[[nodiscard]] kernel<sm90_gemm_parameters> large_m_kernel();

/// How the rows of experts are cut.
template <class Tile>
__device__ tile_cut large_m_cut(sm90_gemm_parameters const& p) {
  return {.expert_begin = p.expert_begin,
          .capacity = p.y.extent[0],
          .row_tile = Tile::rows,
          .out_tiles = 0,
          .more = Tile::most_rows - Tile::rows};
}

/// The tiles of some rows that are side by side: all of a part, then those of the next.
template <class Tile>
class tiles_of_rows {
 public:
  __device__ explicit tiles_of_rows(sm90_gemm_parameters const& p)
      : of_part_(static_cast<int>(ceil_div(p.n_part, index_t{outs}))),  // narrow-ok: host looked
        count_(p.parts * of_part_) {}
  [[nodiscard]] __device__ int count() const { return count_; }
  /// This block's part of one.
  [[nodiscard]] __device__ gemm_tile at(int number, int expert, int row, int rows) const {
    int const part = number / of_part_, out = (number - part * of_part_) * outs;
    return {expert, row, rows, part, out + rank_in_cluster() * Tile::outs};
  }

 private:
  static constexpr int outs = Tile::cluster * Tile::outs;
  int of_part_, count_;
};

/// By one warp, which is ahead of the others: tiles by turns, all outputs of some rows, then those
/// of the next rows. Both blocks of pair `me` find the same ones.
template <class Tile>
__device__ void schedule_round_robin(sm90_gemm_parameters const& p, int workers, int me,
                                     large_m_memory<Tile>& memory) {
  tile_cut const cut = large_m_cut<Tile>(p);
  tile_ring ring(memory.tile, memory.tiles);
  row_tile_walk walk(cut, 1);
  tiles_of_rows<Tile> const tiles(p);
  int next = me;  // from the first tile of some rows on
  for (row_run rows = walk.next(); rows.expert >= 0; rows = walk.next()) {
    for (; next < tiles.count(); next += workers) {
      ring.publish(tiles.at(next, rows.expert, rows.row, rows.rows));
    }
    next -= tiles.count();
  }
  ring.publish({-1, 0, 0, 0, 0});
}

/// The same for tiles that are shared out by what they are thought to take. What is done for tiles
/// of others must be short: there are `workers` of them.
template <class Tile>
__device__ void schedule_greedy(sm90_gemm_parameters const& p, int k_blocks, int workers, int me,
                                large_m_memory<Tile>& memory) {
  tile_cut const cut = large_m_cut<Tile>(p);
  tile_ring ring(memory.tile, memory.tiles);
  row_tile_walk walk(cut, 1);
  tiles_of_rows<Tile> const tiles(p);
  greedy_queue queue(workers);
  for (row_run rows = walk.next(); rows.expert >= 0; rows = walk.next()) {
    auto const time = Tile::time(row_blocks(rows.rows), k_blocks);
    for (int number = 0; number < tiles.count(); ++number) {
      if (queue.take(time) != me) continue;
      ring.publish(tiles.at(number, rows.expert, rows.row, rows.rows));
    }
  }
  ring.publish({-1, 0, 0, 0, 0});
}

/// Tiles that are taken when there is time for them: those under way stay together, and what they
/// read stays in the second-level cache. One block of a pair takes, and tells the other, which can
/// be no more than tile_slots + 1 tiles behind: it copies half of the rows.
class tile_counter {
 public:
  __device__ tile_counter(std::uint32_t* work_counter, int me)
      : counter_(work_counter),
        messages_(work_counter + work_counter_mailboxes + me * mailbox_slots) {
    take_next();
  }
  /// The number of this pair's next tile.
  [[nodiscard]] __device__ std::uint32_t next() const { return ticket_ - 1; }
  __device__ void take_next() {
    static_assert(tile_slots + 2 <= mailbox_slots);
    std::uint32_t ticket = 0;
    if (lane_number() == 0) {
      std::uint32_t* const message = messages_ + step_ % mailbox_slots;
      if (rank_in_cluster() == 0) {
        ticket = atomicAdd(counter_, 1U) + 1;
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(message), "r"(ticket) : "memory");
      } else {
        // Tickets grow, so that one from the last time round is none.
        do {
          asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                       : "=r"(ticket)
                       : "l"(message)
                       : "memory");
        } while (ticket <= ticket_);
      }
    }
    ticket_ = __shfl_sync(~0U, ticket, 0);
    ++step_;
  }

 private:
  std::uint32_t *counter_, *messages_;
  std::uint32_t ticket_ = 0;  ///< from 1 on
  unsigned step_ = 0;
};

/// The same for tiles that are taken: as many rows of an expert as the cache can keep by some
/// outputs, then by the next.
template <class Tile>
__device__ void schedule_dynamic(sm90_gemm_parameters const& p, int k_blocks, int me,
                                 large_m_memory<Tile>& memory) {
  tile_cut const cut = large_m_cut<Tile>(p);
  constexpr int kept_bytes = 8 << 20, tile_line_bytes = Tile::rows * 128;
  tile_ring ring(memory.tile, memory.tiles);
  row_tile_walk walk(cut, max(1, kept_bytes / tile_line_bytes / k_blocks));
  tiles_of_rows<Tile> const tiles(p);
  tile_counter work_counter(p.work_counter, me);
  std::uint32_t first = 0;  // tiles before those of a run; of fewer than 2^31, as the host knows
  for (row_run run = walk.next(); run.expert >= 0; run = walk.next()) {
    auto const count =
        static_cast<std::uint32_t>(tiles.count() * run.tiles);  // narrow-ok: some of all tiles
    for (; work_counter.next() - first < count; work_counter.take_next()) {
      int const number = static_cast<int>(work_counter.next() - first);  // narrow-ok: below count
      int const beside = number / run.tiles, tile = number - beside * run.tiles;
      int const row = tile * Tile::rows;
      int const rows = tile + 1 == run.tiles ? run.rows - row : int{Tile::rows};
      ring.publish(tiles.at(beside, run.expert, run.row + row, rows));
    }
    first += count;
  }
  ring.publish({-1, 0, 0, 0, 0});
}

template <class Tile>
__device__ void schedule_tiles(sm90_gemm_parameters const& p, int k_blocks,
                               large_m_memory<Tile>& memory) {
  int const workers = static_cast<int>(gridDim.x) / Tile::cluster;  // narrow-ok: as launched
  int const me = static_cast<int>(blockIdx.x) / Tile::cluster;      // narrow-ok: as launched
  if constexpr (Tile::groups == 2) {
    if (p.work_counter != nullptr) return schedule_dynamic(p, k_blocks, me, memory);
  }
  // To reckon 66 workers takes as long as a short tile.
  if (k_blocks < 24 || workers > greedy_queue::most_workers) {
    schedule_round_robin(p, workers, me, memory);
  } else {
    schedule_greedy(p, k_blocks, workers, me, memory);
  }
}

/// By one thread: stages of weights and x, in the order in which they are multiplied.
template <class Tile>
class operand_producer {
 public:
  __device__ operand_producer(sm90_gemm_parameters const& p, large_m_memory<Tile>& memory)
      : p_(p), memory_(memory) {}
  __device__ void load(gemm_tile const& tile, int k_blocks) {
    using cute::TMA::CacheHintSm90;
    auto const weights_hint = static_cast<std::uint64_t>(
        p_.evict_first ? CacheHintSm90::EVICT_FIRST : CacheHintSm90::EVICT_NORMAL);
    int const rows = row_blocks(tile.rows).copied();
    // Blocks 0 and 1 of a pair copy the first and the second half of the rows.
    int const half = (rows / 2 + 31) / 32 * 32;
    bool const second = rank_in_cluster() != 0;
    int const first_row = second ? half : 0, own_rows = second ? rows - half : half;
    auto const bytes =
        static_cast<std::uint32_t>(Tile::weight_bytes + rows * 128);  // narrow-ok: a stage
    int const matrix = matrix_coordinate(p_.expert_place[tile.part], tile.expert);
    for (int k = 0; k < k_blocks; ++k) {
      memory_.stages.await_free(at_);
      shared_barrier& filled = memory_.stages.filled[at_.slot];
      std::uint8_t* const stage = memory_.stage[at_.slot];
      cute::set_barrier_transaction_bytes(filled, bytes);
      int const first = k * Tile::elements::stage_k;
      cute::SM90_TMA_LOAD_3D::copy(&p_.weights[tile.part], &filled, weights_hint, stage, first,
                                   tile.out, matrix);
      load_rows(tile, first_row, own_rows, first, stage, filled);
      at_.next();
    }
  }

 private:
  /// Whole 32s of rows to both blocks, in boxes of 128 down to 32.
  __device__ void load_rows(gemm_tile const& tile, int row, int rows, int k, std::uint8_t* stage,
                            shared_barrier& filled) const {
    constexpr std::uint16_t both = 3;
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
#pragma unroll
    for (int i = 4; i >= 2; --i) {
      int const box = 8 << i;
      if ((rows & box) == 0) continue;
      cute::SM90_TMA_LOAD_MULTICAST_2D::copy(
          &p_.x[i], &filled, both, hint, stage + Tile::weight_bytes + row * 128, k, tile.row + row);
      row += box;
    }
  }

  sm90_gemm_parameters const& p_;
  large_m_memory<Tile>& memory_;
  ring_place<Tile::stages> at_;
};

}  // namespace moe64::cuda
