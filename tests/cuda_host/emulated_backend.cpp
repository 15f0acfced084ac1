#include "backend.hpp"
#include "cuda/runtime/launch.hpp"
#include "moe64/cpu.hpp"
#include "ops/dispatch.hpp"

#include <stdexcept>

/// In programs that link this file and the mock runtime, the backend of CUDA is that of the CPU:
/// the memory of the mock's devices is that of the host. What runs between the tests and the
/// kernels, the layer's memory on a device, and the tests that move calls there and back, can then
/// be tested without a GPU.
namespace moe64 {
namespace {

constexpr index_t small_batch = 128, counter_bytes = 96;

template <class Args>
void run_on_cpu(Args const& args, stream where) {
  cuda::launcher const on(operation_traits<Args>::name, args, where);
  for (auto const& candidate : cpu_backend().*operation_traits<Args>::list) {
    if (!candidate.supports(args)) continue;
    candidate.run(args, cpu_stream());
    return;
  }
  throw std::logic_error("no implementation on the CPU");
}

template <class Args>
support any_call(Args const&) {
  return support::yes();
}

template <class Args>
implementation_list<Args> list_of() {
  static constexpr implementation<Args> only[] = {{"reference", any_call<Args>, run_on_cpu<Args>}};
  return only;
}

/// Like a device with an FP8 GEMM in hardware, so that `auto` has a choice to make.
support takes_codes(grouped_gemm_args const& args) {
  if (args.x.type() != dtype::e4m3 || args.weights.type() != dtype::e4m3) {
    return support::no("x and weights are not both e4m3");
  }
  if (args.x.cols() % 16 != 0) return support::no("rows do not begin at multiples of 16 bytes");
  if (args.low_rank.u.present()) return support::no("there is a low-rank term");
  return bits(args.y.type) == 16 ? support::yes() : support::no("y is not in 16 bits");
}

constexpr implementation<grouped_gemm_args> multipliers[] = {
    {"reference", takes_codes, run_on_cpu<grouped_gemm_args>, preferred},
    {"reference", any_call<grouped_gemm_args>, run_on_cpu<grouped_gemm_args>},
};

/// Like a device whose gather makes the codes of a token once.
support takes_tokens(gather_args const& args) {
  if (args.quantized.kind == scale_kind::none) return support::no("rows are not quantised");
  if (bits(args.x.type) == 16 && args.x.extent[1] % 16 == 0) return support::yes();
  return support::no("x is not of whole vectors in 16 bits");
}

constexpr implementation<gather_args> gatherers[] = {
    {"reference", takes_tokens, run_on_cpu<gather_args>, preferred},
    {"reference", any_call<gather_args>, run_on_cpu<gather_args>},
};

/// A fused layer is here its calls one by one: what the layer hands over is tested.
support takes_few_slots(layer_calls const& calls) {
  if (calls.plan.plan.slots() <= small_batch && calls.counters.bytes == counter_bytes) {
    return support::yes();
  }
  return support::no("there are many slots");
}

void run_layer(layer_calls const& calls, stream where) {
  cuda::check_owner("layer", "counters", "", calls.counters.data, where.device);
  run_on_cpu(calls.plan, where);
  run_on_cpu(calls.gather, where);
  run_on_cpu(calls.gate_up, where);
  run_on_cpu(calls.activate, where);
  run_on_cpu(calls.down, where);
  run_on_cpu(calls.combine, where);
}

constexpr implementation<layer_calls> layers[] = {{"one_by_one", takes_few_slots, run_layer}};

}  // namespace

backend const& cuda_backend() {
  static backend const table = {
      .quantize = list_of<quantize_args>(),
      .dequantize = list_of<dequantize_args>(),
      .route = list_of<route_args>(),
      .route_backward = list_of<route_backward_args>(),
      .plan = list_of<plan_args>(),
      .gather = gatherers,
      .combine = list_of<combine_args>(),
      .slot_weight_gradient = list_of<slot_weight_gradient_args>(),
      .grouped_gemm = multipliers,
      .grouped_gemm_wgrad = list_of<grouped_gemm_wgrad_args>(),
      .activate = list_of<activate_args>(),
      .activate_backward = list_of<activate_backward_args>(),
      .layer = layers,
      .plan_scratch_bytes = cpu_backend().plan_scratch_bytes,
      .layer_counter_bytes = [](index_t slots, index_t, index_t) -> index_t {
        return slots <= small_batch ? counter_bytes : 0;
      },
  };
  return table;
}

}  // namespace moe64
