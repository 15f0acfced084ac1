#include "cuda/kernels/activation_table.cuh"
#include "cuda/kernels/staying.cuh"

namespace moe64::cuda {
namespace {

template <activation Kind, dtype Type>
struct gate_up_source {
  static constexpr dtype type = Type;
  static constexpr int width = activate_usual_width;
  struct fetched {
    raw8<Type> gate[2 * width], up[2 * width];
  };
  activate_usual_parameters const& p;

  __device__ fetched fetch(std::uint32_t row, std::uint32_t item) const {
    fetched result = {};
    load(result.gate, p.gate, row, item);
    if (is_gated(Kind)) load(result.up, p.up, row, item);
    return result;
  }

  __device__ void ahead(std::uint32_t row, std::uint32_t item, std::uint32_t count) const {
    constexpr std::uint32_t size = 32 * width;
    fetch_ahead(item_at<width>(p.gate, row, item), count * size);
    if (is_gated(Kind)) fetch_ahead(item_at<width>(p.up, row, item), count * size);
  }

  __device__ static sixteens<Type, width> as_item(fetched const& made) {
    sixteens<Type, width> result;
#pragma unroll
    for (int i = 0; i < 2 * width; ++i) result.of[i / 2].half[i % 2] = made.gate[i];
    return result;
  }

 private:
  __device__ static void load(raw8<Type> (&to)[2 * width], usual_rows const& from,
                              std::uint32_t row, std::uint32_t item) {
    sixteens<Type, width> const loaded = load_item<Type, width>(from, row, item);
#pragma unroll
    for (int i = 0; i < 2 * width; ++i) to[i] = loaded.of[i / 2].half[i % 2];
  }
};

template <activation Kind, dtype Type>
struct computed_source : gate_up_source<Kind, Type> {
  sixteenth_powers powers = sixteenth_powers::load();

  __device__ sixteens<Type, activate_usual_width> numbers(
      typename gate_up_source<Kind, Type>::fetched made) const {
    activate_eights<Kind>(this->p.spec, made.gate, made.up, powers);
    return this->as_item(made);
  }
};

template <activation Kind>
struct table_source : gate_up_source<Kind, dtype::bf16> {
  gate_table<Kind> const& table;

  __device__ sixteens<dtype::bf16, activate_usual_width> numbers(
      typename gate_up_source<Kind, dtype::bf16>::fetched made) const {
    table.activate(this->p.spec, made.gate, made.up);
    return this->as_item(made);
  }
};

template <activation Kind, dtype Type>
__global__ void __launch_bounds__(usual_threads, 16)
    activate_usual(activate_usual_parameters const p) {
  quantize_usual_groups<usual_threads, 1>(computed_source<Kind, Type>{{p}}, p.to);
}

template <activation Kind>
__global__ void __launch_bounds__(gate_table_threads)
    activate_usual_table(activate_usual_parameters const p) {
  __shared__ float numbers[gate_table_entries];
  gate_table<Kind> const table(numbers, p.spec);
  quantize_usual_groups<gate_table_threads, 1>(table_source<Kind>{{p}, table}, p.to);
}

/// The first rows are on their way while the table is made.
template <activation Kind>
__global__ void __launch_bounds__(gate_table_threads)
    activate_usual_table_rows(activate_usual_parameters const p) {
  __shared__ float numbers[gate_table_entries];
  staying_rows rows(gate_up_source<Kind, dtype::bf16>{p}, p.to);
  gate_table<Kind> const table(numbers, p.spec);
  rows.quantize(table_source<Kind>{{p}, table});
}

template <activation Kind, dtype Type>
__global__ void __launch_bounds__(usual_row_threads, 2)
    activate_usual_rows(activate_usual_parameters const p) {
  quantize_usual_rows(computed_source<Kind, Type>{{p}}, p.to);
}

using handle = kernel<activate_usual_parameters>;

}  // namespace

handle activate_usual_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return handle{"activate_usual", type == dtype::bf16 ? activate_usual<constant(), dtype::bf16>
                                                        : activate_usual<constant(), dtype::f16>};
  });
}

handle activate_usual_table_kernel(activation kind) {
  constexpr char const* name = "activate_usual_table";
  if (kind == activation::gelu) return {name, activate_usual_table<activation::gelu>};
  return {name, activate_usual_table<activation::gelu_glu>};
}

handle activate_usual_table_rows_kernel(activation kind) {
  constexpr char const* name = "activate_usual_table_rows";
  if (kind == activation::gelu) return {name, activate_usual_table_rows<activation::gelu>};
  return {name, activate_usual_table_rows<activation::gelu_glu>};
}

handle activate_usual_rows_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return handle{"activate_usual_rows", type == dtype::bf16
                                             ? activate_usual_rows<constant(), dtype::bf16>
                                             : activate_usual_rows<constant(), dtype::f16>};
  });
}

}  // namespace moe64::cuda
