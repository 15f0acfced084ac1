#pragma once

#include "moe64/error.hpp"

#include <fmt/format.h>

#include <utility>

namespace moe64 {

/// Throw an error whose message is formatted from values: fail(errc::shape_mismatch, "[gather]
/// ...", a, b).
template <class... Values>
[[noreturn]] void fail(errc code, fmt::format_string<Values...> format, Values&&... values) {
  throw error(code, fmt::format(format, std::forward<Values>(values)...));
}

}  // namespace moe64
