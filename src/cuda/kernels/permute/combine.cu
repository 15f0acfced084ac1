#include "cuda/kernels/device/divide.cuh"
#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/device/vec8.cuh"
#include "cuda/kernels/permute/combine.hpp"

namespace moe64::cuda {
namespace {

/// Element (row, col): a code times its scale.
__device__ float load_scaled(scaled_rows const& rows, index_t row, index_t col) {
  float const value = load_number(row_of(rows.values, 0, row), col);
  if (!rows.scales.present()) return value;
  float scale = load_number(row_of(rows.scales, 0, row), col / rows.cols_per_scale);
  if (rows.global.present()) {
    float const global = element<float>(rows.global, 0);
    scale = rows.global_divides ? scale / global : scale * global;
  }
  return value * scale;
}

/// Computes: y of each token: its rows, dequantised, times their slot weights where asked, added in
///   slot order in f32, rounded once.
/// Grid: a CTA per token, grid-stride beyond.
/// Threads: any number, over the columns.
/// Shared memory: none.
/// Limits: none; any strides and types.
__global__ void combine_reference(combine_parameters const p) {
  for (index_t token = blockIdx.x; token < p.plan.tokens; token += gridDim.x) {
    row_view const y = row_of(p.y, token);
    for (index_t col = threadIdx.x; col < p.y.extent[1]; col += blockDim.x) {
      float accumulator = 0.0F;
      for (index_t slot = token * p.plan.top_k; slot < (token + 1) * p.plan.top_k; ++slot) {
        index_t const row = element<index_t>(p.plan.slot_to_row, slot);
        if (row < 0) continue;
        float const value = load_scaled(p.rows, row, col);
        accumulator += p.weighted ? element<float>(p.plan.slot_weight, slot) * value : value;
      }
      store_float(y, col, accumulator);
    }
  }
}

/// The address of the vec8 at element `offset` + `col`.
template <dtype Type>
__device__ void* vec8_of(tensor_view const& tensor, index_t offset, index_t col) {
  return static_cast<std::uint8_t*>(tensor.data) + (offset + col) / 8 * bytes_of_8(Type);
}

/// Rows, and vec8s of each, that a thread loads before it adds the first, and threads of a CTA.
/// Many tokens: bytes in flight against occupancy. Few tokens: as few dependent loads as possible.
struct combine_many {
  static constexpr int rows = 4, vec8s = 2, threads = combine_threads;
  static_assert(threads * vec8s * 8 == combine_columns);
};
struct combine_small_batch {
  static constexpr int rows = 8, vec8s = 1, threads = combine_small_batch_threads;
  static_assert(threads * vec8s * 8 == combine_small_batch_columns);
};

/// Computes: as combine_reference.
/// Grid: a CTA per token and threads * vec8s * 8 columns, grid-stride beyond. PDL.
/// Threads: Shape::threads, Shape::vec8s vec8s each.
/// Shared memory: none.
/// Limits: plain rows of the type of y, can_take_vec8() of both.
template <class Shape, dtype Type, bool Weighted>
__global__ void __launch_bounds__(Shape::threads) combine_vectors(combine_parameters const p) {
  pdl_begin();
  constexpr index_t step = Shape::threads * index_t{8};  // columns between the vec8s of a thread
  constexpr index_t columns = step * Shape::vec8s;
  index_t const pieces = ceil_div(p.y.extent[1], columns);
  index_t const top_k = p.plan.top_k;
  tensor_view const& values = p.rows.values;
  for (index_t task = blockIdx.x; task < p.plan.tokens * pieces; task += gridDim.x) {
    index_t const token = divide(task, pieces);
    index_t const col = (task - token * pieces) * columns + threadIdx.x * index_t{8};
    float accumulators[Shape::vec8s][8] = {};
    for (index_t k = 0; k < top_k; k += Shape::rows) {
      index_t row[Shape::rows];
      raw8<Type> loaded[Shape::rows][Shape::vec8s];
#pragma unroll
      for (int i = 0; i < Shape::rows; ++i) {
        row[i] = k + i < top_k ? element<index_t>(p.plan.slot_to_row, token * top_k + k + i) : -1;
      }
#pragma unroll
      for (int i = 0; i < Shape::rows; ++i) {
#pragma unroll
        for (int j = 0; j < Shape::vec8s; ++j) {
          if (row[i] < 0 || col + j * step >= p.y.extent[1]) continue;
          loaded[i][j] =
              load8<Type>(vec8_of<Type>(values, row[i] * values.stride[1], col + j * step));
        }
      }
#pragma unroll
      for (int i = 0; i < Shape::rows; ++i) {
        if (row[i] < 0) continue;
        float const weight =
            Weighted ? element<float>(p.plan.slot_weight, token * top_k + k + i) : 1.0F;
#pragma unroll
        for (int j = 0; j < Shape::vec8s; ++j) {
          float value[8];
          decode8<Type>(loaded[i][j], value);
#pragma unroll
          for (int c = 0; c < 8; ++c) accumulators[j][c] += Weighted ? weight * value[c] : value[c];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < Shape::vec8s; ++j) {
      if (col + j * step >= p.y.extent[1]) continue;
      store8<Type>(vec8_of<Type>(p.y, token * p.y.stride[0], col + j * step),
                   encode8<Type>(accumulators[j]));
    }
  }
}

// ---- slot_weight_gradient ----------------------------------------------------------------------

/// The last expert that begins at or before the row; empty experts begin where the next one does.
__device__ index_t expert_of_row(routing_plan const& plan, index_t row) {
  index_t low = 0;
  index_t high = plan.experts;
  while (high - low > 1) {
    index_t const middle = low + (high - low) / 2;
    (element<index_t>(plan.expert_begin, middle) <= row ? low : high) = middle;
  }
  return low;
}

/// The sum of all lanes, in halves; for the first of them.
__device__ float fold(float sum, unsigned lanes) {
  for (int half = dot_lanes / 2; half > 0; half /= 2) {
    sum += __shfl_down_sync(lanes, sum, half, dot_lanes);
  }
  return sum;
}

/// The dot product of two rows in the CPU's order: element i goes to lane i % 16, each lane fuses
/// its products in ascending order, the lanes are folded in halves. For the first of the lanes.
__device__ float dot(row_view const& left, row_view const& right, index_t length, int lane,
                     unsigned lanes) {
  float sum = 0.0F;
  for (index_t at = 0; at < length; at += dot_lanes) {
    index_t const i = at + lane;
    float const a = i < length ? load_number(left, i) : 0.0F;
    float const b = i < length ? load_number(right, i) : 0.0F;
    sum = __fmaf_rn(a, b, sum);
  }
  return fold(sum, lanes);
}

/// The same for contiguous rows, several loads in flight. Zeros past the last element can change
/// the sign of a zero, so there are only as many as the CPU adds.
template <dtype Type>
__device__ float dot_contiguous(tensor_view const& left, tensor_view const& right, index_t row,
                                int lane, unsigned lanes) {
  constexpr int unroll = 8;
  index_t const length = left.extent[1];
  index_t const a_begin = offset_of(left, row) + lane;
  index_t const b_begin = offset_of(right, row) + lane;
  float sum = 0.0F;
  index_t at = 0;
  for (; at + unroll * dot_lanes <= length; at += unroll * dot_lanes) {
    float a[unroll], b[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      a[i] = load_number(Type, left.data, a_begin + at + i * dot_lanes);
      b[i] = load_number(Type, right.data, b_begin + at + i * dot_lanes);
    }
#pragma unroll
    for (int i = 0; i < unroll; ++i) sum = __fmaf_rn(a[i], b[i], sum);
  }
  for (; at < length; at += dot_lanes) {
    bool const inside = at + lane < length;
    float const a = inside ? load_number(Type, left.data, a_begin + at) : 0.0F;
    float const b = inside ? load_number(Type, right.data, b_begin + at) : 0.0F;
    sum = __fmaf_rn(a, b, sum);
  }
  return fold(sum, lanes);
}

/// d_weights of every slot: visit(row, lane, lanes) of its row, as the first lane has it, or 0.
template <class Visit>
__device__ void for_each_slot(slot_weight_gradient_parameters const& p, Visit const& visit) {
  int const lane = threadIdx.x % dot_lanes;
  unsigned const lanes = ((1U << dot_lanes) - 1) << (threadIdx.x % 32 / dot_lanes * dot_lanes);
  index_t const step = index_t{gridDim.x} * blockDim.x / dot_lanes;
  index_t const begin = (index_t{blockIdx.x} * blockDim.x + threadIdx.x) / dot_lanes;
  for (index_t slot = begin; slot < p.plan.slots(); slot += step) {
    index_t const row = element<index_t>(p.plan.slot_to_row, slot);
    float const gradient = row >= 0 ? visit(row, lane, lanes) : 0.0F;
    if (lane != 0) continue;
    index_t const token = divide(slot, p.plan.top_k);
    store_float(row_of(p.d_weights, token), slot - token * p.plan.top_k, gradient);
  }
}

/// Computes: d_weights of each slot: the dot product of its rows of left and right, and of its rows
///   of bias_rows and bias; 0 for a slot without a row.
/// Grid: dot_lanes threads per slot, grid-stride beyond.
/// Threads: any multiple of 32.
/// Shared memory: none.
/// Limits: none; any strides and types.
__global__ void slot_weight_gradient_reference(slot_weight_gradient_parameters const p) {
  for_each_slot(p, [&](index_t row, int lane, unsigned lanes) {
    float gradient = dot(row_of(p.left, row), row_of(p.right, row), p.left.extent[1], lane, lanes);
    if (!p.bias.present()) return gradient;
    row_view const bias = row_of(p.bias, expert_of_row(p.plan, row));
    return gradient + dot(row_of(p.bias_rows, row), bias, p.bias.extent[1], lane, lanes);
  });
}

/// Computes: the same.
/// Grid: dot_lanes threads per slot, grid-stride beyond.
/// Threads: any multiple of 32.
/// Shared memory: none.
/// Limits: left and right of one type, contiguous columns, no bias.
template <dtype Type>
__global__ void slot_weight_gradient_contiguous(slot_weight_gradient_parameters const p) {
  for_each_slot(p, [&](index_t row, int lane, unsigned lanes) {
    return dot_contiguous<Type>(p.left, p.right, row, lane, lanes);
  });
}

template <class Shape>
kernel<combine_parameters> vectors_kernel(char const* name, dtype type, bool weighted) {
  auto const pick = [&](auto* with, auto* without) -> kernel<combine_parameters> {
    return {name, weighted ? with : without, true};
  };
  if (type == dtype::f32) {
    return pick(combine_vectors<Shape, dtype::f32, true>,
                combine_vectors<Shape, dtype::f32, false>);
  }
  if (type == dtype::bf16) {
    return pick(combine_vectors<Shape, dtype::bf16, true>,
                combine_vectors<Shape, dtype::bf16, false>);
  }
  return pick(combine_vectors<Shape, dtype::f16, true>, combine_vectors<Shape, dtype::f16, false>);
}

}  // namespace

kernel<combine_parameters> combine_reference_kernel() {
  return {"combine_reference", combine_reference};
}
kernel<combine_parameters> combine_vectors_kernel(dtype type, bool weighted) {
  return vectors_kernel<combine_many>("combine_vectors", type, weighted);
}
kernel<combine_parameters> combine_small_batch_kernel(dtype type, bool weighted) {
  return vectors_kernel<combine_small_batch>("combine_small_batch", type, weighted);
}
kernel<slot_weight_gradient_parameters> slot_weight_gradient_reference_kernel() {
  return {"slot_weight_gradient_reference", slot_weight_gradient_reference};
}
kernel<slot_weight_gradient_parameters> slot_weight_gradient_kernel(dtype type) {
  constexpr char const* name = "slot_weight_gradient_contiguous";
  if (type == dtype::f32) return {name, slot_weight_gradient_contiguous<dtype::f32>};
  if (type == dtype::bf16) return {name, slot_weight_gradient_contiguous<dtype::bf16>};
  return {name, slot_weight_gradient_contiguous<dtype::f16>};
}

}  // namespace moe64::cuda
