#include "cuda/kernels/activation_table.cuh"
#include "cuda/kernels/usual.cuh"

namespace moe64::cuda {
namespace {

template <activation Kind, dtype Type>
struct gate_up_source {
  static constexpr dtype type = Type;
  struct fetched {
    raw16<Type> gate, up;
  };
  activate_usual_parameters const& p;
  sixteenth_powers powers = sixteenth_powers::load();

  __device__ fetched fetch(std::uint32_t row, std::uint32_t sixteen) const {
    fetched result = {load_sixteen<Type>(p.gate, row, sixteen), {}};
    if (is_gated(Kind)) result.up = load_sixteen<Type>(p.up, row, sixteen);
    return result;
  }
  __device__ raw16<Type> numbers(fetched const& in) const {
    fetched made = in;
    activate_eights<Kind>(p.spec, made.gate.half, made.up.half, powers);
    return made.gate;
  }
};

template <activation Kind, dtype Type>
__global__ void __launch_bounds__(usual_threads, 16)
    activate_usual(activate_usual_parameters const p) {
  quantize_usual_groups<usual_threads, usual_held>(gate_up_source<Kind, Type>{p}, p.to);
}

/// The same by a table.
template <activation Kind>
struct table_source : gate_up_source<Kind, dtype::bf16> {
  using base = gate_up_source<Kind, dtype::bf16>;
  gate_table<Kind> const& table;

  __device__ table_source(activate_usual_parameters const& p, gate_table<Kind> const& of)
      : base{p}, table(of) {}
  __device__ raw16<dtype::bf16> numbers(typename base::fetched const& in) const {
    typename base::fetched made = in;
    table.activate(this->p.spec, made.gate.half, made.up.half);
    return made.gate;
  }
};

template <activation Kind>
__global__ void __launch_bounds__(gate_table_threads)
    activate_usual_table(activate_usual_parameters const p) {
  __shared__ float numbers[gate_table_entries];
  gate_table<Kind> const table(numbers, p.spec);
  quantize_usual_groups<gate_table_threads, 1>(table_source<Kind>(p, table), p.to);
}

template <activation Kind, dtype Type, bool OneWarp>
__global__ void __launch_bounds__(OneWarp ? usual_threads : usual_row_threads, OneWarp ? 16 : 2)
    activate_usual_rows(activate_usual_parameters const p) {
  quantize_usual_rows<OneWarp>(gate_up_source<Kind, Type>{p}, p.to);
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

handle activate_usual_rows_kernel(activation kind, dtype type, bool one_warp) {
  return visit_kind(kind, [&](auto constant) {
    auto const pick = [&](auto* of_warp, auto* of_block) -> handle {
      return {"activate_usual_rows", one_warp ? of_warp : of_block};
    };
    if (type == dtype::bf16) {
      return pick(activate_usual_rows<constant(), dtype::bf16, true>,
                  activate_usual_rows<constant(), dtype::bf16, false>);
    }
    return pick(activate_usual_rows<constant(), dtype::f16, true>,
                activate_usual_rows<constant(), dtype::f16, false>);
  });
}

}  // namespace moe64::cuda
