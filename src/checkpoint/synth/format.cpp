#include "checkpoint/synth/format.hpp"

#include "core/fail.hpp"

namespace moe64::checkpoint {
namespace {

using enum file_dtype;

struct scale_choice {
  std::string_view id;
  file_dtype type;
  std::string_view activation;
};

/// What the releases were seen to use; F32 and no scale of activations for the others.
constexpr scale_choice choices[] = {
    {"D4", f8_e8m0, ""},
    {"D5", bf16, ""},
    {"D6", bf16, ""},
    {"D8", bf16, ""},
    {"D9", bf16, ""},
    {"D10", bf16, ""},
    {"D12", u8, ""},
    {"D13", bf16, ""},
    {"D14", u8, ""},
    {"D15", bf16, ""},
    {"D17", f32, "input_scale"},
    {"D18", f32, "input_scale"},
    {"D18b", bf16, "input_scale"},
    {"D19", bf16, ""},
    {"D20", f32, "input_scale"},
    {"D22b", bf16, ""},
    {"D23", f8_e4m3, "input_scale"},
    {"D24", f8_e4m3, "input_global_scale"},
    {"D25a", u8, ""},
    {"D25b", u8, ""},
    {"D26", f8_e8m0, ""},
    {"D28", bf16, ""},
    {"D29", f32, "qscale_act"},
    {"D29b", f32, "activation_scale"},
};

file_dtype value_type_of(dialect const& row) {
  for (file_dtype const type : {f8_e4m3, i32, u8, i8}) {
    if (row.value_types.contains(type)) return type;
  }
  fail(errc::internal, "[synth] {} stores values in no known type", row.id);
}

constexpr index_t group_of(scale_codec codec) {
  switch (codec) {
    case scale_codec::nv16_mul:
    case scale_codec::nv16_div:
      return 16;
    case scale_codec::mx32:
    case scale_codec::grp:
      return 32;
    case scale_codec::blk:
    case scale_codec::blk_pow2:
    case scale_codec::blk4d:
      return 128;
    case scale_codec::none:
    case scale_codec::row:
    case scale_codec::tensor:
    case scale_codec::col3d:
      return 0;
  }
  return 0;
}

std::string_view projection_word(projection_kind kind, bool numbered) {
  switch (kind) {
    case projection_kind::gate:
      return numbered ? "w1" : "gate_proj";
    case projection_kind::up:
      return numbered ? "w3" : "up_proj";
    case projection_kind::down:
      return numbered ? "w2" : "down_proj";
    case projection_kind::gate_up:
      return "gate_up_proj";
  }
  return {};
}

}  // namespace

synth_format synth_format_of(std::string_view dialect_id) {
  synth_format format;
  for (dialect const& row : dialect_table()) {
    if (row.id != dialect_id) continue;
    format.row = &row;
    format.value_type = value_type_of(row);
    format.block_cols = group_of(row.scales);
    format.block_rows = format.block_cols == 128 ? 128 : 0;
    break;  // the first row of an id is that of its experts
  }
  for (scale_choice const& choice : choices) {
    if (choice.id != dialect_id) continue;
    format.scale_type = choice.type;
    format.activation = choice.activation;
  }
  return format;
}

key_schema synth_schema(synth_family const& family, synth_format const& format) {
  // the BF16 release of Llama-4 is fused, though its FP8 one is not
  bool const fused = family.schemas.contains(key_schema::feed_forward_stack);
  if (format.row == nullptr && fused) return key_schema::feed_forward_stack;
  for (int i = 0; i < key_schema_count; ++i) {
    auto const schema = static_cast<key_schema>(i);
    if (format.row == nullptr) {
      // gpt-oss has plain stacks under other names than its codes
      if (family.schemas.contains(schema)) return schema;
      continue;
    }
    bool const packed =
        schema == key_schema::mlp_proj_packed && family.schemas.contains(key_schema::mlp_proj);
    if (format.row->keys.contains(schema) && (packed || family.schemas.contains(schema))) {
      return schema;
    }
  }
  fail(errc::invalid_argument,
       "[synth] {} cannot be written in {}, whose experts are named in "
       "another way",
       family.name, format.row == nullptr ? "plain" : format.row->id);
}

module_format synth_module_format(synth_format const& format, key_schema schema,
                                  projection_kind kind, synth_extents const& extents,
                                  bool interleaved) {
  index_t const hidden = extents.at("hidden");
  index_t const inter = extents.at("inter");
  module_format result;
  result.row = format.row;
  result.value_type = format.value_type;
  result.stacked = is_stacked(schema);
  result.fused = kind == projection_kind::gate_up;
  result.experts = result.stacked ? extents.at("experts") : 1;
  result.transposed = schema == key_schema::mlp_stack || schema == key_schema::feed_forward_stack;
  if (interleaved && result.fused) result.gate_up = gate_up_layout::interleaved;
  bool const down = kind == projection_kind::down;
  result.rows = down ? hidden : (result.fused ? checked_mul(inter, 2) : inter);
  result.cols = down ? inter : hidden;
  if (format.row == nullptr) return result;
  result.values = format.row->values;
  result.scales = format.row->scales;
  result.scale_type = format.scale_type;
  result.block_rows = format.block_rows;
  result.block_cols = format.block_cols;
  return result;
}

std::string synth_module_name(key_schema schema, std::string_view layer, projection_kind kind,
                              index_t expert) {
  auto const named = [&](std::string_view words, bool numbered) {
    return fmt::format("{}.{}.{}.{}", layer, words, expert, projection_word(kind, numbered));
  };
  switch (schema) {
    case key_schema::mlp_proj:
    case key_schema::mlp_proj_packed:
    case key_schema::mtp_mlp_proj:
      return named("mlp.experts", false);
    case key_schema::block_sparse_moe_w123:
      return named("block_sparse_moe.experts", true);
    case key_schema::ffn_w123:
      return named("ffn.experts", true);
    case key_schema::feed_forward_proj:
      return named("feed_forward.experts", false);
    case key_schema::feed_forward_w123:
      return named("feed_forward.experts", true);
    case key_schema::mixer_proj:
      return named("mixer.experts", false);
    case key_schema::experts_w123:
      return named("experts", true);
    case key_schema::mlp_stack:
    case key_schema::mlp_stack_blocks:
      return fmt::format("{}.mlp.experts.{}", layer, projection_word(kind, false));
    case key_schema::feed_forward_stack:
      return fmt::format("{}.feed_forward.experts.{}", layer, projection_word(kind, false));
    case key_schema::mlp_stack_w13:
      return fmt::format("{}.mlp.experts.{}", layer,
                         kind == projection_kind::down ? "w2_weight" : "w13_weight");
    case key_schema::moe_stack:
      return fmt::format("{}.moe.{}", layer, projection_word(kind, false));
    case key_schema::block_sparse_moe_stack:
      return fmt::format("{}.block_sparse_moe.{}_linear", layer,
                         kind == projection_kind::down ? "output" : "input");
  }
  return {};
}

std::string synth_part_name(key_schema schema, std::string_view module, std::string_view word) {
  bool const bare = schema == key_schema::mlp_stack || schema == key_schema::mlp_stack_blocks ||
                    schema == key_schema::feed_forward_stack || schema == key_schema::mlp_stack_w13;
  if (!bare) {
    bool const packed = schema == key_schema::mlp_proj_packed && word == "weight";
    return fmt::format("{}.{}", module, packed ? "weight_packed" : word);
  }
  if (word == "weight")
    return fmt::format("{}{}", module, schema == key_schema::mlp_stack_blocks ? "_blocks" : "");
  if (word == "weight_scale_inv") word = "scale_inv";
  return fmt::format("{}_{}", module, word);
}

}  // namespace moe64::checkpoint
