#include "checkpoint/dialect/table.hpp"

#include <array>

namespace moe64::checkpoint {
namespace {

using enum key_schema;
using enum file_dtype;
using method = quant_method;
using scheme = weight_scheme;
using value = value_codec;
using scale = scale_codec;
using part = tensor_part;

constexpr auto same = expert_rule::same;
constexpr auto any = scale_format_rule::any;
constexpr auto not_ue8m0 = scale_format_rule::not_ue8m0;
constexpr auto no_global = part::unknown;
constexpr auto declared = block_rule::declared;
constexpr auto fixed = block_rule::fixed;
constexpr auto whole = block_rule::none;
constexpr bool with_dense = true;
constexpr bool experts_only = false;

constexpr dtype_set fp8(f8_e4m3);
constexpr dtype_set f32_only(f32);
constexpr dtype_set f32_bf16(f32, bf16);
constexpr dtype_set floats(f32, bf16, f16);
constexpr dtype_set exponents(u8, f8_e8m0);
constexpr dtype_set bytes(u8);

constexpr schema_set k1_only(k1);
constexpr schema_set k1p_only(k1p);
constexpr schema_set per_expert(k1, k2, k11, k12);

// Columns: id, families; method, scheme, experts, scale_fmt; keys, dense too; values, types; scale,
// global, codec, types seen, block; model types.
// D18 to D20, D23, D28 and D30 name more keys than the releases they were seen in: AutoFP8,
// llm-compressor, ModelOpt and Transformers treat every per-expert naming alike. "D16" has a second
// row for the modules beside its stacks.
constexpr dialect rows[] = {
    {"D1", "DeepSeek-V3, R1; Kimi-K2", method::fp8, scheme::fp8_block, same, not_ue8m0, k1_only,
     with_dense, value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, f32_only,
     declared, "deepseek_v3 kimi_k2"},
    {"D2", "DeepSeek-V3.1, V3.2", method::fp8, scheme::fp8_block, same, scale_format_rule::ue8m0,
     k1_only, with_dense, value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk_pow2,
     f32_only, declared, ""},
    {"D3", "DeepSeek-V4 with FP8 experts", method::fp8, scheme::fp8_block, expert_rule::fp8, any,
     schema_set(k3), with_dense, value::e4m3, fp8, part::scale, no_global, scale::blk_pow2,
     dtype_set(f32, f8_e8m0), declared, ""},
    {"D4", "DeepSeek-V4 with FP4 experts", method::fp8, scheme::unstated, expert_rule::fp4, any,
     schema_set(k3), experts_only, value::fp4x2, dtype_set(i8), part::scale, no_global, scale::mx32,
     dtype_set(f8_e8m0), fixed, ""},
    {"D5", "GLM-4.5 to 4.7 FP8", method::compressed_tensors, scheme::fp8_row, same, any, k1_only,
     with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::row, floats, whole,
     "glm4_moe glm4v_moe"},
    {"D6", "llm-compressor FP8_DYNAMIC", method::compressed_tensors, scheme::fp8_row, same, any,
     k1_only, with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::row, floats,
     whole, ""},
    {"D7", "GLM-5 FP8", method::fp8, scheme::fp8_block, same, not_ue8m0, k1_only, with_dense,
     value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, f32_bf16, declared,
     "glm_moe_dsa"},
    {"D8", "Qwen3 MoE FP8", method::fp8, scheme::fp8_block, same, not_ue8m0, k1_only, with_dense,
     value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, floats, declared,
     "qwen3_moe qwen3_next"},
    {"D9", "Qwen3.5 MoE FP8 and later", method::fp8, scheme::fp8_block, same, not_ue8m0,
     schema_set(k1, km), with_dense, value::e4m3, fp8, part::weight_scale_inv, no_global,
     scale::blk, floats, declared, "qwen3_5_moe qwen3_6_moe qwen3_8_moe"},
    {"D10", "Qwen3-VL MoE FP8", method::fp8, scheme::fp8_block, same, any, schema_set(k4),
     experts_only, value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, f32_bf16,
     declared, ""},
    {"D11", "MiniMax-M2", method::fp8, scheme::fp8_block, same, any, schema_set(k2), with_dense,
     value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, f32_bf16, declared,
     "minimax_m2 minimax"},
    {"D12", "MiniMax-M3 MXFP8", method::mxfp8, scheme::mxfp8, same, any, schema_set(k2), with_dense,
     value::e4m3, fp8, part::weight_scale_inv, no_global, scale::mx32, exponents, fixed, ""},
    {"D13", "Kimi-K2-Thinking, K2.5", method::compressed_tensors, scheme::int4_group, same, any,
     k1p_only, with_dense, value::int4x8, dtype_set(i32), part::weight_scale, no_global, scale::grp,
     floats, declared, ""},
    {"D14", "gpt-oss", method::mxfp4, scheme::mxfp4, same, any, schema_set(k5), experts_only,
     value::fp4blk, bytes, part::scales, no_global, scale::mx32, bytes, fixed, ""},
    {"D15", "Llama-4 FP8, per expert", method::compressed_tensors, scheme::fp8_row, same, any,
     schema_set(k6), with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::row,
     floats, whole, ""},
    {"D16", "Llama-4 with FBGEMM", method::fbgemm_fp8, scheme::fp8_row, same, any, schema_set(k7),
     experts_only, value::e4m3, fp8, part::scale, no_global, scale::col3d, f32_only, whole, ""},
    {"D16", "FBGEMM beside the experts", method::fbgemm_fp8, scheme::fp8_row, same, any,
     schema_set(), with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::row,
     f32_only, whole, ""},
    {"D17", "Llama-4 ModelOpt FP8", method::modelopt, scheme::fp8_tensor, same, any, schema_set(k7),
     experts_only, value::e4m3, fp8, part::weight_scale, no_global, scale::tensor, f32_only, whole,
     ""},
    {"D18", "Mixtral FP8 (AutoFP8)", method::fp8, scheme::fp8_tensor, same, any, per_expert,
     with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::tensor, f32_only, whole,
     ""},
    {"D18b", "Mixtral FP8 (llm-compressor)", method::compressed_tensors, scheme::fp8_tensor, same,
     any, per_expert, with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::tensor,
     floats, whole, ""},
    {"D19", "llm-compressor FP8_BLOCK", method::compressed_tensors, scheme::fp8_block, same, any,
     per_expert, with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::blk, floats,
     declared, ""},
    {"D20", "ModelOpt FP8", method::modelopt, scheme::fp8_tensor, same, any, per_expert, with_dense,
     value::e4m3, fp8, part::weight_scale, no_global, scale::tensor, f32_only, whole, ""},
    {"D21", "ModelOpt FP8 per channel", method::modelopt, scheme::fp8_row, same, any, k1_only,
     with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::row, f32_only, whole, ""},
    {"D22", "ModelOpt FP8 blocks", method::modelopt, scheme::fp8_block, same, any,
     schema_set(k1, km), with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::blk4d,
     f32_only, declared, ""},
    {"D22b", "ModelOpt FP8 blocks in MTP layers", method::modelopt, scheme::fp8_block, same, any,
     schema_set(km), with_dense, value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk,
     f32_bf16, declared, ""},
    {"D23", "ModelOpt NVFP4", method::modelopt, scheme::nvfp4, same, any, schema_set(k1, k12),
     with_dense, value::fp4x2, bytes, part::weight_scale, part::weight_scale_2, scale::nv16_mul,
     fp8, fixed, ""},
    {"D24", "compressed-tensors NVFP4", method::compressed_tensors, scheme::nvfp4, same, any,
     k1p_only, with_dense, value::fp4x2, bytes, part::weight_scale, part::weight_global_scale,
     scale::nv16_div, fp8, fixed, ""},
    {"D25a", "compressed-tensors MXFP4", method::compressed_tensors, scheme::mxfp4, same, any,
     k1p_only, with_dense, value::fp4x2, bytes, part::weight_scale, no_global, scale::mx32, bytes,
     fixed, ""},
    {"D25b", "compressed-tensors MXFP8", method::compressed_tensors, scheme::mxfp8, same, any,
     k1_only, with_dense, value::e4m3, fp8, part::weight_scale, no_global, scale::mx32, bytes,
     fixed, ""},
    {"D26", "Ling v3 with MXFP4 experts", method::fp8, scheme::unstated, expert_rule::mxfp4, any,
     k1_only, experts_only, value::fp4x2, dtype_set(u8, i8), part::weight_scale_inv, no_global,
     scale::mx32, exponents, fixed, ""},
    {"D27", "Step-3.5", method::fp8, scheme::fp8_block, same, any, schema_set(k8), experts_only,
     value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, f32_bf16, declared, ""},
    {"D28", "Granite MoE, Mixtral FP8_DYNAMIC", method::compressed_tensors, scheme::fp8_row, same,
     any, schema_set(k9, k2, k11, k12), with_dense, value::e4m3, fp8, part::weight_scale, no_global,
     scale::row, floats, whole, ""},
    {"D29", "Mistral", method::mistral, scheme::fp8_tensor, same, any, schema_set(k10), with_dense,
     value::e4m3, fp8, part::qscale_weight, no_global, scale::tensor, f32_bf16, whole, ""},
    {"D29b", "Mistral-Large-3", method::fp8, scheme::fp8_tensor, same, any, k1_only, with_dense,
     value::e4m3, fp8, part::weight_scale_inv, no_global, scale::tensor, f32_bf16, whole,
     "mistral3 mistral_large_3 deepseek_v3"},
    {"D30", "saved by Transformers", method::fp8, scheme::fp8_block, same, not_ue8m0, per_expert,
     with_dense, value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, f32_only,
     declared, ""},
    {"D30", "saved by Transformers", method::fp8, scheme::fp8_tensor, same, any, per_expert,
     with_dense, value::e4m3, fp8, part::weight_scale_inv, no_global, scale::tensor, f32_only,
     whole, ""},
    {"D31", "other DeepSeek-style FP8", method::fp8, scheme::fp8_block, same, not_ue8m0, k1_only,
     with_dense, value::e4m3, fp8, part::weight_scale_inv, no_global, scale::blk, floats, declared,
     ""},
};

}  // namespace

std::span<dialect const> dialect_table() noexcept { return rows; }

std::string_view name(value_codec codec) noexcept {
  constexpr std::array<std::string_view, 5> names = {"plain", "e4m3", "fp4x2", "fp4blk", "int4x8"};
  auto const i = static_cast<std::size_t>(codec);
  return i < names.size() ? names[i] : "unknown";
}

std::string_view name(scale_codec codec) noexcept {
  constexpr std::array<std::string_view, 11> names = {"none",     "blk", "blk_pow2", "blk4d",
                                                      "mx32",     "row", "tensor",   "nv16_mul",
                                                      "nv16_div", "grp", "col3d"};
  auto const i = static_cast<std::size_t>(codec);
  return i < names.size() ? names[i] : "unknown";
}

dtype_set types_of(scale_codec codec) noexcept {
  switch (codec) {
    case scale_codec::none:
      return {};
    case scale_codec::blk_pow2:
      return dtype_set(f32, f8_e8m0);
    case scale_codec::mx32:
      return exponents;
    case scale_codec::nv16_mul:
    case scale_codec::nv16_div:
      return fp8;
    case scale_codec::blk4d:
    case scale_codec::col3d:
      return f32_only;
    case scale_codec::blk:
    case scale_codec::row:
    case scale_codec::tensor:
    case scale_codec::grp:
      return floats;
  }
  return {};
}

}  // namespace moe64::checkpoint
