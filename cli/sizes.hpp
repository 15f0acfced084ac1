#pragma once

#include "moe64/index.hpp"

#include <optional>
#include <string_view>

namespace moe64::cli {

/// "512MiB", "5GB", "1.5 GiB", "4096": bytes; empty when it is none of that, or past 63 bits.
[[nodiscard]] std::optional<index_t> parse_bytes(std::string_view text);

}  // namespace moe64::cli
