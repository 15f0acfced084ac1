#include "cuda/runtime/device.hpp"
#include "moe64/cuda.hpp"

#include <utility>

namespace moe64 {

using cuda::check;
using cuda::device_guard;
using cuda::the_runtime;

support cuda_support() {
  int count = 0;
  auto const& runtime = the_runtime();
  cuda::status const code = runtime.device_count(&count);
  if (code != 0) {
    (void)runtime.take_error();
    return support::no(runtime.error_text(code));
  }
  return count > 0 ? support::yes() : support::no("there is no CUDA device");
}

index_t cuda_device_count() noexcept { return cuda::device_count(); }
std::string cuda_architectures() { return the_runtime().architectures; }

cuda_device_info cuda_info(moe64::device where) {
  device_guard const guard("cuda_info", where);
  cuda::device_properties properties;
  check(the_runtime().properties(where.ordinal, &properties), "cuda_info", where);
  index_t available = 0;
  check(the_runtime().memory_free(&available), "cuda_info", where);
  return {properties.name,         properties.major, properties.minor, properties.multiprocessors,
          properties.memory_bytes, available};
}

cuda_buffer::cuda_buffer(index_t bytes, moe64::device where) : memory_{nullptr, bytes, where} {
  if (bytes < 0) throw error(errc::invalid_argument, "[cuda_buffer] bytes is negative");
  device_guard const guard("cuda_buffer", where);
  if (bytes > 0) check(the_runtime().allocate(&memory_.data, bytes), "cuda_buffer", where);
}

cuda_buffer::~cuda_buffer() {
  // Errors of earlier work would surface here; there is nobody to tell.
  if (memory_.data != nullptr) (void)the_runtime().release(memory_.data);
}

cuda_buffer::cuda_buffer(cuda_buffer&& other) noexcept
    : memory_(std::exchange(other.memory_, workspace{})) {}

cuda_buffer& cuda_buffer::operator=(cuda_buffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}

cuda_queue::cuda_queue(moe64::device where) : stream_{where, nullptr} {
  device_guard const guard("cuda_queue", where);
  check(the_runtime().create_stream(&stream_.handle), "cuda_queue", where);
}

cuda_queue::~cuda_queue() { (void)the_runtime().destroy_stream(stream_.handle); }

void cuda_copy(void* to, void const* from, index_t bytes, stream where) {
  if (bytes == 0) return;
  device_guard const guard("cuda_copy", where.device);
  check(the_runtime().copy(to, from, bytes, where.handle), "cuda_copy", where.device);
}

void cuda_fill(void* data, int byte, index_t bytes, stream where) {
  if (bytes == 0) return;
  device_guard const guard("cuda_fill", where.device);
  check(the_runtime().fill(data, byte, bytes, where.handle), "cuda_fill", where.device);
}

void cuda_wait(stream where) {
  device_guard const guard("cuda_wait", where.device);
  check(the_runtime().wait(where.handle), "cuda_wait", where.device);
}

cuda_timer::cuda_timer(moe64::device where) : device_(where) {
  device_guard const guard("cuda_timer", where);
  check(the_runtime().create_event(&begin_), "cuda_timer", where);
  cuda::status const code = the_runtime().create_event(&end_);
  if (code != 0) (void)the_runtime().destroy_event(begin_);
  check(code, "cuda_timer", where);
}

cuda_timer::~cuda_timer() {
  (void)the_runtime().destroy_event(begin_);
  (void)the_runtime().destroy_event(end_);
}

void cuda_timer::start(stream where) {
  device_guard const guard("cuda_timer", device_);
  check(the_runtime().record(begin_, where.handle), "cuda_timer", device_);
}

void cuda_timer::stop(stream where) {
  device_guard const guard("cuda_timer", device_);
  check(the_runtime().record(end_, where.handle), "cuda_timer", device_);
}

double cuda_timer::milliseconds() const {
  float elapsed = 0.0F;
  device_guard const guard("cuda_timer", device_);
  check(the_runtime().elapsed(begin_, end_, &elapsed), "cuda_timer", device_);
  return elapsed;
}

cuda_graph::cuda_graph(stream where) : recorded_(where) {
  device_guard const guard("cuda_graph", where.device);
  check(the_runtime().begin_capture(where.handle), "cuda_graph", where.device);
}

void cuda_graph::finish() {
  device_guard const guard("cuda_graph", recorded_.device);
  recording_ = false;
  check(the_runtime().end_capture(recorded_.handle, &graph_), "cuda_graph", recorded_.device);
}

cuda_graph::~cuda_graph() {
  // A recording that was broken off by an exception must be closed, or the stream stays unusable.
  if (recording_) (void)the_runtime().end_capture(recorded_.handle, &graph_);
  if (graph_ != nullptr) (void)the_runtime().destroy_graph(graph_);
  if (recording_) (void)the_runtime().take_error();
}

void cuda_graph::replay(stream where) const {
  device_guard const guard("cuda_graph", where.device);
  check(the_runtime().replay(graph_, where.handle), "cuda_graph", where.device);
}

}  // namespace moe64
