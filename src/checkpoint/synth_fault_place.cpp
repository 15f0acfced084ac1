#include "checkpoint/synth_plan.hpp"
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

bool is_up(synth_module const& module) {
  return module.name.ends_with("up_proj") || module.name.ends_with("w3") ||
         module.name.ends_with("input_linear");
}

new_tensor& file_of(synth_plan& plan, index_t tensor) {
  return plan.tensors[static_cast<std::size_t>(tensor)].file;
}

void drop(synth_plan& plan, index_t& tensor) {
  file_of(plan, tensor).name.clear();
  tensor = -1;
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
  bool const in_values = fault.kind == kind::nan_code || fault.kind == kind::duplicate_tensor ||
                         fault.kind == kind::wrong_index || module.scales < 0;
  fault.tensor = file_of(plan, in_values ? module.values : module.scales).name;
}

void plant_in_names(synth_plan& plan) {
  if (plan.fault.module < 0) return;
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
