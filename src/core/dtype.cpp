#include "moe64/dtype.hpp"

#include <array>

namespace moe64 {
namespace {

constexpr std::array<std::string_view, dtype_count> names = {
    "f32", "bf16", "f16", "e4m3", "e5m2", "e8m0", "int8", "int4", "fp4", "int32", "int64", "uint8"};

}  // namespace

std::string_view name(dtype type) noexcept {
  auto const i = static_cast<std::size_t>(type);
  return i < names.size() ? names[i] : "unknown";
}

std::optional<dtype> parse_dtype(std::string_view text) noexcept {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<dtype>(i);
  }
  return std::nullopt;
}

}  // namespace moe64
