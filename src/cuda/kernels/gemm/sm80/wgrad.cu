#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/parameters.hpp"
#include "cuda/kernels/gemm/sm80/gemm.hpp"
#include "cuda/kernels/gemm/sm80/shape.cuh"
#include "cuda/kernels/gemm/sm80/sums.cuh"

/// dy^T x per expert on tensor cores: the summed dimension is the rows of the expert, and both
/// operands are stored in rows along the other one.
namespace moe64::cuda {
namespace {

/// A tile of weights [m_begin, ...) x [n_begin, ...) of one part of one expert.
struct gradient_place {
  index_t expert, first_row, rows;
  int part;
  index_t m_begin, n_begin;
};

template <class Shape>
class gradient_tiles {
 public:
  __device__ explicit gradient_tiles(grouped_gemm_wgrad_parameters const& p)
      : p_(p),
        ranges_{p.expert_begin, p.dy.extent[0], 1, 1},
        part_rows_(p.dy.extent[1] / p.parts),
        n_tiles_(ceil_div(p.x.extent[1], index_t{Shape::outs})),
        tiles_(ceil_div(part_rows_, index_t{Shape::rows}) * n_tiles_) {}

  [[nodiscard]] __device__ index_t count() const { return ranges_.experts() * p_.parts * tiles_; }
  [[nodiscard]] __device__ index_t part_rows() const { return part_rows_; }
  [[nodiscard]] __device__ gradient_place at(index_t number) const {
    index_t const matrix = number / tiles_, tile = number % tiles_;
    index_t const expert = matrix / p_.parts;
    index_t const begin = ranges_.begin(expert);
    return {expert,
            begin,
            ranges_.rows(expert, begin),
            within(matrix % p_.parts, 1),
            tile / n_tiles_ * Shape::rows,
            tile % n_tiles_ * Shape::outs};
  }

 private:
  grouped_gemm_wgrad_parameters const& p_;
  tile_cut ranges_;
  index_t part_rows_, n_tiles_, tiles_;
};

/// The copies, some stages ahead of the products; tiles without rows have none.
template <class Shape>
class gradient_copies {
 public:
  __device__ gradient_copies(grouped_gemm_wgrad_parameters const& p,
                             gradient_tiles<Shape> const& tiles, std::uint8_t* shared)
      : p_(p), tiles_(tiles), shared_(shared_address_of(shared)), number_(blockIdx.x) {
    open_tile();
  }

  __device__ void issue() {
    if (number_ < tiles_.count()) {
      shared_address const to = shared_ + slot_ * Shape::stage_bytes(false);
      int const depth = within(left_, stage_depth);
      copy_tile<Shape::threads, stage_depth, Shape::rows / 8, true>(to, dy_, {depth, dy_bytes_});
      copy_tile<Shape::threads, stage_depth, Shape::outs / 8, true>(to + Shape::x_bytes, x_,
                                                                    {depth, x_bytes_});
      dy_.first += stage_depth * p_.dy.stride[0] * 2;
      x_.first += stage_depth * p_.x.stride[0] * 2;
      left_ -= stage_depth;
      if (left_ <= 0) {
        number_ += gridDim.x;
        open_tile();
      }
    }
    commit_copies();
    slot_ = slot_ + 1 == Shape::stages ? 0 : slot_ + 1;
  }

 private:
  /// The next tile that has rows, from number_ on.
  __device__ void open_tile() {
    for (; number_ < tiles_.count(); number_ += gridDim.x) {
      gradient_place const at = tiles_.at(number_);
      if (at.rows == 0 || !p_.d_weights[at.part].present()) continue;
      left_ = at.rows;
      dy_ = source<Shape::rows>(p_.dy, at.first_row, at.part * tiles_.part_rows() + at.m_begin);
      x_ = source<Shape::outs>(p_.x, at.first_row, at.n_begin);
      dy_bytes_ = bytes<Shape::rows>(tiles_.part_rows() - at.m_begin);
      x_bytes_ = bytes<Shape::outs>(p_.x.extent[1] - at.n_begin);
      return;
    }
  }
  template <int Width>
  [[nodiscard]] static __device__ int bytes(index_t numbers) {
    return within(numbers, Width) * 2;
  }
  template <int Width>
  [[nodiscard]] static __device__ chunk_source source(tensor_view const& matrix, index_t row,
                                                      index_t col) {
    auto const* const data = static_cast<std::uint8_t const*>(matrix.data);
    return chunks_of_thread<Shape::threads, Width / 8>(data + (row * matrix.stride[0] + col) * 2,
                                                       matrix.stride[0] * 2);
  }

