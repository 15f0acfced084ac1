#include "moe64/index.hpp"
#include "support/checkpoint_builder.hpp"

namespace moe64::test {
namespace {

using checkpoint::key_schema;
using checkpoint::scale_codec;
using checkpoint::value_codec;
using enum file_dtype;

constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;
constexpr index_t experts = case_extents::experts;

using extents = std::vector<index_t>;
extents blocks(index_t rows, index_t cols) { return {ceil_div(rows, 128), ceil_div(cols, 128)}; }
extents blocks4d(index_t rows, index_t cols) {
  return {ceil_div(rows, 128), 1, ceil_div(cols, 128), 1};
}
extents rows_of(index_t rows, index_t) { return {rows, 1}; }
extents flat_rows(index_t rows, index_t) { return {rows}; }
extents one(index_t, index_t) { return {}; }
extents groups32(index_t rows, index_t cols) { return {rows, ceil_div(cols, 32)}; }
extents groups16(index_t rows, index_t cols) { return {rows, ceil_div(cols, 16)}; }

expert_tensors codes(std::string suffix, file_dtype scale_type,
                     extents (*shape)(index_t, index_t)) {
  expert_tensors result;
  result.scales = std::move(suffix);
  result.scale_type = scale_type;
  result.scale_shape = shape;
  return result;
}
expert_tensors packed(expert_tensors base, file_dtype type, index_t per_element,
                      std::string values = ".weight") {
  base.value_type = type;
  base.values_per_element = per_element;
  base.values = std::move(values);
  return base;
}
expert_tensors named(expert_tensors base, std::string prefix, bool numbered) {
  base.prefix = std::move(prefix);
  if (numbered) base.projections = {"w1", "w3", "w2"};
  return base;
}
expert_tensors with(expert_tensors base, std::string global, std::string activation,
                    std::string shape = {}) {
  base.global = std::move(global);
  base.activation = std::move(activation);
  base.shape = std::move(shape);
  return base;
}
auto adds(expert_tensors const& tensors) {
  return [tensors](checkpoint_builder& into) { add_experts(into, tensors); };
}

std::string const fp8_block =
    R"("quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"})";
std::string const fp8_block_ue8m0 =
    R"("quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]})";
std::string const fp8_whole =
    R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "static"})";
std::string type(std::string const& model, std::string const& rest) {
  return R"("model_type": ")" + model + R"(", )" + rest;
}
std::string groups(std::string const& format, std::string const& weights) {
  return R"("quantization_config": {"quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {)" +
         weights + R"(}, "input_activations": {"dynamic": true}}}})";
}
std::string const channel =
    groups("float-quantized", R"("num_bits": 8, "type": "float", "strategy": "channel")");
std::string modelopt(std::string const& algorithm, std::string const& rest = {}) {
  return R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": ")" + algorithm +
         R"(", "exclude_modules": ["lm_head", "*router*"])" + rest + "}}";
}

std::string const deep = "model.layers.0.mlp.experts.";
std::string const mixtral = "model.layers.0.block_sparse_moe.experts.";

