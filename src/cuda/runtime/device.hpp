#pragma once

#include "cuda/runtime/runtime.hpp"
#include "moe64/device.hpp"

/// Which device is current is a secret of this file: it is changed by device_guard alone, and
/// always put back.
namespace moe64::cuda {

/// Makes a device current for as long as it lives.
class device_guard {
 public:
  /// errc::device_failure when the device cannot be used, errc::device_mismatch when it is the CPU.
  /// `doing` is for messages.
  device_guard(char const* doing, moe64::device where);
  ~device_guard();
  device_guard(device_guard const&) = delete;
  device_guard& operator=(device_guard const&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// errc::device_failure (or out_of_memory) with the name of `code`, unless it is success. The
/// error is then forgotten by the runtime, so that no later call reports it as its own.
void check(status code, char const* doing, moe64::device where);

/// Throws errc::device_mismatch unless `data` is memory of `where`; `argument`.`member` names it.
void check_owner(char const* operation, char const* argument, char const* member, void const* data,
                 moe64::device where);

/// Throws errc::device_mismatch unless the stream belongs to its device.
void check_stream(char const* operation, stream where);

/// Number of devices; 0 when CUDA cannot be used at all.
[[nodiscard]] int device_count() noexcept;

}  // namespace moe64::cuda
