#include "moe64/c/status.h"

#include "capi/guarded.hpp"
#include "moe64/error.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <string_view>

namespace moe64::capi {
namespace {

/// A plain array: reporting must work when memory is what has run out.
constexpr std::size_t message_bytes = 2048;
thread_local char last_message[message_bytes] = "";

moe64_status report(errc code, std::string_view message) noexcept {
  std::size_t const length = std::min(message.size(), message_bytes - 1);
  std::copy_n(message.data(), length, last_message);
  last_message[length] = '\0';
  return static_cast<moe64_status>(code);
}

static_assert(MOE64_INVALID_ARGUMENT == static_cast<int>(errc::invalid_argument));
static_assert(MOE64_SHAPE_MISMATCH == static_cast<int>(errc::shape_mismatch));
static_assert(MOE64_DTYPE_MISMATCH == static_cast<int>(errc::dtype_mismatch));
static_assert(MOE64_DEVICE_MISMATCH == static_cast<int>(errc::device_mismatch));
static_assert(MOE64_MISSING_SCALE == static_cast<int>(errc::missing_scale));
static_assert(MOE64_INVALID_EXPERT == static_cast<int>(errc::invalid_expert));
static_assert(MOE64_SIZE_OVERFLOW == static_cast<int>(errc::size_overflow));
static_assert(MOE64_WORKSPACE_TOO_SMALL == static_cast<int>(errc::workspace_too_small));
static_assert(MOE64_UNSUPPORTED == static_cast<int>(errc::unsupported));
static_assert(MOE64_OUT_OF_MEMORY == static_cast<int>(errc::out_of_memory));
static_assert(MOE64_INTERNAL == static_cast<int>(errc::internal));
static_assert(MOE64_MALFORMED_FILE == static_cast<int>(errc::malformed_file));
static_assert(MOE64_IO_FAILURE == static_cast<int>(errc::io_failure));
static_assert(MOE64_INTERRUPTED == static_cast<int>(errc::interrupted));
static_assert(MOE64_DEVICE_FAILURE == static_cast<int>(errc::device_failure));

}  // namespace

moe64_status report_current_exception() noexcept {
  try {
    throw;
  } catch (error const& refused) {
    return report(refused.code(), refused.what());
  } catch (std::bad_alloc const&) {
    return report(errc::out_of_memory, "[moe64] the system gave no memory");
  } catch (std::exception const& unexpected) {
    return report(errc::internal, unexpected.what());
  } catch (...) {
    return report(errc::internal, "[moe64] an exception of an unknown type");
  }
}

}  // namespace moe64::capi

extern "C" {

const char* moe64_status_name(moe64_status status) {
  // Every name is a literal, so its view ends with a NUL.
  return status == MOE64_OK ? "ok" : moe64::name(static_cast<moe64::errc>(status)).data();
}

const char* moe64_last_error(void) { return moe64::capi::last_message; }

const char* moe64_version(void) { return MOE64_VERSION; }

}  // extern "C"
