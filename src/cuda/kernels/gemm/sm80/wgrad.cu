#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/kernel_name.hpp"
#include "cuda/kernels/gemm/sm80/epilogue.cuh"
#include "cuda/kernels/gemm/sm80/gemm.hpp"

#include <type_traits>

/// The weight gradient by mma.sync: k is the rows of an expert, and dy (A) and x (B) are contiguous
/// along the other dimension.
namespace moe64::cuda {
namespace {

/// A tile of weights [m_begin, ...) x [n_begin, ...) of one part of one expert.
struct gradient_place {
  index_t expert, first_row, rows;
  int part;
  index_t m_begin, n_begin;
};

template <class Tile>
class gradient_tiles {
 public:
  __device__ explicit gradient_tiles(grouped_gemm_wgrad_parameters const& p)
      : p_(p),
        ranges_{p.expert_begin, p.dy.extent[0], 1, 1},
        part_rows_(p.dy.extent[1] / p.parts),
        n_tiles_(ceil_div(p.x.extent[1], index_t{Tile::outs})),
        tiles_(ceil_div(part_rows_, index_t{Tile::rows}) * n_tiles_) {}

  [[nodiscard]] __device__ index_t count() const { return ranges_.experts() * p_.parts * tiles_; }
  [[nodiscard]] __device__ index_t part_rows() const { return part_rows_; }
  [[nodiscard]] __device__ gradient_place at(index_t index) const {
    index_t const matrix = index / tiles_, tile = index % tiles_;
    index_t const expert = matrix / p_.parts;
    index_t const begin = ranges_.begin(expert);
    return {expert,
            begin,
            ranges_.rows(expert, begin),
            within(matrix % p_.parts, 1),
            tile / n_tiles_ * Tile::rows,
            tile % n_tiles_ * Tile::outs};
  }

 private:
  grouped_gemm_wgrad_parameters const& p_;
  tile_cut ranges_;
  index_t part_rows_, n_tiles_, tiles_;
};

/// Issues cp.async some stages ahead of the MMAs, across tiles; tiles without rows have no stages.
template <class Tile>
class gradient_loads {
 public:
  __device__ gradient_loads(grouped_gemm_wgrad_parameters const& p,
                            gradient_tiles<Tile> const& tiles, std::uint8_t* shared)
      : p_(p), tiles_(tiles), shared_(shared_address_of(shared)), tile_(blockIdx.x) {
    open_tile();
  }

  __device__ void issue() {
    if (tile_ < tiles_.count()) {
      shared_address const to = shared_ + slot_ * stage_bytes;
      int const k = within(rows_left_, stage_k);
      copy_operand<Tile::threads, stage_k, Tile::rows / 8, true>(to, dy_, {k, dy_bytes_});
      copy_operand<Tile::threads, stage_k, Tile::outs / 8, true>(to + Tile::x_bytes, x_,
                                                                 {k, x_bytes_});
      dy_.first += stage_k * p_.dy.stride[0] * 2;
      x_.first += stage_k * p_.x.stride[0] * 2;
      rows_left_ -= stage_k;
      if (rows_left_ <= 0) {
        tile_ += gridDim.x;
        open_tile();
      }
    }
    commit_copies();
    slot_ = slot_ + 1 == Tile::stages ? 0 : slot_ + 1;
  }

 private:
  static constexpr int stage_bytes = Tile::template stage_bytes<false>;

  /// The next tile that has rows, from tile_ on.
  __device__ void open_tile() {
    for (; tile_ < tiles_.count(); tile_ += gridDim.x) {
      gradient_place const at = tiles_.at(tile_);
      if (at.rows == 0 || !p_.d_weights[at.part].present()) continue;
      rows_left_ = at.rows;
      dy_ = source<Tile::rows>(p_.dy, at.first_row, at.part * tiles_.part_rows() + at.m_begin);
      x_ = source<Tile::outs>(p_.x, at.first_row, at.n_begin);
      dy_bytes_ = bytes<Tile::rows>(tiles_.part_rows() - at.m_begin);
      x_bytes_ = bytes<Tile::outs>(p_.x.extent[1] - at.n_begin);
      return;
    }
  }
  template <int Width>
  [[nodiscard]] static __device__ int bytes(index_t elements) {
    return within(elements, Width) * 2;
  }
  template <int Width>
  [[nodiscard]] static __device__ chunk_source source(tensor_view const& matrix, index_t row,
                                                      index_t col) {
    auto const* const data = static_cast<std::uint8_t const*>(matrix.data);
    return chunks_of_thread<Tile::threads, Width / 8>(data + (row * matrix.stride[0] + col) * 2,
                                                      matrix.stride[0] * 2);
  }