void add_transposed(checkpoint_builder& into, std::string const& prefix) {
  into.add(prefix + "gate_up_proj", f8_e4m3, {experts, hidden, 2 * inter});
  into.add(prefix + "down_proj", f8_e4m3, {experts, inter, hidden});
}
void add_qwen_vl(checkpoint_builder& into) {
  std::string const prefix = "model.language_model.layers.0.mlp.experts.";
  add_transposed(into, prefix);
  into.add(prefix + "gate_up_proj_scale_inv", bf16,
           {experts, ceil_div(hidden, 128), ceil_div(2 * inter, 128)});
  into.add(prefix + "down_proj_scale_inv", bf16,
           {experts, ceil_div(inter, 128), ceil_div(hidden, 128)});
}
void add_fbgemm(checkpoint_builder& into) {
  std::string const prefix = "language_model.model.layers.0.feed_forward.experts.";
  add_transposed(into, prefix);
  into.add(prefix + "gate_up_proj_scale", f32, {experts, 1, 2 * inter});
  into.add(prefix + "down_proj_scale", f32, {experts, hidden, 1});
}
void add_llama_modelopt(checkpoint_builder& into) {
  std::string const prefix = "language_model.model.layers.0.feed_forward.experts.";
  add_transposed(into, prefix);
  for (std::string const module : {"gate_up_proj", "down_proj"}) {
    into.add(prefix + module + "_weight_scale", f32, {});
    into.add(prefix + module + "_input_scale", f32, {});
  }
}
void add_gpt_oss(checkpoint_builder& into) {
  into.add(deep + "gate_up_proj_blocks", u8, {experts, 2 * inter, hidden / 32, 16});
  into.add(deep + "gate_up_proj_scales", u8, {experts, 2 * inter, hidden / 32});
  into.add(deep + "gate_up_proj_bias", bf16, {experts, 2 * inter});
  into.add(deep + "down_proj_blocks", u8, {experts, hidden, inter / 32, 16});
  into.add(deep + "down_proj_scales", u8, {experts, hidden, inter / 32});
  into.add(deep + "down_proj_bias", bf16, {experts, hidden});
}
void add_step(checkpoint_builder& into) {
  std::string const prefix = "model.layers.0.moe.";
  for (std::string const module : {"gate_proj", "up_proj", "down_proj"}) {
    index_t const rows = module == "down_proj" ? hidden : inter;
    index_t const cols = module == "down_proj" ? inter : hidden;
    into.add(prefix + module + ".weight", f8_e4m3, {experts, rows, cols});
    into.add(prefix + module + ".weight_scale_inv", f32,
             {experts, ceil_div(rows, 128), ceil_div(cols, 128)});
  }
}
void add_granite(checkpoint_builder& into) {
  std::string const prefix = "model.layers.0.block_sparse_moe.";
  into.add(prefix + "input_linear.weight", f8_e4m3, {experts, 2 * inter, hidden});
  into.add(prefix + "input_linear.weight_scale", bf16, {experts, 2 * inter, 1});
  into.add(prefix + "output_linear.weight", f8_e4m3, {experts, hidden, inter});
  into.add(prefix + "output_linear.weight_scale", bf16, {experts, hidden, 1});
}

