#pragma once

#include "moe64/cpu.hpp"

#include <exception>
#include <mutex>

namespace moe64::cases {

/// body(i) for every i in [0, count) on the executor, or on this thread when it is null. The first
/// exception that a body throws is thrown again when all are done.
template <class Body>
void parallel_for(cpu_executor* executor, index_t count, Body&& body) {
  struct shared {
    Body& body;
    std::mutex mutex;
    std::exception_ptr failure;
  } state{body, {}, nullptr};
  auto const task = [](void* context, index_t i) {
    auto& self = *static_cast<shared*>(context);
    try {
      self.body(i);
    } catch (...) {
      std::scoped_lock const lock(self.mutex);
      if (!self.failure) self.failure = std::current_exception();
    }
  };
  if (executor != nullptr) {
    executor->run(count, task, &state);
  } else {
    for (index_t i = 0; i < count; ++i) task(&state, i);
  }
  if (state.failure) std::rethrow_exception(state.failure);
}

}  // namespace moe64::cases
