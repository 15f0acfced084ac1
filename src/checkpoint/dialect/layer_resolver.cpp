#include "checkpoint/dialect/layer_resolver.hpp"

#include "checkpoint/findings/quoted.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

projection_entry& entry_of(layer_entry& layer, projection_kind kind) {
  if (kind == projection_kind::down) return layer.down;
  return kind == projection_kind::up && is_gated(layer.schema) ? layer.up : layer.gate;
}

expert_source source_of(module_tensors const& module) {
  expert_source source;
  source.values = module.values();
  source.scales = scale_of(module);
  source.global = global_of(module);
  source.bias = module.part(tensor_part::bias);
  source.weight_shape = module.part(tensor_part::weight_shape);
  return source;
}

std::string describe(module_format const& format) {
  std::string text = fmt::format("[{}, {}] {}", format.rows, format.cols, name(format.value_type));
  if (format.scales != scale_codec::none) {
    text += fmt::format(" with {} {} scales", name(format.scale_type), name(format.scales));
  }
  return text;
}

}  // namespace

tensor_entry const* scale_of(module_tensors const& module) noexcept {
  for (int part = 0; part < tensor_part_count; ++part) {
    auto const which = static_cast<tensor_part>(part);
    if (is_weight_scale(which) && module.part(which) != nullptr) return module.part(which);
  }
  return nullptr;
}

tensor_entry const* global_of(module_tensors const& module) noexcept {
  tensor_entry const* const multiplies = module.part(tensor_part::weight_scale_2);
  return multiplies != nullptr ? multiplies : module.part(tensor_part::weight_global_scale);
}

void layer_resolver::add(std::span<module_tensors const> modules) {
  layer_entry layer;
  layer.layer = modules.front().layer;
  layer.mtp = modules.front().mtp;
  layer.schema = modules.front().schema;
  layer.sound = check_names(modules);
  for (std::size_t begin = 0; begin < modules.size();) {
    std::size_t end = begin;
    while (end < modules.size() && modules[end].projection == modules[begin].projection) ++end;
    if (!add_projection(modules.subspan(begin, end - begin), layer)) layer.sound = false;
    begin = end;
  }
  for (auto const& [entry, word] : {std::pair{&layer.gate, "gate"}, std::pair{&layer.up, "up"},
                                    std::pair{&layer.down, "down"}}) {
    if (entry->present() || (entry == &layer.up && !is_gated(layer.schema))) continue;
    found_.error(errc::invalid_argument, "missing-projection", modules.front().any_name(),
                 "{}layer {} has no {} matrices (it has {})", layer.mtp ? "MTP " : "", layer.layer,
                 word, quoted(modules.front().any_name()));
    layer.sound = false;
  }
  if (layer.sound) layer.sound = check_parts(layer, modules.front().any_name());
  layer.dialect = layer.down.module.row == nullptr ? "plain" : layer.down.module.row->id;
  into_.layers.push_back(std::move(layer));
}

/// One layer is named in one way, and no matrix is there twice.
bool layer_resolver::check_names(std::span<module_tensors const> modules) {
  bool good = true;
  for (module_tensors const& module : modules) {
    // reported where it was found: what an unknown tensor does to the weight is not known
    if (module.part(tensor_part::unknown) != nullptr) good = false;
  }
  for (std::size_t i = 1; i < modules.size(); ++i) {
    module_tensors const& before = modules[i - 1];
    module_tensors const& here = modules[i];
    if (here.projection == before.projection && here.expert == before.expert) {
      found_.error(errc::invalid_argument, "duplicate-expert", here.any_name(),
                   "modules {} and {} are the same matrix", quoted(before.module),
                   quoted(here.module));
      good = false;
    } else if (base_of(here.schema) != base_of(modules.front().schema)) {
      found_.error(errc::invalid_argument, "mixed-schemas", here.any_name(),
                   "layer {} has modules named like {} and like {}: {} and {}", here.layer,
                   name(modules.front().schema), name(here.schema), quoted(modules.front().module),
                   quoted(here.module));
      return false;
    }
  }
  return good;
}

