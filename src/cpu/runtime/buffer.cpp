#include "core/fail.hpp"
#include "moe64/cpu.hpp"

#include <new>

namespace moe64 {
namespace {

constexpr auto alignment = static_cast<std::align_val_t>(workspace_alignment);

void* allocate(index_t bytes) {
  if (bytes < 0) fail(errc::invalid_argument, "[cpu_buffer] {} bytes", bytes);
  void* const data = ::operator new(static_cast<std::size_t>(bytes), alignment, std::nothrow);
  if (data == nullptr) fail(errc::out_of_memory, "[cpu_buffer] the system has no {} bytes", bytes);
  return data;
}

}  // namespace

cpu_buffer::cpu_buffer(index_t bytes) : data_(allocate(bytes)), bytes_(bytes) {}

void cpu_buffer::release::operator()(void* data) const noexcept {
  ::operator delete(data, alignment);
}

}  // namespace moe64
