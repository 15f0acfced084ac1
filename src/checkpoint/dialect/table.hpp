#pragma once

#include "checkpoint/config/quant_declaration.hpp"
#include "checkpoint/naming/key_schema.hpp"
#include "checkpoint/safetensors/file_dtype.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace moe64::checkpoint {

/// How the values of a weight are stored.
enum class value_codec : std::uint8_t {
  plain,   ///< F32, BF16, F16: numbers by themselves
  e4m3,    ///< F8_E4M3
  fp4x2,   ///< two e2m1 per byte, the even column in the lower nibble
  fp4blk,  ///< the same, in groups of 16 bytes as a dimension of its own: [..., cols / 32, 16]
  int4x8,  ///< eight per I32, column i at bits 4 * (i mod 8), value nibble - 8
};
[[nodiscard]] std::string_view name(value_codec codec) noexcept;

/// What a stored scale covers. Every scale multiplies; the global one of nv16_div divides.
enum class scale_codec : std::uint8_t {
  none,
  blk,       ///< [ceil(N / bn), ceil(K / bk)]
  blk_pow2,  ///< the same, only powers of two
  blk4d,     ///< the same as [rows, 1, cols, 1]
  mx32,      ///< [N, ceil(K / 32)] exponents, 2^(byte - 127)
  row,       ///< [N, 1] or [N]
  tensor,    ///< one number
  nv16_mul,  ///< [N, ceil(K / 16)] F8_E4M3, times a global scale
  nv16_div,  ///< the same, divided by a global scale
  grp,       ///< [N, ceil(K / group)]
  col3d,     ///< of stacks: gate_up [E, 1, 2I], down [E, H, 1]: one per output
};
[[nodiscard]] std::string_view name(scale_codec codec) noexcept;

/// Sets of small enumerations as bits.
class dtype_set {
 public:
  constexpr dtype_set() = default;
  template <class... Types>
  explicit constexpr dtype_set(Types... types)
      : bits_((0U | ... | (1U << static_cast<unsigned>(types)))) {}  // narrow-ok: an enumerator
  [[nodiscard]] constexpr bool contains(file_dtype type) const noexcept {
    return ((bits_ >> static_cast<unsigned>(type)) & 1U) != 0;  // narrow-ok: an enumerator
  }

 private:
  std::uint32_t bits_ = 0;
};

class schema_set {
 public:
  constexpr schema_set() = default;
  template <class... Schemas>
  explicit constexpr schema_set(Schemas... schemas)
      : bits_((0U | ... | (1U << static_cast<unsigned>(schemas)))) {}  // narrow-ok: an enumerator
  [[nodiscard]] constexpr bool contains(key_schema schema) const noexcept {
    return ((bits_ >> static_cast<unsigned>(schema)) & 1U) != 0;  // narrow-ok: an enumerator
  }

 private:
  std::uint32_t bits_ = 0;
};

/// What is declared about the routed experts apart from the rest of the model.
enum class expert_rule : std::uint8_t { same, fp8, fp4, mxfp4 };
/// What `scale_fmt` must be.
enum class scale_format_rule : std::uint8_t { any, not_ue8m0, ue8m0 };
enum class block_rule : std::uint8_t { none, declared, fixed };

/// One row of the table: a declaration, and how its tensors are then named, stored and scaled.
struct dialect {
  std::string_view id;                ///< "D22b"
  std::string_view families;          ///< for people
  std::string_view model_types = {};  ///< separated by blanks; empty: any
  quant_method method = quant_method::none;
  weight_scheme scheme = weight_scheme::unstated;  ///< unstated: any
  expert_rule experts = expert_rule::same;
  scale_format_rule scale_format = scale_format_rule::any;
  schema_set keys = {};
  bool dense_keys = false;  ///< modules that are no experts follow it too
  value_codec values = value_codec::plain;
  dtype_set value_types = {};
  tensor_part scale = tensor_part::weight_scale;
  tensor_part global = tensor_part::unknown;  ///< unknown: it has none
  scale_codec scales = scale_codec::none;
  dtype_set scale_types = {};  ///< seen in the wild; others that the codec takes are a warning
  block_rule block = block_rule::none;
};

/// D1 to D31, in the order in which equal meanings are told apart.
[[nodiscard]] std::span<dialect const> dialect_table() noexcept;

/// The types that a codec can be stored in at all.
[[nodiscard]] dtype_set types_of(scale_codec codec) noexcept;

/// F32, BF16, F16.
[[nodiscard]] constexpr bool is_plain(file_dtype type) noexcept {
  return type == file_dtype::f32 || type == file_dtype::bf16 || type == file_dtype::f16;
}

}  // namespace moe64::checkpoint