std::vector<dialect_case> make_cases() {
  using s = scale_codec;
  using k = key_schema;
  constexpr auto e4m3 = value_codec::e4m3;
  constexpr auto fp4x2 = value_codec::fp4x2;
  std::string const b128 = "block:128x128";
  auto const inv = [](file_dtype scale_type) {
    return codes(".weight_scale_inv", scale_type, blocks);
  };
  std::string const v4 =
      R"("scoring_func": "x", "swiglu_limit": 7.0, "hidden_activation": "silu", )";
  return {
      {"D1", type("deepseek_v3", fp8_block), "", "", adds(inv(f32)), k::mlp_proj, e4m3, s::blk,
       b128},
      {"D2", type("deepseek_v32", fp8_block_ue8m0), "", "", adds(inv(f32)), k::mlp_proj, e4m3,
       s::blk_pow2, b128},
      {"D3", type("deepseek_v4", v4 + R"("expert_dtype": "fp8", )" + fp8_block_ue8m0), "", "",
       adds(named(codes(".scale", f32, blocks), "layers.0.ffn.experts.", true)), k::ffn_w123, e4m3,
       s::blk_pow2, b128},
      {"D4", type("deepseek_v4", v4 + R"("expert_dtype": "fp4", )" + fp8_block_ue8m0), "", "",
       adds(
           packed(named(codes(".scale", f8_e8m0, groups32), "layers.0.ffn.experts.", true), i8, 2)),
       k::ffn_w123, fp4x2, s::mx32, "group:32"},
      {"D5", type("glm4_moe", channel), "", "", adds(codes(".weight_scale", bf16, rows_of)),
       k::mlp_proj, e4m3, s::row, "row"},
      {"D6", type("glm4_moe_lite", channel), "", "", adds(codes(".weight_scale", bf16, rows_of)),
       k::mlp_proj, e4m3, s::row, "row"},
      {"D7", type("glm_moe_dsa", fp8_block), "", "", adds(inv(f32)), k::mlp_proj, e4m3, s::blk,
       b128},
      {"D8", type("qwen3_moe", fp8_block), "", "", adds(inv(bf16)), k::mlp_proj, e4m3, s::blk,
       b128},
      {"D9", type("qwen3_5_moe", fp8_block), "", "",
       adds(named(inv(bf16), "model.language_model.layers.0.mlp.experts.", false)), k::mlp_proj,
       e4m3, s::blk, b128},
      {"D10", type("qwen3_vl_moe", R"("transformers_version": "4.57.0", )" + fp8_block), "", "",
       add_qwen_vl, k::mlp_stack, e4m3, s::blk, "group:128"},
      {"D11", type("minimax_m2", fp8_block), "", "", adds(named(inv(f32), mixtral, true)),
       k::block_sparse_moe_w123, e4m3, s::blk, b128},
      {"D12",
       type(
           "minimax_m3",
           R"("swiglu_alpha": 1.702, "swiglu_limit": 7.0, "quantization_config": {"quant_method": "mxfp8", "ignored_layers": ["lm_head"]})"),
       "", "",
       adds(named(codes(".weight_scale_inv", u8, groups32), "language_model." + mixtral, true)),
       k::block_sparse_moe_w123, e4m3, s::mx32, "group:32"},
      {"D13",
       type(
           "kimi_k2",
           groups(
               "pack-quantized",
               R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true)")),
       "", "",
       adds(with(packed(codes(".weight_scale", bf16, groups32), i32, 8, ".weight_packed"), "", "",
                 ".weight_shape")),
       k::mlp_proj_packed, value_codec::int4x8, s::grp, "group:32"},
      {"D14",
       type("gpt_oss", R"("swiglu_limit": 7.0, "quantization_config": {"quant_method": "mxfp4"})"),
       "", "", add_gpt_oss, k::mlp_stack_blocks, value_codec::fp4blk, s::mx32, "group:32"},
      {"D15", type("llama4", channel), "", "",
       adds(named(codes(".weight_scale", bf16, rows_of),
                  "language_model.model.layers.0.feed_forward.experts.", false)),
       k::feed_forward_proj, e4m3, s::row, "row"},
      {"D16", type("llama4", R"("quantization_config": {"quant_method": "fbgemm_fp8"})"), "", "",
       add_fbgemm, k::feed_forward_stack, e4m3, s::col3d, "row"},
      {"D17", R"("model_type": "llama4")", modelopt("FP8"), "", add_llama_modelopt,
       k::feed_forward_stack, e4m3, s::tensor, "tensor"},
      {"D18", type("mixtral", fp8_whole), "", "",
       adds(with(named(codes(".weight_scale", f32, one), mixtral, true), "", ".input_scale")),
       k::block_sparse_moe_w123, e4m3, s::tensor, "tensor"},
      {"D18b",
       type("mixtral",
            groups("float-quantized", R"("num_bits": 8, "type": "float", "strategy": "tensor")")),
       "", "",
       adds(with(named(codes(".weight_scale", bf16, one), mixtral, true), "", ".input_scale")),
       k::block_sparse_moe_w123, e4m3, s::tensor, "tensor"},
      {"D19",
       type(
           "qwen3_moe",
           groups(
               "float-quantized",
               R"("num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128])")),
       "", "", adds(codes(".weight_scale", bf16, blocks)), k::mlp_proj, e4m3, s::blk, b128},
      {"D20", R"("model_type": "deepseek_v3")", modelopt("FP8"), "",
       adds(with(codes(".weight_scale", f32, one), "", ".input_scale")), k::mlp_proj, e4m3,
       s::tensor, "tensor"},
      {"D21", R"("model_type": "deepseek_v3")", modelopt("FP8_PER_CHANNEL_PER_TOKEN"), "",
       adds(codes(".weight_scale", f32, flat_rows)), k::mlp_proj, e4m3, s::row, "row"},
      {"D22", R"("model_type": "deepseek_v3")", modelopt("FP8_PB_WO"), "",
       adds(codes(".weight_scale", f32, blocks4d)), k::mlp_proj, e4m3, s::blk4d, b128},
      {"D22b", R"("model_type": "qwen3_8_moe")",
       modelopt("FP8_BLOCK_SCALES", R"(, "group_size": 128)"), "",
       adds(named(inv(bf16), "mtp.layers.0.mlp.experts.", false)), k::mtp_mlp_proj, e4m3, s::blk,
       b128},
      {"D23", R"("model_type": "deepseek_v3")", modelopt("NVFP4", R"(, "group_size": 16)"), "",
       adds(with(packed(codes(".weight_scale", f8_e4m3, groups16), u8, 2), ".weight_scale_2",
                 ".input_scale")),
       k::mlp_proj, fp4x2, s::nv16_mul, "group:16"},
      {"D24",
       type("qwen3_moe",
            groups(
                "nvfp4-pack-quantized",
                R"("num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16)")),
       "", "",
       adds(with(packed(codes(".weight_scale", f8_e4m3, groups16), u8, 2, ".weight_packed"),
                 ".weight_global_scale", ".input_global_scale")),
       k::mlp_proj_packed, fp4x2, s::nv16_div, "group:16"},
      {"D25a",
       type("qwen3_moe",
            groups("mxfp4-pack-quantized",
                   R"("num_bits": 4, "type": "float", "strategy": "group", "group_size": 32)")),
       "", "", adds(packed(codes(".weight_scale", u8, groups32), u8, 2, ".weight_packed")),
       k::mlp_proj_packed, fp4x2, s::mx32, "group:32"},
      {"D25b",
       type("qwen3_moe",
            groups("mxfp8-quantized",
                   R"("num_bits": 8, "type": "float", "strategy": "group", "group_size": 32)")),
       "", "", adds(codes(".weight_scale", u8, groups32)), k::mlp_proj, e4m3, s::mx32, "group:32"},
      {"D26", type("bailing_moe_v3", R"("routed_experts_quant_method": "mxfp4", )" + fp8_block), "",
       "", adds(packed(codes(".weight_scale_inv", f8_e8m0, groups32), u8, 2)), k::mlp_proj, fp4x2,
       s::mx32, "group:32"},
      {"D27", type("step3p5", fp8_block), "", "", add_step, k::moe_stack, e4m3, s::blk, b128},
      {"D28", type("granitemoe", channel), "", "", add_granite, k::block_sparse_moe_stack, e4m3,
       s::row, "row"},
      {"D29", "", "",
       R"({"dim": 320, "n_layers": 1, "moe": {"num_experts": 3, "expert_hidden_dim": 192, "num_experts_per_tok": 2}, "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}})",
       adds(with(named(codes(".qscale_weight", f32, one), "layers.0.experts.", true), "",
                 ".qscale_act")),
       k::experts_w123, e4m3, s::tensor, "tensor"},
      {"D29b", type("mistral3", fp8_whole), "", "",
       adds(with(codes(".weight_scale_inv", bf16, one), "", ".activation_scale")), k::mlp_proj,
       e4m3, s::tensor, "tensor"},
      {"D30", type("olmoe", R"("transformers_version": "5.6.0", )" + fp8_block), "", "",
       adds(inv(f32)), k::mlp_proj, e4m3, s::blk, b128},
      {"D31", type("longcat_flash", fp8_block), "", "", adds(inv(f32)), k::mlp_proj, e4m3, s::blk,
       b128},
  };
}

}  // namespace

std::vector<dialect_case> const& dialect_cases() {
  static std::vector<dialect_case> const cases = make_cases();
  return cases;
}

}  // namespace moe64::test
