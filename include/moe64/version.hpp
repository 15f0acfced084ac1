#pragma once

#include "moe64/export.hpp"

#include <string_view>

namespace moe64 {

/// "0.1.0"
[[nodiscard]] MOE64_API std::string_view version() noexcept;

}  // namespace moe64
