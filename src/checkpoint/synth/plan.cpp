#include "checkpoint/synth/plan.hpp"

#include "core/fail.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

/// A line of synth_family::tensors.
struct tensor_line {
  std::string_view condition;
  std::string_view name;
  std::vector<std::string_view> extents;
  file_dtype type = file_dtype::bf16;
};

std::vector<tensor_line> parse_lines(synth_family const& family) {
  std::vector<tensor_line> lines;
  for (std::string_view text : family.tensors) {
    while (!text.empty()) {
      auto const end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      tensor_line parsed;
      while (!line.empty()) {
        auto const blank = std::min(line.find(' '), line.size());
        std::string_view const word = line.substr(0, blank);
        line.remove_prefix(std::min(blank + 1, line.size()));
        if (word.ends_with(':')) {
          parsed.condition = word.substr(0, word.size() - 1);
        } else if (word.starts_with('!')) {
          parsed.type = file_dtype_named(word.substr(1)).value();
        } else if (parsed.name.empty()) {
          parsed.name = word;
        } else {
          parsed.extents.push_back(word);
        }
      }
      if (!parsed.name.empty()) lines.push_back(parsed);
    }
  }
  return lines;
}

/// One layer that is being written.
struct layer_place {
  index_t number = 0;
  std::string name;  ///< "model.layers.3"
  bool moe = false;
  bool full = true;
  bool mtp = false;
  bool plain_experts = false;
};

class planner {
 public:
  explicit planner(synth_options const& options)
      : release_(synth_release_of(options.like, options.dialect)),
        family_(synth_family_named(release_.family)),
        format_(synth_format_of(release_.dialect)) {
    plan_.like = release_.like;
    plan_.model_type = family_.model_type;
    plan_.dialect = release_.dialect;
    plan_.stem = family_.params.empty() ? "model" : "consolidated";
    plan_.extents = scaled_down(synth_extents(family_.extents), options.scale_down, options.layers);
    plan_.fault.kind = synth_fault_named(options.fault);
    // NVFP4 releases of Qwen3.8 keep MTP layers in blocks: that is where D22b occurs
    mtp_format_ = format_;
    if (release_.dialect == "D22b") format_ = synth_format_of("D23");
    schema_ = synth_schema(family_, format_);
    with_mtp_ = options.mtp || release_.dialect == "D22b";
    if (with_mtp_ && family_.mtp == mtp_naming::none) {
      fail(errc::invalid_argument, "[synth] {} has no MTP layer", release_.like);
    }
  }

  synth_plan plan() {
    derive_extents();
    std::vector<tensor_line> const lines = parse_lines(family_);
    for (tensor_line const& line : lines) {
      if (!is_per_layer(line) && line.condition.empty()) add_line(line, {});
    }
    for (layer_place const& layer : places()) add_layer(layer, lines);
    choose_synth_fault(plan_);
    declare();
    plant_in_names(plan_);
    return std::move(plan_);
  }

 private:
  static bool is_per_layer(tensor_line const& line) { return line.name.starts_with('~'); }

  void derive_extents() {
    synth_extents& extents = plan_.extents;
    extents.set("mtp", with_mtp_ ? 1 : 0);
    if (extents.get("kv_heads", 0) == 0) extents.set("kv_heads", extents.at("heads"));
    if (extents.get("whole_heads", 0) > 0) {
      extents.set("head_dim", extents.at("hidden") / extents.at("heads"));
    }
    if (index_t const head = extents.get("head_dim", 0); head > 0) extents.set("rotary", head / 2);
    if (index_t const groups = extents.get("o_groups", 0); groups > 0) {
      extents.set("per_o_group", extents.at("heads") * extents.at("head_dim") / groups);
    }
  }

  std::vector<layer_place> places() {
    std::vector<layer_place> result;
    index_t const layers = plan_.extents.at("layers");
    for (index_t number = 0; number < layers; ++number) {
      layer_place layer;
      layer.number = number;
      layer.name = fmt::format("{}{}", family_.layer_prefix, number);
      layer.moe = synth_is_moe(plan_.extents, number);
      layer.full = synth_is_full(plan_.extents, number);
      result.push_back(layer);
      plan_.moe_layers += layer.moe ? 1 : 0;
    }
    mark_plain(result);
    if (with_mtp_) {
      layer_place layer;
      bool const apart = family_.mtp == mtp_naming::apart;
      layer.number = apart ? 0 : layers;
      layer.name =
          fmt::format("{}{}", apart ? family_.mtp_prefix : family_.layer_prefix, layer.number);
      layer.moe = layer.mtp = true;
      result.push_back(layer);
    }
    return result;
  }

