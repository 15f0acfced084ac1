#pragma once

#include <string_view>

namespace moe64::checkpoint {

inline constexpr std::size_t longest_tensor_name = 4096;  ///< bytes

/// Why this text must not name a tensor, or nothing when it may: too long, a control character, or
/// a meaning as a path outside ("/a", "a/../b"). The text is UTF-8.
[[nodiscard]] std::string_view tensor_name_problem(std::string_view name) noexcept;

/// Why this text must not name a file next to an index, or nothing when it may: it has to be one
/// plain component ("model-00001-of-00002.safetensors").
[[nodiscard]] std::string_view file_name_problem(std::string_view name) noexcept;

[[nodiscard]] bool is_ascii(std::string_view text) noexcept;
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

}  // namespace moe64::checkpoint
