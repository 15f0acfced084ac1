#include "checkpoint/naming/module_inventory.hpp"

#include "checkpoint/dialect/table.hpp"
#include "checkpoint/findings/quoted.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace moe64::checkpoint {
namespace {

class inventory_taker {
 public:
  inventory_taker(model_config const& config, findings& found)
      : layers_(config.geometry.layers ? config.geometry.layers->value : -1), found_(found) {}

  module_inventory take(std::span<tensor_entry const> tensors) {
    for (tensor_entry const& tensor : tensors) {
      if (auto const key = match_key(tensor.name)) {
        add_expert(tensor, *key);
      } else {
        add_dense(tensor);
      }
    }
    std::stable_sort(result_.experts.begin(), result_.experts.end(),
                     [](module_tensors const& left, module_tensors const& right) {
                       return order(left) < order(right);
                     });
    // beside other experts `.scale` is the name of an ordinary parameter, of norms for example
    bool const scale_is_ours = std::any_of(
        result_.experts.begin(), result_.experts.end(),
        [](module_tensors const& module) { return module.schema == key_schema::ffn_w123; });
    std::erase_if(result_.dense,
                  [&](module_tensors const& module) { return is_ordinary(module, scale_is_ours); });
    return std::move(result_);
  }

 private:
  static std::tuple<bool, index_t, projection_kind, index_t> order(module_tensors const& module) {
    return {module.mtp, module.layer, module.projection, module.expert};
  }

  void add_expert(tensor_entry const& tensor, tensor_key const& key) {
    ++result_.expert_tensors;
    // names with a common beginning are neighbours, so a module is complete before the next starts
    if (result_.experts.empty() || result_.experts.back().module != key.module) {
      module_tensors module;
      module.module = key.module;
      module.schema = key.schema;
      module.projection = key.projection;
      module.expert_module = true;
      module.mtp = key.mtp || (layers_ >= 0 && key.layer >= layers_);
      module.layer = key.layer;
      module.expert = key.expert;
      result_.experts.push_back(module);
    }
    module_tensors& module = result_.experts.back();
    if (key.part == tensor_part::weight) {
      module.schema = key.schema;
      module.packed = key.schema == key_schema::mlp_proj_packed;
    }
    if (key.part == tensor_part::unknown) {
      found_.error(errc::unsupported, "unknown-expert-tensor", tensor.name,
                   "tensor {} belongs to an expert but is of no known kind", quoted(tensor.name));
    }
    if (key.part == tensor_part::activation_scale) ++result_.activation_scales;
    place(module, key.part, tensor);
  }

  void add_dense(tensor_entry const& tensor) {
    ++result_.other_tensors;
    if (tensor.name.find("shared_expert") != std::string_view::npos) {
      ++result_.shared_expert_tensors;
    }
    dense_key const key = match_dense_key(tensor.name);
    if (key.part == tensor_part::activation_scale) ++result_.activation_scales;
    if (key.part == tensor_part::unknown) {
      refuse_unnamed(tensor);
      return;
    }
    auto const [entry, fresh] = dense_.try_emplace(key.module, result_.dense.size());
    if (fresh) {
      module_tensors module;
      module.module = key.module;
      result_.dense.push_back(module);
    }
    module_tensors& module = result_.dense[entry->second];
    if (key.part == tensor_part::weight) module.packed = key.packed;
    place(module, key.part, tensor);
  }

  /// Codes under a name that no rule gives a scale to.
  void refuse_unnamed(tensor_entry const& tensor) {
    bool const codes = tensor.type == file_dtype::f8_e4m3 || tensor.type == file_dtype::f8_e5m2 ||
                       tensor.type == file_dtype::f8_e4m3fnuz ||
                       tensor.type == file_dtype::f8_e5m2fnuz || tensor.type == file_dtype::f4;
    if (!codes) return;
    found_.error(errc::missing_scale, "missing-scale", tensor.name,
                 "tensor {} holds {} codes, but its name says nothing about a scale",
                 quoted(tensor.name), name(tensor.type));
  }

  void place(module_tensors& module, tensor_part part, tensor_entry const& tensor) {
    auto& slot = module.parts[static_cast<std::size_t>(part)];
    bool const many = part == tensor_part::unknown || part == tensor_part::activation_scale;
    if (slot != nullptr && !many) {
      found_.error(errc::invalid_argument, "duplicate-tensor", tensor.name,
                   "tensors {} and {} are both the {} of module {}", quoted(slot->name),
                   quoted(tensor.name), name(part), quoted(module.module));
      return;
    }
    slot = &tensor;
  }

  /// A weight that is a number by itself and has no scale, or no weight at all: nothing to resolve.
  static bool is_ordinary(module_tensors const& module, bool scale_is_ours) {
    for (int part = 0; part < tensor_part_count; ++part) {
      auto const which = static_cast<tensor_part>(part);
      bool const counts = which != tensor_part::scale || scale_is_ours;
      if (is_weight_scale(which) && counts && module.part(which) != nullptr) return false;
    }
    tensor_entry const* const values = module.values();
    if (values == nullptr) return true;
    // integer and boolean weights outside the experts (tables of ids) are data, not codes
    bool const codes = values->type == file_dtype::f8_e4m3 || values->type == file_dtype::f8_e5m2 ||
                       values->type == file_dtype::f8_e4m3fnuz ||
                       values->type == file_dtype::f8_e5m2fnuz || values->type == file_dtype::f4;
    return !codes && !module.packed;
  }

  index_t layers_;
  findings& found_;
  std::unordered_map<std::string_view, std::size_t> dense_;
  module_inventory result_;
};

}  // namespace

std::string_view module_tensors::any_name() const noexcept {
  if (values() != nullptr) return values()->name;
  for (tensor_entry const* const tensor : parts) {
    if (tensor != nullptr) return tensor->name;
  }
  return module;
}

module_inventory take_inventory(std::span<tensor_entry const> tensors, model_config const& config,
                                findings& found) {
  return inventory_taker(config, found).take(tensors);
}

}  // namespace moe64::checkpoint
