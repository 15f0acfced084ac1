#include "cuda/kernels/activate/activation_table.cuh"
#include "cuda/kernels/activate/fp8_row_major.hpp"
#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/quantize/persistent_quantize.cuh"

namespace moe64::cuda {
namespace {

/// What sources (fp8_row_major.cuh, persistent_quantize.cuh) have in common here: where gate and up
/// come from.
template <activation Kind, dtype Type>
struct gate_up_source {
  static constexpr dtype type = Type;
  static constexpr int width = activate_row_major_width;
  static constexpr int operands = is_gated(Kind) ? 2 : 1;
  struct fetched {
    raw8<Type> gate[2 * width], up[2 * width];
  };
  activate_row_major_parameters const& p;

  __device__ fetched fetch(std::uint32_t row, std::uint32_t item) const {
    fetched result = {};
    load(result.gate, p.gate, row, item);
    if (operands == 2) load(result.up, p.up, row, item);
    return result;
  }

  __device__ std::uint8_t const* item(int operand, std::uint32_t row, std::uint32_t item) const {
    return item_at<width>(operand == 0 ? p.gate : p.up, row, item);
  }
  template <class Piece>
  __device__ static fetched made_of(Piece const& piece) {
    auto const raw = [&](int operand, int i) -> raw8<Type> {
      uint4 const words = piece(operand, i);
      return {{words.x, words.y, words.z, words.w}};
    };
    fetched result = {};
#pragma unroll
    for (int i = 0; i < 2 * width; ++i) {
      result.gate[i] = raw(0, i);
      if (operands == 2) result.up[i] = raw(1, i);
    }
    return result;
  }

  __device__ static raw_item<Type, width> as_item(fetched const& made) {
    raw_item<Type, width> result;
#pragma unroll
    for (int i = 0; i < 2 * width; ++i) result.vec[i / 2].half[i % 2] = made.gate[i];
    return result;
  }

 private:
  __device__ static void load(raw8<Type> (&to)[2 * width], row_major_rows const& from,
                              std::uint32_t row, std::uint32_t item) {
    raw_item<Type, width> const loaded = load_item<Type, width>(from, row, item);
#pragma unroll
    for (int i = 0; i < 2 * width; ++i) to[i] = loaded.vec[i / 2].half[i % 2];
  }
};

/// Activations computed.
template <activation Kind, dtype Type>
struct computed_source : gate_up_source<Kind, Type> {
  sixteenth_powers powers = sixteenth_powers::load();

  __device__ raw_item<Type, activate_row_major_width> elements(
      typename gate_up_source<Kind, Type>::fetched made) const {
    activate_vec8<Kind>(this->p.spec, made.gate, made.up, powers);
    return this->as_item(made);
  }
};

/// Activations by the table.
template <activation Kind>
struct table_source : gate_up_source<Kind, dtype::bf16> {
  gate_table<Kind> const& table;

  __device__ raw_item<dtype::bf16, activate_row_major_width> elements(
      typename gate_up_source<Kind, dtype::bf16>::fetched made) const {
    table.activate(this->p.spec, made.gate, made.up);
    return this->as_item(made);
  }
};

/// Computes: activation(gate, up) as codes e4m3 and scales f32, a scale for every 128 columns.
/// Grid: a CTA for an item per thread, grid-stride beyond. PDL; dependents start at once (pdl.cuh).
/// Threads: row_major_threads; an item of 32 columns each, a group for 4 lanes of a warp.
/// Shared memory: none.
/// Limits: takes_row_major() of cuda/quantize/activate_quantize.cpp.
template <activation Kind, dtype Type>
__global__ void __launch_bounds__(row_major_threads, 16)
    activate_row_major(activate_row_major_parameters const p) {
  pdl_launch_dependents();
  computed_source<Kind, Type> const source{{p}};
  pdl_wait();
  quantize_row_major_groups<row_major_threads, 1>(source, p.to);
}

extern __shared__ uint4 persistent_memory[];

/// The first inputs are loaded while the table is made.
template <template <class> class Quantizer, activation Kind>
__device__ void activate_by_table(activate_row_major_parameters const& p) {
  using source = gate_up_source<Kind, dtype::bf16>;
  Quantizer<source> quantizer(source{p}, p.to,
                              persistent_memory + gate_table_bytes / sizeof(uint4));
  gate_table<Kind> const table(reinterpret_cast<float*>(persistent_memory), p.spec);
  table_source<Kind> const by_table{{p}, table};
  quantizer.quantize([&](typename source::fetched const& made) { return by_table.elements(made); });
}

/// Computes: as activate_row_major, of gelu and gelu_glu by a table of gates.
/// Grid: persistent, a CTA per SM.
/// Threads: as many whole warps as shared memory allows, an item each; every warp by itself.
/// Shared memory: the table, and the next item of each thread (cp.async).
/// Limits: takes_row_major_table().
template <activation Kind>
__global__ void __launch_bounds__(persistent_most_threads)
    activate_row_major_table(activate_row_major_parameters const p) {
  activate_by_table<persistent_groups, Kind>(p);
}

/// Computes: the same with a scale for every row.
/// Grid: persistent, a CTA per SM.
/// Threads: whole teams of warps that hold a row (persistent_rows), an item each.
/// Shared memory: as above, and two words per warp for the largest magnitude.
/// Limits: takes_row_major_table().
template <activation Kind>
__global__ void __launch_bounds__(persistent_most_threads)
    activate_row_major_table_rows(activate_row_major_parameters const p) {
  activate_by_table<persistent_rows, Kind>(p);
}

/// Computes: activation(gate, up) as codes e4m3 and scales f32, a scale for every row.
/// Grid: a CTA per one to four rows (row_major_cta_of), grid-stride beyond. PDL; dependents start
///   at once.
/// Threads: as many as hold these rows, an item each; at most row_major_row_threads.
/// Shared memory: words for the largest magnitudes.
/// Limits: takes_row_major().
template <activation Kind, dtype Type>
__global__ void __launch_bounds__(row_major_row_threads, 2)
    activate_row_major_rows(activate_row_major_parameters const p) {
  pdl_launch_dependents();
  computed_source<Kind, Type> const source{{p}};
  pdl_wait();
  quantize_row_major_rows(source, p.to);
}

using handle = kernel<activate_row_major_parameters>;

}  // namespace

handle activate_row_major_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return handle{"activate_row_major",
                  type == dtype::bf16 ? activate_row_major<constant(), dtype::bf16>
                                      : activate_row_major<constant(), dtype::f16>,
                  true};
  });
}

handle activate_row_major_table_kernel(activation kind) {
  constexpr char const* name = "activate_row_major_table";
  if (kind == activation::gelu) return {name, activate_row_major_table<activation::gelu>};
  return {name, activate_row_major_table<activation::gelu_glu>};
}

handle activate_row_major_table_rows_kernel(activation kind) {
  constexpr char const* name = "activate_row_major_table_rows";
  if (kind == activation::gelu) return {name, activate_row_major_table_rows<activation::gelu>};
  return {name, activate_row_major_table_rows<activation::gelu_glu>};
}

handle activate_row_major_rows_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return handle{"activate_row_major_rows",
                  type == dtype::bf16 ? activate_row_major_rows<constant(), dtype::bf16>
                                      : activate_row_major_rows<constant(), dtype::f16>,
                  true};
  });
}

}  // namespace moe64::cuda
