#include "checkpoint/safetensors/file_dtype.hpp"

#include <array>
#include <cstddef>

namespace moe64::checkpoint {
namespace {

struct row {
  file_dtype type;
  std::string_view name;
  index_t bits;
};

constexpr std::array<row, file_dtype_count> table{{
    {file_dtype::boolean, "BOOL", 8},
    {file_dtype::f4, "F4", 4},
    {file_dtype::f6_e2m3, "F6_E2M3", 6},
    {file_dtype::f6_e3m2, "F6_E3M2", 6},
    {file_dtype::u8, "U8", 8},
    {file_dtype::i8, "I8", 8},
    {file_dtype::f8_e5m2, "F8_E5M2", 8},
    {file_dtype::f8_e4m3, "F8_E4M3", 8},
    {file_dtype::f8_e8m0, "F8_E8M0", 8},
    {file_dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {file_dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {file_dtype::i16, "I16", 16},
    {file_dtype::u16, "U16", 16},
    {file_dtype::f16, "F16", 16},
    {file_dtype::bf16, "BF16", 16},
    {file_dtype::i32, "I32", 32},
    {file_dtype::u32, "U32", 32},
    {file_dtype::f32, "F32", 32},
    {file_dtype::c64, "C64", 64},
    {file_dtype::f64, "F64", 64},
    {file_dtype::i64, "I64", 64},
    {file_dtype::u64, "U64", 64},
}};

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (static_cast<std::size_t>(table[i].type) != i) return false;
  }
  return true;
}
static_assert(rows_are_in_order());

}  // namespace

index_t bits(file_dtype type) noexcept { return table[static_cast<std::size_t>(type)].bits; }

std::string_view name(file_dtype type) noexcept {
  return table[static_cast<std::size_t>(type)].name;
}

std::optional<file_dtype> file_dtype_named(std::string_view text) noexcept {
  for (row const& candidate : table) {
    if (candidate.name == text) return candidate.type;
  }
  return std::nullopt;
}

}  // namespace moe64::checkpoint
