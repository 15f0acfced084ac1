#pragma once

#include "moe64/export.hpp"

#include <cstdint>
#include <string>

namespace moe64 {

enum class device_kind : std::uint8_t { cpu = 0, cuda = 1 };

/// Where memory lives. A value: there is no "current" device in moe64.
struct device {
  device_kind kind = device_kind::cpu;
  std::uint8_t reserved = 0;
  std::int16_t ordinal = 0;

  static constexpr device cpu() noexcept { return {}; }
  static constexpr device cuda(std::int16_t ordinal) noexcept {
    return {device_kind::cuda, 0, ordinal};
  }
  friend constexpr bool operator==(device left, device right) noexcept {
    return left.kind == right.kind && left.ordinal == right.ordinal;
  }
};
static_assert(sizeof(device) == 4);

/// "cpu" or "cuda:N".
[[nodiscard]] MOE64_API std::string to_string(moe64::device where);

/// Where and in which order work runs: always the last argument of an operation.
/// cpu: `handle` is a cpu_executor* (see cpu.hpp), null means the calling thread alone; the call
/// returns when the work is done. cuda: `handle` is a cudaStream_t of that device; the call returns
/// when the work is queued.
struct stream {
  moe64::device device;
  void* handle = nullptr;
};

}  // namespace moe64
