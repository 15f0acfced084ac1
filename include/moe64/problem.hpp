#pragma once

#include "moe64/export.hpp"
#include "moe64/layer.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace moe64 {

/// What a problem line exercises: the whole layer, or one operation.
enum class operation : std::uint8_t {
  layer,
  quantize,
  dequantize,
  route,
  plan,
  gather,
  grouped_gemm,
  grouped_gemm_wgrad,
  activate,
  combine,
};
[[nodiscard]] MOE64_API std::string_view name(operation op) noexcept;

enum class routing_kind : std::uint8_t { uniform, zipf, one_expert, sentinel };

/// How a weight is stored, as one word of a problem line. mxfp4 and nvfp4 fix their scale type and
/// group.
enum class weight_format : std::uint8_t { f32, bf16, f16, e4m3, e5m2, int8, int4, mxfp4, nvfp4 };
[[nodiscard]] MOE64_API dtype value_type(weight_format format) noexcept;
/// The format of values and scales of these types; fp4 with e4m3 scales is nvfp4.
[[nodiscard]] MOE64_API weight_format format_of(dtype value, dtype scale) noexcept;

/// One problem = one line of key=value, such as
///   tokens=64 hidden=2048 inter=1536 experts=64 top_k=4 weight=e4m3 scale=block:128x128
/// parse_problem and to_string are inverse; keys that have their default are not printed; an
/// unknown key, a repeated key or a malformed value is errc::invalid_argument naming it.
/// docs/problem-lines.md lists every key.
struct problem {
  operation op = operation::layer;
  index_t tokens = 64;
  index_t hidden = 2048;
  index_t inter = 1536;
  index_t experts = 64;
  index_t top_k = 4;
  weight_format weight = weight_format::e4m3;
  granularity scale = granularity::block(128, 128);  ///< plain formats: none
  dtype scale_dtype = dtype::f32;
  activation_spec act;
  compute_mode mode = compute_mode::automatic;
  activation_scheme scheme = activation_scheme::unstated;  ///< what mode=auto follows
  dtype io = dtype::bf16;
  gate_up_layout layout = gate_up_layout::concatenated;
  routing_kind routing = routing_kind::uniform;
  double sentinel_share = 0.0;  ///< routing=sentinel:SHARE, the share of slots that hold no expert
  weight_placement weight_on = weight_placement::output;
  index_t lora = 0;  ///< rank, 0 = none
  bool bias = false;
  bool backward = false;
  bool quantized = false;  ///< gather and activate: their result is codes of `weight` and `scale`
  moe64::device device;
  std::uint64_t seed = 1;
  std::string impl;  ///< empty = the best
};

[[nodiscard]] MOE64_API problem parse_problem(std::string_view line);
[[nodiscard]] MOE64_API std::string to_string(problem const& p);

}  // namespace moe64
