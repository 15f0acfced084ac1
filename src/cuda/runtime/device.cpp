#include "cuda/runtime/device.hpp"

#include "core/fail.hpp"

#include <cstdint>
#include <string>

namespace moe64::cuda {
namespace {

/// Of cudaMalloc and its kin, and of a launch; the numbers are part of CUDA's ABI.
constexpr status memory_allocation_failed = 2;
constexpr status no_kernel_image = 209;

std::string words(memory_owner const& owner) {
  switch (owner.where) {
    case memory_owner::kind::device:
      return fmt::format("memory of cuda:{}", owner.device);
    case memory_owner::kind::managed:
      return "managed memory";
    case memory_owner::kind::host:
      break;
  }
  return "host memory";
}

/// The default streams have no device of their own: they are those of the current one.
bool is_default_stream(void const* handle) {
  constexpr std::uintptr_t per_thread = 2;
  return reinterpret_cast<std::uintptr_t>(handle) <= per_thread;
}

}  // namespace

void check(status code, char const* doing, moe64::device where) {
  if (code == 0) return;
  runtime const& cuda = the_runtime();
  (void)cuda.take_error();
  if (code == no_kernel_image) {
    fail(errc::device_failure,
         "[{}] {}: {} ({}): this build has machine code for {}; build with "
         "MOE64_CUDA_ARCHITECTURES=AUTO on the machine of the GPU, or =ALL",
         doing, to_string(where), cuda.error_name(code), cuda.error_text(code), cuda.architectures);
  }
  fail(code == memory_allocation_failed ? errc::out_of_memory : errc::device_failure,
       "[{}] {}: {} ({})", doing, to_string(where), cuda.error_name(code), cuda.error_text(code));
}

device_guard::device_guard(char const* doing, moe64::device where) {
  if (where.kind != device_kind::cuda) {
    fail(errc::device_mismatch, "[{}] {} is no CUDA device", doing, to_string(where));
  }
  runtime const& cuda = the_runtime();
  check(cuda.get_device(&previous_), doing, where);
  if (previous_ == where.ordinal) return;
  check(cuda.set_device(where.ordinal), doing, where);
  changed_ = true;
}

device_guard::~device_guard() {
  // A device that was current before can be made current again; a failure would be a sticky error,
  // which the next call reports.
  if (changed_) (void)the_runtime().set_device(previous_);
}

void check_owner(char const* operation, char const* argument, char const* member, void const* data,
                 moe64::device where) {
  memory_owner owner;
  check(the_runtime().owner(data, &owner), operation, where);
  if (owner.where == memory_owner::kind::managed) return;
  if (owner.where == memory_owner::kind::device && owner.device == where.ordinal) return;
  fail(errc::device_mismatch, "[{}] {}{}{} at {} is {}, the stream is on {}", operation, argument,
       *member == '\0' ? "" : ".", member, data, words(owner), to_string(where));
}

void check_stream(char const* operation, stream where) {
  if (is_default_stream(where.handle)) return;
  int device = -1;
  check(the_runtime().stream_device(where.handle, &device), operation, where.device);
  if (device != where.device.ordinal) {
    fail(errc::device_mismatch, "[{}] the stream {} belongs to cuda:{}, not to {}", operation,
         where.handle, device, to_string(where.device));
  }
}

int device_count() noexcept {
  int count = 0;
  if (the_runtime().device_count(&count) == 0) return count;
  (void)the_runtime().take_error();
  return 0;
}

}  // namespace moe64::cuda