  /// GLM-4.7-Flash leaves the experts of its first and last MoE layers as they are: a reader that
  /// looks at the first one alone takes the model for an unquantised one.
  void mark_plain(std::vector<layer_place>& layers) const {
    if (release_.dialect != "D6" || plan_.moe_layers < 2) return;
    auto const first =
        std::find_if(layers.begin(), layers.end(), [](auto const& layer) { return layer.moe; });
    first->plain_experts = true;
    if (plan_.moe_layers >= 4) layers.back().plain_experts = true;
  }

  void add_layer(layer_place const& layer, std::vector<tensor_line> const& lines) {
    for (tensor_line const& line : lines) {
      bool const wanted = line.condition == "mtp"      ? layer.mtp
                          : line.condition == "dense"  ? !layer.moe
                          : line.condition == "moe"    ? layer.moe
                          : line.condition == "full"   ? layer.full
                          : line.condition == "linear" ? !layer.full
                                                       : is_per_layer(line);
      if (wanted) add_line(line, layer.name);
    }
    if (!layer.moe) return;
    if (layer.plain_experts) {
      skipped_.push_back(fmt::format("re:{}\\.mlp\\.experts\\..*", escaped_dots(layer.name)));
    }
    bool const stacked = is_stacked(schema_);
    index_t const experts = stacked ? 1 : plan_.extents.at("experts");
    bool const fused = stacked && schema_ != key_schema::moe_stack;
    for (index_t expert = 0; expert < experts; ++expert) {
      if (fused) {
        add_module(layer, projection_kind::gate_up, expert);
      } else {
        add_module(layer, projection_kind::gate, expert);
        add_module(layer, projection_kind::up, expert);
      }
      add_module(layer, projection_kind::down, expert);
    }
  }

  static std::string escaped_dots(std::string_view name) {
    std::string result;
    for (char const c : name) result += c == '.' ? std::string("\\.") : std::string(1, c);
    return result;
  }

  void add_line(tensor_line const& line, std::string_view layer) {
    synth_tensor tensor;
    if (is_per_layer(line)) {
      tensor.file.name = std::string(layer) + std::string(line.name.substr(1));
    } else if (line.name.starts_with('^')) {
      tensor.file.name = std::string(family_.model_prefix) + std::string(line.name.substr(1));
    } else {
      tensor.file.name = line.name;
    }
    tensor.file.type = line.type;
    index_t numbers = 1;
    for (std::string_view const extent : line.extents) {
      tensor.file.shape.push_back(plan_.extents.evaluate(extent));
      numbers = checked_mul(numbers, tensor.file.shape.back());
    }
    plan_.parameters = checked_add(plan_.parameters, numbers);
    std::string const& name = tensor.file.name;
    bool const weight = name.ends_with(".weight");
    if (weight && name.find("norm") != std::string::npos) tensor.fill = synth_fill::ones;
    bool const embeds = name.find("embed") != std::string::npos;
    if (weight && tensor.file.shape.size() == 2 && !embeds) {
      skipped_.push_back(name.substr(0, name.size() - 7));
    }
    plan_.tensors.push_back(std::move(tensor));
  }

  void add_module(layer_place const& layer, projection_kind kind, index_t expert) {
    synth_format const& format = layer.plain_experts ? plain_ : (layer.mtp ? mtp_format_ : format_);
    bool const apart = layer.mtp && family_.mtp == mtp_naming::apart;
    bool const own_naming = apart && schema_ != key_schema::ffn_w123;
    bool const interleaved = family_.name == "gpt-oss";
    synth_module module;
    module.schema = own_naming ? key_schema::mtp_mlp_proj : schema_;
    if (format.row == nullptr && module.schema == key_schema::mlp_proj_packed)
      module.schema = key_schema::mlp_proj;
    module.name = synth_module_name(module.schema, layer.name, kind, expert);
    module.format = synth_module_format(format, module.schema, kind, plan_.extents, interleaved);
    module.layer = layer.number + (apart ? plan_.extents.at("layers") : 0);
    module.expert = expert;
    module_format const& f = module.format;
    index_t const numbers = checked_mul(f.experts, checked_mul(f.rows, f.cols));
    plan_.parameters = checked_add(plan_.parameters, numbers);
    module.values = add_part(module, "weight", f.value_type, value_shape(f));
    if (f.row != nullptr) {
      plan_.tensors.back().scaled = true;
      module.scales = add_part(module, name(f.row->scale), f.scale_type, stored_scale_shape(f));
      if (f.row->global != tensor_part::unknown) {
        bool const divides = f.scales == scale_codec::nv16_div;
        module.global = add_part(module, name(f.row->global), file_dtype::f32,
                                 divides ? std::vector<index_t>{1} : std::vector<index_t>{});
      }
      add_extras(module, format);
    }
    if (interleaved) {
      add_part(module, "bias", file_dtype::bf16, {f.experts, f.rows});
      plan_.tensors.back().part = false;
    }
    plan_.modules.push_back(std::move(module));
  }