  grouped_gemm_wgrad_parameters const& p_;
  gradient_tiles<Tile> const& tiles_;
  shared_address shared_;
  index_t tile_;
  int slot_ = 0;
  index_t rows_left_;
  chunk_source dy_, x_;
  int dy_bytes_, x_bytes_;
};

template <class Tile>
__device__ void store_gradient(grouped_gemm_wgrad_parameters const& p, gradient_place const& at,
                               index_t part_rows, warp_accumulators<Tile>& accumulators) {
  tensor_view matrix = p.d_weights[at.part];
  matrix.data = static_cast<std::uint8_t*>(matrix.data) +
                at.expert * matrix.stride[0] * (bits(matrix.type) / 8);
  matrix.stride[0] = matrix.stride[1];
  matrix.stride[1] = matrix.stride[2];
  warp_place<Tile> const warp;
  matrix_output const out(matrix, part_rows, p.x.extent[1]);
  out.write(accumulators, at.m_begin + warp.row, at.n_begin + warp.out);
}

/// Computes: d_weights = scaling * dy^T x per expert and part; zeros for experts without rows.
/// Grid: persistent, Tile::ctas_per_sm CTAs per SM; round-robin over the tiles of all matrices.
/// Threads: all warps load (cp.async, stages ahead) and multiply.
/// Shared memory: a ring of stages (dy, x).
/// Limits: sm80::takes_gradient().
template <class Pair, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::ctas_per_sm)
    sm80_mma_wgrad(__grid_constant__ grouped_gemm_wgrad_parameters const p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  constexpr int stages = Tile::stages, stage_bytes = Tile::template stage_bytes<false>;
  gradient_tiles<Tile> const tiles(p);
  gradient_loads<Tile> loads(p, tiles, shared);
  for (int i = 0; i < stages; ++i) loads.issue();
  await_copies<stages - 1>();
  __syncthreads();
  int slot = 0;
  auto const stage = [&] { return shared_address_of(shared + slot * stage_bytes); };

  warp_place<Tile> const warp;
  fragment_reader<false, Tile::rows / chunk_elements, true, Tile::warps_along_rows> const a(
      warp.row);
  fragment_reader<false, Tile::outs / chunk_elements, false, 1> const b(warp.out);
  warp_accumulators<Tile> accumulators;
  typename warp_accumulators<Tile>::fragments fragments;
  fragments.load_first(a, stage(), b, stage() + Tile::x_bytes);
  for (index_t index = blockIdx.x; index < tiles.count(); index += gridDim.x) {
    gradient_place const at = tiles.at(index);
    if (!p.d_weights[at.part].present()) continue;
    accumulators.clear();
    int const live = warp.live(tiles.part_rows() - at.m_begin);
    for (index_t row = 0; row < at.rows; row += stage_k) {
      int const k = within(at.rows - row, stage_k);
      shared_address const now = stage();
      slot = slot + 1 == stages ? 0 : slot + 1;
      accumulators.template add_stage<Pair>(
          fragments, a, now, b, now + Tile::x_bytes, live, k, [](int, int) {},
          [&] {
            await_copies<stages - 2>();
            __syncthreads();
            loads.issue();
            fragments.load_first(a, stage(), b, stage() + Tile::x_bytes);
          });
    }
    // Without rows the gradient is +0, whatever the sign of the factor.
    if (at.rows > 0) accumulators.scale(p.scaling);
    store_gradient<Tile>(p, at, tiles.part_rows(), accumulators);
  }
  await_copies<0>();
}

template <class Pair, mma_tile Tile>
inline constexpr kernel_name wgrad_kernel_name = {"sm80_mma_wgrad", Pair::name, name(Tile)};

template <mma_tile Tile>
using tile_constant = std::integral_constant<mma_tile, Tile>;

template <class Pair>
kernel<grouped_gemm_wgrad_parameters> kernel_of(mma_tile tile) {
  auto const handle = [](auto constant) -> kernel<grouped_gemm_wgrad_parameters> {
    constexpr mma_tile of = constant();
    return {wgrad_kernel_name<Pair, of>.text, sm80_mma_wgrad<Pair, mma_tile_layout<of>>};
  };
  if (tile == mma_tile::m128n256) return handle(tile_constant<mma_tile::m128n256>{});
  if (tile == mma_tile::m128n64) return handle(tile_constant<mma_tile::m128n64>{});
  return handle(tile_constant<mma_tile::m64n128>{});
}

}  // namespace

kernel<grouped_gemm_wgrad_parameters> sm80_wgrad_kernel(mma_tile tile, bool bf16) {
  return bf16 ? kernel_of<bf16_pair>(tile) : kernel_of<f16_pair>(tile);
}

}  // namespace moe64::cuda
