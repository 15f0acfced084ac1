#include "checkpoint/json/write.hpp"
#include "checkpoint/synth/format.hpp"
#include "core/fail.hpp"

namespace moe64::checkpoint {
namespace {

std::string list_of(std::vector<std::string> const& names) {
  std::string text = "[";
  for (std::string const& name : names) {
    text += text.size() == 1 ? "\n      " : ",\n      ";
    append_json_text(text, name);
  }
  return text + (names.empty() ? "]" : "\n    ]");
}

std::string_view algorithm_of(synth_format const& format) {
  switch (format.row->scales) {
    case scale_codec::tensor:
      return "FP8";
    case scale_codec::row:
      return "FP8_PER_CHANNEL_PER_TOKEN";
    case scale_codec::nv16_mul:
      return "NVFP4";
    case scale_codec::blk4d:
      return "FP8_PB_WO";
    default:
      return "FP8_BLOCK_SCALES";
  }
}

std::string modelopt(synth_format const& format, synth_format const& mtp,
                     std::vector<std::string> const& skipped) {
  std::string quantization;
  auto const algorithm = [](synth_format const& one) {
    return fmt::format(
        R"("quant_algo": "{}"{})", algorithm_of(one),
        one.block_cols > 0 ? fmt::format(R"(, "group_size": {})", one.block_cols) : std::string());
  };
  if (mtp.row == format.row) {
    quantization = algorithm(format);
  } else {
    quantization = fmt::format(
        R"("quant_algo": "MIXED_PRECISION",
    "quantized_layers": {{
      "mtp*": {{{}}},
      "*": {{{}}}
    }})",
        algorithm(mtp), algorithm(format));
  }
  return fmt::format(R"({{
  "producer": {{"name": "modelopt", "version": "0.39.0"}},
  "quantization": {{
    {},
    "kv_cache_quant_algo": null,
    "exclude_modules": {}
  }}
}}
)",
                     quantization, list_of(skipped));
}

struct group_words {
  std::string_view format;
  std::string weights;
};

group_words group_of(synth_format const& format) {
  auto const words = [&](std::string_view storage, int bits, std::string_view type,
                         std::string_view strategy) {
    std::string text = fmt::format(
        R"("num_bits": {}, "type": "{}", "strategy": "{}", "symmetric": true, "dynamic": false)",
        bits, type, strategy);
    if (strategy == "block") {
      text += fmt::format(R"(, "block_structure": [{}, {}])", format.block_rows, format.block_cols);
    } else if (format.block_cols > 0) {
      text += fmt::format(R"(, "group_size": {})", format.block_cols);
    }
    return group_words{storage, text};
  };
  switch (format.row->scales) {
    case scale_codec::row:
      return words("float-quantized", 8, "float", "channel");
    case scale_codec::tensor:
      return words("float-quantized", 8, "float", "tensor");
    case scale_codec::blk:
      return words("float-quantized", 8, "float", "block");
    case scale_codec::grp:
      return words("pack-quantized", 4, "int", "group");
    case scale_codec::nv16_div:
      return words("nvfp4-pack-quantized", 4, "float", "tensor_group");
    case scale_codec::mx32:
      return format.row->values == value_codec::e4m3
                 ? words("mxfp8-quantized", 8, "float", "group")
                 : words("mxfp4-pack-quantized", 4, "float", "group");
    default:
      fail(errc::internal, "[synth] {} is not of compressed-tensors", format.row->id);
  }
}

std::string compressed_tensors(synth_format const& format, std::string const& skipped) {
  group_words const group = group_of(format);
  std::string_view const dynamic = format.activation.empty() ? "true" : "false";
  bool const weights_only = format.row->values == value_codec::int4x8;
  std::string const activations =
      weights_only ? std::string("null")
                   : fmt::format(R"({{"num_bits": {}, "type": "float", "dynamic": {}}})",
                                 format.row->values == value_codec::fp4x2 ? 4 : 8, dynamic);
  return fmt::format(R"(
    "quant_method": "compressed-tensors",
    "format": "{}",
    "quantization_status": "compressed",
    "config_groups": {{
      "group_0": {{
        "targets": ["Linear"],
        "weights": {{{}}},
        "input_activations": {},
        "output_activations": null
      }}
    }},
    "ignore": {})",
                     group.format, group.weights, activations, skipped);
}

std::string fp8(synth_format const& format, std::string const& skipped) {
  dialect const& row = *format.row;
  std::string text = R"(
    "quant_method": "fp8",
    "fmt": "e4m3",)";
  bool const pow2 = row.scale_format == scale_format_rule::ue8m0 ||
                    row.experts == expert_rule::fp8 || row.experts == expert_rule::fp4;
  if (pow2)
    text += R"(
    "scale_fmt": "ue8m0",)";
  if (row.scheme == weight_scheme::fp8_tensor) {
    text += R"(
    "activation_scheme": "static",)";
  } else {
    // the declaration speaks of the rest of the model where experts are in another format
    bool const own = row.scheme == weight_scheme::fp8_block;
    text += fmt::format(R"(
    "activation_scheme": "dynamic",
    "weight_block_size": [{}, {}],)",
                        own ? format.block_rows : 128, own ? format.block_cols : 128);
  }
  return text + fmt::format(R"(
    "modules_to_not_convert": {})",
                            skipped);
}

}  // namespace

synth_declaration synth_declare(synth_format const& format, synth_format const& mtp,
                                std::vector<std::string> const& skipped) {
  synth_declaration result;
  if (format.row == nullptr) return result;
  dialect const& row = *format.row;
  std::string const list = list_of(skipped);
  std::string inner;
  switch (row.method) {
    case quant_method::modelopt:
      result.hf_quant_config = modelopt(format, mtp, skipped);
      return result;
    case quant_method::mistral:
      result.params = R"(,
  "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"})";
      return result;
    case quant_method::fp8:
      inner = fp8(format, list);
      break;
    case quant_method::compressed_tensors:
      inner = compressed_tensors(format, list);
      break;
    case quant_method::mxfp8:
      inner = fmt::format(R"(
    "quant_method": "mxfp8",
    "ignored_layers": {})",
                          list);
      break;
    case quant_method::mxfp4:
      inner = fmt::format(R"(
    "quant_method": "mxfp4",
    "modules_to_not_convert": {})",
                          list);
      break;
    case quant_method::fbgemm_fp8:
      inner = fmt::format(R"(
    "quant_method": "fbgemm_fp8",
    "activation_scale_ub": 1200.0,
    "modules_to_not_convert": {})",
                          list);
      break;
    case quant_method::none:
    case quant_method::unknown:
      fail(errc::internal, "[synth] {} declares nothing", row.id);
  }
  if (row.experts == expert_rule::fp8) result.config += ",\n  \"expert_dtype\": \"fp8\"";
  if (row.experts == expert_rule::fp4) result.config += ",\n  \"expert_dtype\": \"fp4\"";
  if (row.experts == expert_rule::mxfp4) {
    result.config += ",\n  \"routed_experts_quant_method\": \"mxfp4\"";
  }
  result.config += fmt::format(",\n  \"quantization_config\": {{{}\n  }}", inner);
  return result;
}

}  // namespace moe64::checkpoint
