#include "checkpoint/synth/plan.hpp"
#include "core/fail.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

using kind = synth_fault_kind;

std::string_view fault_name(kind wanted) {
  for (synth_fault_row const& row : synth_fault_table()) {
    if (row.kind == wanted) return row.name;
  }
  return "none";
}

new_tensor& file_of(synth_plan& plan, index_t tensor) {
  return plan.tensors[static_cast<std::size_t>(tensor)].file;
}

void drop(synth_plan& plan, index_t& tensor) {
  file_of(plan, tensor).name.clear();
  tensor = -1;
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

/// Whether a tensor beside the experts is of that kind; `inner` is its name within its layer.
bool is_taken_away(kind fault, std::string_view name, std::string_view inner) {
  switch (fault) {
    case kind::missing_embeddings:
      return inner.empty() && name.find("embed") != std::string_view::npos;
    case kind::missing_router:
      return ends_with_any("." + std::string(inner),
                           {".gate.weight", ".router.weight", ".router.layer.weight"});
    case kind::missing_attention:
      return ends_with_any(inner, {"attn.o_proj.weight", "attn.out_proj.weight", "attn.wo_b.weight",
                                   "attention.wo.weight"});
    case kind::missing_shared_expert:
      return inner.find("share") != std::string_view::npos &&
             ends_with_any(inner, {"down_proj.weight", "w2.weight"});
    default:
      return false;
  }
}

/// "model.layers.3." of "model.layers.3.mlp.experts.0.up_proj".
std::string_view layer_prefix(std::string_view module) {
  auto const at = module.find("layers.");
  return at == std::string_view::npos ? module : module.substr(0, module.find('.', at + 7) + 1);
}

index_t tensor_taken_away(synth_plan const& plan, synth_module const& target) {
  std::string_view const prefix = layer_prefix(target.name);
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    std::string_view const name = plan.tensors[i].file.name;
    bool const inside = name.starts_with(prefix);
    std::string_view const inner = inside ? name.substr(prefix.size()) : std::string_view();
    bool const wanted = inside || plan.fault.kind == kind::missing_embeddings;
    if (!plan.tensors[i].part && wanted && is_taken_away(plan.fault.kind, name, inner)) {
      return static_cast<index_t>(i);
    }
  }
  fail(errc::invalid_argument, "[synth] fault '{}' does not fit {}, which has no such tensor",
       fault_name(plan.fault.kind), plan.like);
}

void drop_expert(synth_plan& plan, synth_module const& target) {
  std::string const own = target.name.substr(0, target.name.rfind('.') + 1);
  for (synth_tensor& tensor : plan.tensors) {
    if (tensor.file.name.starts_with(own)) tensor.file.name.clear();
  }
  std::erase_if(plan.modules,
                [&](synth_module const& module) { return module.name.starts_with(own); });
  plan.fault.module = -1;
}

}  // namespace

bool is_up(synth_module const& module) noexcept {
  return module.name.ends_with("up_proj") || module.name.ends_with("w3") ||
         module.name.ends_with("input_linear");
}

void choose_synth_fault(synth_plan& plan) {
  synth_fault_plan& fault = plan.fault;
  if (fault.kind == kind::none) return;
  bool const any_quantised =
      std::any_of(plan.modules.begin(), plan.modules.end(),
                  [](synth_module const& module) { return module.format.row != nullptr; });
  // a hole in the middle of the numbers is another fault than an expert less
  index_t const experts = plan.extents.at("experts");
  index_t const wanted = fault.kind == kind::missing_expert ? experts / 2 : experts - 1;
  std::vector<index_t> candidates;
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    synth_module const& module = plan.modules[i];
    bool const quantised = module.format.row != nullptr || !any_quantised;
    bool const expert = module.format.stacked || module.expert == wanted;
    if (quantised && expert && is_up(module)) candidates.push_back(static_cast<index_t>(i));
  }
  fault.module = candidates[candidates.size() / 2];
  synth_module const& module = plan.modules[static_cast<std::size_t>(fault.module)];
  std::string_view const refusal = synth_fault_refusal(fault.kind, module.format);
  if (!refusal.empty()) {
    fail(errc::invalid_argument, "[synth] fault '{}' does not fit {}, which {}",
         fault_name(fault.kind), plan.dialect, refusal);
  }
  if (takes_away(fault.kind)) {
    fault.tensor = file_of(plan, tensor_taken_away(plan, module)).name;
    return;
  }
  bool const in_values = fault.kind == kind::zero_hole || fault.kind == kind::zero_matrix ||
                         fault.kind == kind::nan_code || fault.kind == kind::duplicate_tensor ||
                         fault.kind == kind::wrong_index || module.scales < 0;
  fault.tensor = file_of(plan, in_values ? module.values : module.scales).name;
}

void plant_in_names(synth_plan& plan) {
  if (plan.fault.module < 0) return;
  if (takes_away(plan.fault.kind)) {
    for (synth_tensor& tensor : plan.tensors) {
      if (tensor.file.name == plan.fault.tensor) tensor.file.name.clear();
    }
    return;
  }
  synth_module& target = plan.modules[static_cast<std::size_t>(plan.fault.module)];
  switch (plan.fault.kind) {
    case kind::dropped_scale:
      drop(plan, target.scales);
      break;
    case kind::orphan_scale:
      drop(plan, target.values);
      break;
    case kind::wrong_scale_shape: {
      auto& shape = file_of(plan, target.scales).shape;
      if (shape.empty()) shape = {1};
      shape.back() += 1;
      break;
    }
    case kind::duplicate_scale: {
      bool const inverse = target.format.row->scale == tensor_part::weight_scale_inv;
      auto const shape = file_of(plan, target.scales).shape;
      target.second_scales =
          add_synth_part(plan, target, inverse ? "weight_scale" : "weight_scale_inv",
                         target.format.scale_type, shape);
      break;
    }
    case kind::missing_expert:
      drop_expert(plan, target);
      break;
    default:
      break;
  }
}

}  // namespace moe64::checkpoint