bool layer_resolver::add_projection(std::span<module_tensors const> modules, layer_entry& layer) {
  return modules.front().expert < 0 ? add_stack(modules, layer) : add_experts(modules, layer);
}

void layer_resolver::count(module_tensors const& module, bool fits) {
  bool const codes = module.values() != nullptr && !is_plain(module.values()->type);
  into_.weights_found += codes ? 1 : 0;
  into_.scales_found += scale_of(module) != nullptr ? 1 : 0;
  into_.matched += codes && fits ? 1 : 0;
}

bool layer_resolver::add_stack(std::span<module_tensors const> modules, layer_entry& layer) {
  module_tensors const& module = modules.front();
  auto const format = modules_.resolve(module);
  count(module, format.has_value());
  if (!format) {
    // it is there, even if it cannot be read
    entry_of(layer, module.projection).experts.resize(1);
    if (module.projection == projection_kind::gate_up) layer.up.experts.resize(1);
    return false;
  }
  if (layer.experts == 0) layer.experts = format->experts;
  index_t const expected = stated_experts_ > 0 ? stated_experts_ : layer.experts;
  if (format->experts != expected) {
    found_.error(errc::shape_mismatch, "expert-count", module.any_name(),
                 "tensor {} {} holds {} experts, expected {}", quoted(module.any_name()),
                 shape_text(module.values()->shape), format->experts, expected);
    return false;
  }
  bool good = true;
  for (int part = 0; part < (format->fused ? 2 : 1); ++part) {
    projection_entry& entry = part == 1 ? layer.up : entry_of(layer, module.projection);
    entry.module = *format;
    entry.format = part_format(*format, part);
    entry.stacked = true;
    entry.experts.assign(static_cast<std::size_t>(format->experts), source_of(module));
    index_t slice = 0;
    for (expert_source& source : entry.experts) source.slice = slice++;
    good = add_bias(module, entry, part) && good;
  }
  return good;
}

bool layer_resolver::add_experts(std::span<module_tensors const> modules, layer_entry& layer) {
  projection_entry& entry = entry_of(layer, modules.front().projection);
  bool good = true;
  bool first = true;
  for (module_tensors const& module : modules) {
    auto const format = modules_.resolve(module);
    count(module, format.has_value());
    entry.experts.push_back(format ? source_of(module) : expert_source());
    if (!format) {
      good = false;
      continue;
    }
    if (first) {
      first = false;
      entry.module = *format;
      entry.format = part_format(*format, 0);
      entry.has_bias = module.part(tensor_part::bias) != nullptr;
    } else if (!(entry.module == *format)) {
      found_.error(errc::dtype_mismatch, "mixed-formats", module.any_name(),
                   "tensor {} is {}, other experts of the layer are {}", quoted(module.any_name()),
                   describe(*format), describe(entry.module));
      good = false;
    }
    good = add_bias(module, entry, 0) && good;
  }
  layer.experts = std::max(layer.experts, static_cast<index_t>(entry.experts.size()));
  return check_count(modules, static_cast<index_t>(entry.experts.size())) && good;
}

/// Expert ids are 0 to E - 1 without gaps, and E is what the config states.
bool layer_resolver::check_count(std::span<module_tensors const> modules, index_t experts) {
  module_tensors const& front = modules.front();
  index_t expected = 0;
  for (module_tensors const& module : modules) {
    if (module.expert > expected) {
      found_.set_place({module.layer, module.mtp, std::string(name(module.projection)), expected});
      found_.error(errc::invalid_argument, "missing-expert", module.any_name(),
                   "{}layer {} has no {} matrix of expert {}; the next is {}",
                   module.mtp ? "MTP " : "", module.layer, name(module.projection), expected,
                   quoted(module.any_name()));
      found_.set_place({});
      return false;
    }
    expected = module.expert + 1;
  }
  if (stated_experts_ <= 0 || experts == stated_experts_) return true;
  found_.error(errc::shape_mismatch, "expert-count", front.any_name(),
               "{}layer {} has {} {} matrices ({} and others), expected {} experts",
               front.mtp ? "MTP " : "", front.layer, experts, name(front.projection),
               quoted(front.any_name()), stated_experts_);
  return false;
}