  grouped_gemm_wgrad_parameters const& p_;
  gradient_tiles<Shape> const& tiles_;
  shared_address shared_;
  index_t number_;
  int slot_ = 0;
  index_t left_;
  chunk_source dy_, x_;
  int dy_bytes_, x_bytes_;
};

template <class Shape, class Sums>
__device__ void store_gradient(grouped_gemm_wgrad_parameters const& p, gradient_place const& at,
                               index_t part_rows, Sums& sums) {
  tensor_view matrix = p.d_weights[at.part];
  matrix.data = static_cast<std::uint8_t*>(matrix.data) +
                at.expert * matrix.stride[0] * (bits(matrix.type) / 8);
  matrix.stride[0] = matrix.stride[1];
  matrix.stride[1] = matrix.stride[2];
  warp_place<Shape> const warp;
  sums_output const out(matrix, part_rows, p.x.extent[1]);
  out.write(sums, at.m_begin + warp.row, at.n_begin + warp.out);
}

template <class Pair, class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_each)
    grouped_gemm_wgrad_mma(__grid_constant__ grouped_gemm_wgrad_parameters const p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  constexpr int stages = Shape::stages;
  gradient_tiles<Shape> const tiles(p);
  gradient_copies<Shape> copies(p, tiles, shared);
  for (int i = 0; i < stages; ++i) copies.issue();
  await_copies<stages - 1>();
  __syncthreads();
  int slot = 0;
  auto const tile = [&] { return shared_address_of(shared + slot * Shape::stage_bytes(false)); };

  warp_place<Shape> const warp;
  fragment_reader<false, Shape::rows / chunk_numbers, true, Shape::warps_along_rows> const left(
      warp.row);
  fragment_reader<false, Shape::outs / chunk_numbers, false, 1> const right(warp.out);
  using warp_part = warp_sums<Shape::row_fragments, Shape::out_fragments, Shape::warps_along_rows>;
  warp_part sums;
  typename warp_part::fragments fragments;
  fragments.load_first(left, tile(), right, tile() + Shape::x_bytes);
  for (index_t number = blockIdx.x; number < tiles.count(); number += gridDim.x) {
    gradient_place const at = tiles.at(number);
    if (!p.d_weights[at.part].present()) continue;
    sums.clear();
    int const live = warp.live(tiles.part_rows() - at.m_begin);
    for (index_t row = 0; row < at.rows; row += stage_depth) {
      int const depth = within(at.rows - row, stage_depth);
      shared_address const now = tile();
      slot = slot + 1 == stages ? 0 : slot + 1;
      sums.template add_stage<Pair>(
          fragments, left, now, right, now + Shape::x_bytes, live, depth, [](int, int) {},
          [&] {
            await_copies<stages - 2>();
            __syncthreads();
            copies.issue();
            fragments.load_first(left, tile(), right, tile() + Shape::x_bytes);
          });
    }
    // Without rows the sum is +0, whatever the sign of the factor.
    if (at.rows > 0) sums.scale(p.scaling);
    store_gradient<Shape>(p, at, tiles.part_rows(), sums);
  }
  await_copies<0>();
}

}  // namespace

kernel<grouped_gemm_wgrad_parameters> grouped_gemm_wgrad_mma_kernel(mma_size size, bool bf16) {
  char const* const name = "grouped_gemm_wgrad_mma";
  if (size == mma_size::many) {
    return {name, bf16 ? grouped_gemm_wgrad_mma<bf16_pair, shape_many>
                       : grouped_gemm_wgrad_mma<f16_pair, shape_many>};
  }
  if (size == mma_size::thin) {
    return {name, bf16 ? grouped_gemm_wgrad_mma<bf16_pair, shape_thin>
                       : grouped_gemm_wgrad_mma<f16_pair, shape_thin>};
  }
  return {name, bf16 ? grouped_gemm_wgrad_mma<bf16_pair, shape_some>
                     : grouped_gemm_wgrad_mma<f16_pair, shape_some>};
}

}  // namespace moe64::cuda
