#pragma once

#include "cuda/kernels/gemm/parameters.hpp"
#include "cuda/runtime/runtime.hpp"

#include <cstdint>

namespace moe64::cuda {

/// Scales of codes in blocks of 128: scale (place, n, k) belongs to block
/// (n * n_blocks ..., k * k_blocks ...).
struct wgmma_scales {
  void const* data;      ///< null: none, all are 1
  dtype type;            ///< f32 bf16 e8m0
  index_t expert, n, k;  ///< strides in elements; of x: n counts rows
  int n_blocks, k_blocks;
};

/// y = x W^T for sm_90a: weights are the left operand of the tensor cores and rows of x the right
/// one, so that a tile has any multiple of 8 rows, and a row the same bits in each of them.
struct grouped_gemm_wgmma_parameters {
  tensor_map weights[2];          ///< per part (k, n, place): boxes of 128 bytes x 128 rows, or 96
  tensor_map x[5];                ///< (k, row): boxes of 128 bytes x 8, 16, 32, 64, 128 rows
  tensor_view expert_begin;       ///< [experts + 1] int64
  wgmma_scales weight_scales[2];  ///< per part
  wgmma_scales x_scales;
  int x_scales_at_once;        ///< that can be copied together: 4 or 2 f32 of a row, or 1
  wgmma_scales row_scales[2];  ///< per part, one for each row of weights; others are then none
  part_places at[2];           ///< per part, where the matrices of experts are
  bool marks_lost;             ///< plain weights with places: no scale says that there is none
  tensor_view bias[2];         ///< per part [experts, n_part] f32 bf16 f16, or absent
  int parts;
  index_t n_part, k;  ///< extents of a part
  tensor_view y;      ///< [capacity, parts * n_part] bf16 f16
  bool y_vectors;     ///< 8 numbers of y can be written at once
  /// Of `whole` and `broad`, where y_vectors: (output of a part, part, row), 64 x 1 x 64.
  tensor_map y_map;
  bool once;            ///< weights are read about once: they need not stay in the cache
  bool operands_ready;  ///< grouped_gemm_args::operands_ready
  /// [wgmma_tickets] zeros, from which tiles of two groups are taken; null: they are shared out
  /// beforehand, as those of three are.
  std::uint32_t* tickets;
};
/// A counter in a line of its own, and for each pair of blocks what one of them tells the other.
inline constexpr int wgmma_pairs = 96, wgmma_ticket_messages = 32, wgmma_messages_each = 8;
inline constexpr int wgmma_tickets = wgmma_ticket_messages + wgmma_pairs * wgmma_messages_each;

/// Rows and outputs of a tile, the threads that compute it, and their shared memory.
struct wgmma_shape {
  index_t rows, outs;
  index_t most_rows;  ///< of the last tile of an expert
  index_t cluster;    ///< blocks that are launched together and have that many tiles
  int threads;
  index_t shared_bytes;
};

/// By the rows that a tile has at most. `more` is for e4m3 by e4m3, and for numbers by e4m3;
/// `whole` for e4m3 by e4m3: as many rows as `more`, for experts that have so many that most tiles
/// are whole; `broad` for the same along a short k.
enum class wgmma_size { few, some, more, whole, broad, many };

struct wgmma_choice {
  kernel<grouped_gemm_wgmma_parameters> run;
  wgmma_shape shape;
};
/// `numbers`: type of x and weights, e4m3 bf16 f16.
[[nodiscard]] wgmma_choice grouped_gemm_wgmma_choice(wgmma_size size, dtype numbers);

}  // namespace moe64::cuda
