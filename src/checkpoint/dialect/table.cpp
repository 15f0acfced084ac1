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
using scale_fmt = scale_format_rule;

constexpr dtype_set fp8(f8_e4m3);
constexpr dtype_set f32_only(f32);
constexpr dtype_set f32_bf16(f32, bf16);
constexpr dtype_set floats(f32, bf16, f16);
constexpr dtype_set exponents(u8, f8_e8m0);
constexpr dtype_set bytes(u8);

constexpr schema_set per_expert(mlp_proj, block_sparse_moe_w123, feed_forward_w123, mixer_proj);
constexpr schema_set outside_mlp(block_sparse_moe_stack, block_sparse_moe_w123, feed_forward_w123,
                                 mixer_proj);

// Fields that are not named: nothing is declared about the experts alone, any `scale_fmt`, no
// global scale, no blocks, any model type. D18 to D20, D23, D28 and D30 name more keys than the
// releases they were seen in: AutoFP8, llm-compressor, ModelOpt and Transformers treat every
// per-expert naming alike. "D16" has a second row for the modules outside of its stacks.
// clang-format off
constexpr dialect rows[] = {
    {.id = "D1", .families = "DeepSeek-V3, R1; Kimi-K2", .model_types = "deepseek_v3 kimi_k2",
     .method = method::fp8, .scheme = scheme::fp8_block, .scale_format = scale_fmt::not_ue8m0,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = f32_only,
     .block = block_rule::declared},
    {.id = "D2", .families = "DeepSeek-V3.1, V3.2",
     .method = method::fp8, .scheme = scheme::fp8_block, .scale_format = scale_fmt::ue8m0,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk_pow2, .scale_types = f32_only,
     .block = block_rule::declared},
    {.id = "D3", .families = "DeepSeek-V4 with FP8 experts",
     .method = method::fp8, .scheme = scheme::fp8_block, .experts = expert_rule::fp8,
     .keys = schema_set(ffn_w123), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::scale, .scales = scale::blk_pow2, .scale_types = dtype_set(f32, f8_e8m0),
     .block = block_rule::declared},
    {.id = "D4", .families = "DeepSeek-V4 with FP4 experts",
     .method = method::fp8, .scheme = scheme::unstated, .experts = expert_rule::fp4,
     .keys = schema_set(ffn_w123), .dense_keys = false, .values = value::fp4x2,
     .value_types = dtype_set(i8),
     .scale = part::scale, .scales = scale::mx32, .scale_types = dtype_set(f8_e8m0),
     .block = block_rule::fixed},
    {.id = "D5", .families = "GLM-4.5 to 4.7 FP8", .model_types = "glm4_moe glm4v_moe",
     .method = method::compressed_tensors, .scheme = scheme::fp8_row,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::row, .scale_types = floats},
    {.id = "D6", .families = "llm-compressor FP8_DYNAMIC",
     .method = method::compressed_tensors, .scheme = scheme::fp8_row,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::row, .scale_types = floats},
    {.id = "D7", .families = "GLM-5 FP8", .model_types = "glm_moe_dsa",
     .method = method::fp8, .scheme = scheme::fp8_block, .scale_format = scale_fmt::not_ue8m0,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = f32_bf16,
     .block = block_rule::declared},
    {.id = "D8", .families = "Qwen3 MoE FP8", .model_types = "qwen3_moe qwen3_next",
     .method = method::fp8, .scheme = scheme::fp8_block, .scale_format = scale_fmt::not_ue8m0,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = floats,
     .block = block_rule::declared},
    {.id = "D9", .families = "Qwen3.5 MoE FP8 and later",
     .model_types = "qwen3_5_moe qwen3_6_moe qwen3_8_moe",
     .method = method::fp8, .scheme = scheme::fp8_block, .scale_format = scale_fmt::not_ue8m0,
     .keys = schema_set(mlp_proj, mtp_mlp_proj), .dense_keys = true, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = floats,
     .block = block_rule::declared},
    {.id = "D10", .families = "Qwen3-VL MoE FP8",
     .method = method::fp8, .scheme = scheme::fp8_block,
     .keys = schema_set(mlp_stack), .dense_keys = false, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = f32_bf16,
     .block = block_rule::declared},
    {.id = "D11", .families = "MiniMax-M2", .model_types = "minimax_m2 minimax",
     .method = method::fp8, .scheme = scheme::fp8_block,
     .keys = schema_set(block_sparse_moe_w123), .dense_keys = true, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = f32_bf16,
     .block = block_rule::declared},
    {.id = "D12", .families = "MiniMax-M3 MXFP8",
     .method = method::mxfp8, .scheme = scheme::mxfp8,
     .keys = schema_set(block_sparse_moe_w123), .dense_keys = true, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::mx32, .scale_types = exponents,
     .block = block_rule::fixed},
    {.id = "D13", .families = "Kimi-K2-Thinking, K2.5",
     .method = method::compressed_tensors, .scheme = scheme::int4_group,
     .keys = schema_set(mlp_proj_packed), .dense_keys = true, .values = value::int4x8,
     .value_types = dtype_set(i32),
     .scale = part::weight_scale, .scales = scale::grp, .scale_types = floats,
     .block = block_rule::declared},
    {.id = "D14", .families = "gpt-oss",
     .method = method::mxfp4, .scheme = scheme::mxfp4,
     .keys = schema_set(mlp_stack_blocks), .dense_keys = false, .values = value::fp4blk,
     .value_types = bytes,
     .scale = part::scales, .scales = scale::mx32, .scale_types = bytes,
     .block = block_rule::fixed},
    {.id = "D15", .families = "Llama-4 FP8, per expert",
     .method = method::compressed_tensors, .scheme = scheme::fp8_row,
     .keys = schema_set(feed_forward_proj), .dense_keys = true, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::row, .scale_types = floats},
    {.id = "D16", .families = "Llama-4 with FBGEMM",
     .method = method::fbgemm_fp8, .scheme = scheme::fp8_row,
     .keys = schema_set(feed_forward_stack), .dense_keys = false, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::scale, .scales = scale::col3d, .scale_types = f32_only},
    {.id = "D16", .families = "FBGEMM beside the experts",
     .method = method::fbgemm_fp8, .scheme = scheme::fp8_row,
     .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::row, .scale_types = f32_only},
    {.id = "D17", .families = "Llama-4 ModelOpt FP8",
     .method = method::modelopt, .scheme = scheme::fp8_tensor,
     .keys = schema_set(feed_forward_stack), .dense_keys = false, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::tensor, .scale_types = f32_only},
    {.id = "D18", .families = "Mixtral FP8 (AutoFP8)",
     .method = method::fp8, .scheme = scheme::fp8_tensor,
     .keys = per_expert, .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::tensor, .scale_types = f32_only},
    {.id = "D18b", .families = "Mixtral FP8 (llm-compressor)",
     .method = method::compressed_tensors, .scheme = scheme::fp8_tensor,
     .keys = per_expert, .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::tensor, .scale_types = floats},
    {.id = "D19", .families = "llm-compressor FP8_BLOCK",
     .method = method::compressed_tensors, .scheme = scheme::fp8_block,
     .keys = per_expert, .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::blk, .scale_types = floats,
     .block = block_rule::declared},
    {.id = "D20", .families = "ModelOpt FP8",
     .method = method::modelopt, .scheme = scheme::fp8_tensor,
     .keys = per_expert, .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::tensor, .scale_types = f32_only},
    {.id = "D21", .families = "ModelOpt FP8 per channel",
     .method = method::modelopt, .scheme = scheme::fp8_row,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::row, .scale_types = f32_only},
    {.id = "D22", .families = "ModelOpt FP8 blocks",
     .method = method::modelopt, .scheme = scheme::fp8_block,
     .keys = schema_set(mlp_proj, mtp_mlp_proj), .dense_keys = true, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::blk4d, .scale_types = f32_only,
     .block = block_rule::declared},
    {.id = "D22b", .families = "ModelOpt FP8 blocks in MTP layers",
     .method = method::modelopt, .scheme = scheme::fp8_block,
     .keys = schema_set(mtp_mlp_proj), .dense_keys = true, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = f32_bf16,
     .block = block_rule::declared},
    {.id = "D23", .families = "ModelOpt NVFP4",
     .method = method::modelopt, .scheme = scheme::nvfp4,
     .keys = schema_set(mlp_proj, mixer_proj), .dense_keys = true, .values = value::fp4x2,
     .value_types = bytes,
     .scale = part::weight_scale, .global = part::weight_scale_2, .scales = scale::nv16_mul,
     .scale_types = fp8, .block = block_rule::fixed},
    {.id = "D24", .families = "compressed-tensors NVFP4",
     .method = method::compressed_tensors, .scheme = scheme::nvfp4,
     .keys = schema_set(mlp_proj_packed), .dense_keys = true, .values = value::fp4x2,
     .value_types = bytes,
     .scale = part::weight_scale, .global = part::weight_global_scale, .scales = scale::nv16_div,
     .scale_types = fp8, .block = block_rule::fixed},
    {.id = "D25a", .families = "compressed-tensors MXFP4",
     .method = method::compressed_tensors, .scheme = scheme::mxfp4,
     .keys = schema_set(mlp_proj_packed), .dense_keys = true, .values = value::fp4x2,
     .value_types = bytes,
     .scale = part::weight_scale, .scales = scale::mx32, .scale_types = bytes,
     .block = block_rule::fixed},
    {.id = "D25b", .families = "compressed-tensors MXFP8",
     .method = method::compressed_tensors, .scheme = scheme::mxfp8,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::mx32, .scale_types = bytes,
     .block = block_rule::fixed},
    {.id = "D26", .families = "Ling v3 with MXFP4 experts",
     .method = method::fp8, .scheme = scheme::unstated, .experts = expert_rule::mxfp4,
     .keys = schema_set(mlp_proj), .dense_keys = false, .values = value::fp4x2,
     .value_types = dtype_set(u8, i8),
     .scale = part::weight_scale_inv, .scales = scale::mx32, .scale_types = exponents,
     .block = block_rule::fixed},
    {.id = "D27", .families = "Step-3.5",
     .method = method::fp8, .scheme = scheme::fp8_block,
     .keys = schema_set(moe_stack), .dense_keys = false, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = f32_bf16,
     .block = block_rule::declared},
    {.id = "D28", .families = "Granite MoE, Mixtral FP8_DYNAMIC",
     .method = method::compressed_tensors, .scheme = scheme::fp8_row,
     .keys = outside_mlp, .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale, .scales = scale::row, .scale_types = floats},
    {.id = "D29", .families = "Mistral",
     .method = method::mistral, .scheme = scheme::fp8_tensor,
     .keys = schema_set(experts_w123), .dense_keys = true, .values = value::e4m3,
     .value_types = fp8,
     .scale = part::qscale_weight, .scales = scale::tensor, .scale_types = f32_bf16},
    {.id = "D29b", .families = "Mistral-Large-3",
     .model_types = "mistral3 mistral_large_3 deepseek_v3",
     .method = method::fp8, .scheme = scheme::fp8_tensor,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::tensor, .scale_types = f32_bf16},
    {.id = "D30", .families = "saved by Transformers",
     .method = method::fp8, .scheme = scheme::fp8_block, .scale_format = scale_fmt::not_ue8m0,
     .keys = per_expert, .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = f32_only,
     .block = block_rule::declared},
    {.id = "D30", .families = "saved by Transformers",
     .method = method::fp8, .scheme = scheme::fp8_tensor,
     .keys = per_expert, .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::tensor, .scale_types = f32_only},
    {.id = "D31", .families = "other DeepSeek-style FP8",
     .method = method::fp8, .scheme = scheme::fp8_block, .scale_format = scale_fmt::not_ue8m0,
     .keys = schema_set(mlp_proj), .dense_keys = true, .values = value::e4m3, .value_types = fp8,
     .scale = part::weight_scale_inv, .scales = scale::blk, .scale_types = floats,
     .block = block_rule::declared},
};
// clang-format on

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