bool layer_resolver::add_bias(module_tensors const& module, projection_entry& entry, int part) {
  tensor_entry const* const bias = module.part(tensor_part::bias);
  if (entry.stacked) entry.has_bias = bias != nullptr;
  if (entry.has_bias != (bias != nullptr)) {
    found_.error(errc::invalid_argument, "missing-bias", module.any_name(),
                 "module {} {} a bias, other experts of the layer {}", quoted(module.module),
                 bias != nullptr ? "has" : "has not", bias != nullptr ? "have not" : "have");
    return false;
  }
  if (bias == nullptr) return true;
  module_format const& format = entry.module;
  std::vector<index_t> shape;
  if (entry.stacked) shape.push_back(format.experts);
  shape.push_back(format.rows);
  if (!is_plain(bias->type) ||
      !std::equal(shape.begin(), shape.end(), bias->shape.begin(), bias->shape.end())) {
    found_.error(errc::shape_mismatch, "bad-bias", bias->name,
                 "tensor {} is {} {}, expected {} F32, BF16 or F16", quoted(bias->name),
                 shape_text(bias->shape), name(bias->type), shape_text(shape));
    return false;
  }
  entry.bias_type = library_scale_type(bias->type);
  bool const interleaved = format.fused && format.gate_up == gate_up_layout::interleaved;
  entry.bias = {interleaved ? part : part * entry.format.rows, interleaved ? 2 : 1, 0, format.rows};
  return true;
}

/// Without a gate: one matrix and down.
bool layer_resolver::check_alone(layer_entry const& layer, std::string_view any_name) {
  stack_format const& first = layer.gate.format;
  bool const fits = layer.gate.experts.size() == layer.down.experts.size() &&
                    layer.down.format.cols == first.rows && layer.down.format.rows == first.cols;
  if (fits) return true;
  found_.error(errc::shape_mismatch, "mixed-formats", any_name,
               "{}layer {}: up is {} of {} experts, down {} of {}", layer.mtp ? "MTP " : "",
               layer.layer, describe(layer.gate.module), layer.gate.experts.size(),
               describe(layer.down.module), layer.down.experts.size());
  return false;
}

/// The library takes gate and up of one type and granularity.
bool layer_resolver::check_parts(layer_entry const& layer, std::string_view any_name) {
  stack_format const& gate = layer.gate.format;
  if (!is_gated(layer.schema)) return check_alone(layer, any_name);
  stack_format const& up = layer.up.format;
  bool const same_counts = layer.gate.experts.size() == layer.up.experts.size() &&
                           layer.gate.experts.size() == layer.down.experts.size();
  bool const same = gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols &&
                    gate.layout == up.layout && gate.scale_type == up.scale_type &&
                    gate.direction == up.direction && layer.gate.has_bias == layer.up.has_bias;
  bool const fits = layer.down.format.cols == gate.rows && layer.down.format.rows == gate.cols;
  if (same_counts && same && fits) return true;
  found_.error(errc::shape_mismatch, "mixed-formats", any_name,
               "{}layer {}: gate is {} of {} experts, up {} of {}, down {} of {}",
               layer.mtp ? "MTP " : "", layer.layer, describe(layer.gate.module),
               layer.gate.experts.size(), describe(layer.up.module), layer.up.experts.size(),
               describe(layer.down.module), layer.down.experts.size());
  return false;
}

}  // namespace moe64::checkpoint
