#include "moe64/c/handles.h"

#include "capi/convert.hpp"
#include "capi/guarded.hpp"
#include "moe64/cpu.hpp"

#include <algorithm>
#include <memory>

namespace moe64::capi {
namespace {

/// Runs tasks on the host program's own threads.
class host_executor final : public cpu_executor {
 public:
  explicit host_executor(moe64_executor_vtable const& vtable) : vtable_(vtable) {}

  [[nodiscard]] index_t concurrency() const noexcept override {
    return std::max<index_t>(1, vtable_.concurrency(vtable_.user_data));
  }
  void run(index_t tasks, void (*task)(void* context, index_t i), void* context) noexcept override {
    vtable_.run(vtable_.user_data, tasks, task, context);
  }

 private:
  moe64_executor_vtable vtable_;
};

/// A moe64_executor* is a cpu_executor*: that is what a stream's handle points to.
moe64_executor* hand_over(std::unique_ptr<cpu_executor> executor) {
  return reinterpret_cast<moe64_executor*>(executor.release());
}

moe64_weights* hand_over(weight_stack const& stack) {
  return std::make_unique<moe64_weights>(moe64_weights{stack}).release();
}

}  // namespace
}  // namespace moe64::capi

using namespace moe64::capi;

extern "C" {

moe64_status moe64_cpu_pool_create(int64_t threads, moe64_executor** executor) {
  return guarded([&] {
    argument const at("cpu_pool_create");
    auto& out = required(executor, at["executor"]);
    out = hand_over(std::make_unique<moe64::cpu_pool>(threads));
  });
}

moe64_status moe64_executor_create(const moe64_executor_vtable* vtable, moe64_executor** executor) {
  return guarded([&] {
    argument const at("executor_create");
    auto const copy = sized_copy(vtable, at["vtable"]);
    if (copy.concurrency == nullptr || copy.run == nullptr) {
      moe64::fail(moe64::errc::invalid_argument, "{} vtable.{} is NULL", at.text(),
                  copy.run == nullptr ? "run" : "concurrency");
    }
    auto& out = required(executor, at["executor"]);
    out = hand_over(std::make_unique<host_executor>(copy));
  });
}

void moe64_executor_destroy(moe64_executor* executor) {
  delete reinterpret_cast<moe64::cpu_executor*>(executor);
}

moe64_status moe64_weights_single(const moe64_quantized* matrix, moe64_weights** weights) {
  return guarded([&] {
    argument const at("weights_single");
    auto const part = to_cpp(required(matrix, at["matrix"]), at["matrix"]);
    auto& out = required(weights, at["weights"]);
    out = hand_over(moe64::weight_stack::single(part));
  });
}

moe64_status moe64_weights_gate_up(const moe64_quantized* gate, const moe64_quantized* up,
                                   moe64_weights** weights) {
  return guarded([&] {
    argument const at("weights_gate_up");
    auto const gate_part = to_cpp(required(gate, at["gate"]), at["gate"]);
    auto const up_part = to_cpp(required(up, at["up"]), at["up"]);
    auto& out = required(weights, at["weights"]);
    out = hand_over(moe64::weight_stack::gate_up(gate_part, up_part));
  });
}

moe64_status moe64_weights_single_placed(const moe64_quantized* matrix,
                                         const moe64_expert_places* places,
                                         moe64_weights** weights) {
  return guarded([&] {
    argument const at("weights_single_placed");
    auto const where = to_cpp(required(places, at["places"]), at["places"]);
    auto const part = to_cpp(required(matrix, at["matrix"]), at["matrix"], where);
    auto& out = required(weights, at["weights"]);
    out = hand_over(moe64::weight_stack::single(part));
  });
}

moe64_status moe64_weights_gate_up_placed(const moe64_quantized* gate,
                                          const moe64_expert_places* gate_places,
                                          const moe64_quantized* up,
                                          const moe64_expert_places* up_places,
                                          moe64_weights** weights) {
  return guarded([&] {
    argument const at("weights_gate_up_placed");
    auto const gate_where = to_cpp(required(gate_places, at["gate_places"]), at["gate_places"]);
    auto const gate_part = to_cpp(required(gate, at["gate"]), at["gate"], gate_where);
    auto const up_where = to_cpp(required(up_places, at["up_places"]), at["up_places"]);
    auto const up_part = to_cpp(required(up, at["up"]), at["up"], up_where);
    auto& out = required(weights, at["weights"]);
    out = hand_over(moe64::weight_stack::gate_up(gate_part, up_part));
  });
}

void moe64_weights_destroy(moe64_weights* weights) { delete weights; }

}  // extern "C"