  void add_extras(synth_module const& module, synth_format const& format) {
    module_format const& f = module.format;
    if (!format.activation.empty()) {
      std::vector<index_t> const shape =
          f.scales == scale_codec::nv16_div ? std::vector<index_t>{1} : std::vector<index_t>{};
      add_part(module, format.activation, file_dtype::f32, shape);
      plan_.tensors.back().part = false;
      plan_.tensors.back().fill = synth_fill::positive;
    }
    if (f.values == value_codec::int4x8) {
      add_part(module, "weight_shape", file_dtype::i32, {2});
      plan_.tensors.back().part = false;
      plan_.tensors.back().fill = synth_fill::extents;
      plan_.tensors.back().rows = f.rows;
      plan_.tensors.back().cols = f.cols;
    }
  }

  index_t add_part(synth_module const& module, std::string_view word, file_dtype type,
                   std::vector<index_t> shape) {
    return add_synth_part(plan_, module, word, type, std::move(shape));
  }

  static std::vector<index_t> value_shape(module_format const& f) {
    std::vector<index_t> shape;
    if (f.stacked) shape.push_back(f.experts);
    switch (f.values) {
      case value_codec::fp4x2:
        shape.insert(shape.end(), {f.rows, f.cols / 2});
        break;
      case value_codec::fp4blk:
        shape.insert(shape.end(), {f.rows, f.cols / 32, 16});
        break;
      case value_codec::int4x8:
        shape.insert(shape.end(), {f.rows, ceil_div(f.cols, 8)});
        break;
      case value_codec::plain:
      case value_codec::e4m3:
        shape.insert(shape.end(), {f.transposed ? f.cols : f.rows, f.transposed ? f.rows : f.cols});
        break;
    }
    return shape;
  }

  /// ModelOpt writes one number per row as a vector.
  static std::vector<index_t> stored_scale_shape(module_format const& f) {
    if (f.row->id == "D21") return {f.rows};
    return scale_shape(f);
  }

  void declare() {
    synth_format stated = format_;
    if (plan_.fault.is(synth_fault_kind::wrong_block_size)) {
      bool const square = stated.row->method == quant_method::modelopt;  // one number states it
      if (square) stated.block_cols /= 2;
      if (stated.block_rows == 0) stated.block_cols *= 2;
      stated.block_rows /= 2;
    }
    synth_declaration declared = synth_declare(stated, with_mtp_ ? mtp_format_ : stated, skipped_);
    if (plan_.fault.is(synth_fault_kind::missing_declaration)) declared = {};
    if (!family_.params.empty()) {
      plan_.documents.emplace_back(
          "params.json",
          "{\n  " + synth_text(family_.params, plan_.extents) + declared.params + "\n}\n");
      return;
    }
    std::string config;
    for (std::string_view const text : family_.config) config += text;
    plan_.documents.emplace_back(
        "config.json", "{\n  " + synth_text(config, plan_.extents) + declared.config + "\n}\n");
    if (!declared.hf_quant_config.empty()) {
      plan_.documents.emplace_back("hf_quant_config.json", declared.hf_quant_config);
    }
  }

  synth_release release_;
  synth_family const& family_;
  synth_format format_;
  synth_format mtp_format_;
  synth_format plain_;
  key_schema schema_ = key_schema::mlp_proj;
  bool with_mtp_ = false;
  std::vector<std::string> skipped_;
  synth_plan plan_;
};

}  // namespace

index_t add_synth_part(synth_plan& plan, synth_module const& module, std::string_view word,
                       file_dtype type, std::vector<index_t> shape) {
  synth_tensor tensor;
  tensor.file = {synth_part_name(module.schema, module.name, word), type, std::move(shape)};
  tensor.part = true;
  plan.tensors.push_back(std::move(tensor));
  return static_cast<index_t>(plan.tensors.size()) - 1;
}

synth_plan plan_synthesis(synth_options const& options) { return planner(options).plan(); }

}  // namespace moe64::checkpoint
