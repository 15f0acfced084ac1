#include "checkpoint/diff/units.hpp"

#include <fmt/format.h>

#include <unordered_set>

namespace moe64::checkpoint {
namespace {

class side_builder {
 public:
  side_builder(checkpoint_reader::state const& opened, checkpoint_part const& part)
      : opened_(opened), part_(part) {}

  diff_side build() {
    std::vector<weight_module> const weights = weights_of(opened_.resolved);
    for (weight_module const& weight : weights) {
      for (tensor_entry const* const part :
           {weight.values, weight.scales, weight.global, weight.weight_shape}) {
        if (part != nullptr) used_.insert(part);
      }
      if (weight.format.values == value_codec::int4x8) {
        auto const* const shape = opened_.files.find(std::string(weight.module) + ".weight_shape");
        if (shape != nullptr) used_.insert(shape);
      }
      if (includes(part_, *weight.values)) add_weight(weight);
    }
    for (tensor_entry const& tensor : opened_.files.tensors()) {
      if (!used_.contains(&tensor) && includes(part_, tensor)) add_tensor(tensor);
    }
    return std::move(side_);
  }

 private:
  static std::string description(weight_module const& weight) {
    std::string text(name(weight.values->type));
    if (weight.quantised()) text += fmt::format(" {}", name(weight.format.scales));
    return text;
  }

  static std::string key_of(weight_module const& weight, index_t expert, projection_kind part) {
    return fmt::format("{}{:09} {:09} {}", weight.mtp ? "~mtp " : "~layer ", weight.layer, expert,
                       name(part));
  }

  void add_weight(weight_module const& weight) {
    side_.matrices.push_back(
        matrices_of(weight.format, weight.values, weight.scales, weight.global));
    stored_matrices const& matrices = side_.matrices.back();
    bool const fused = weight.format.fused;
    for (index_t slice = 0; slice < matrices.count; ++slice) {
      for (int part = 0; part < (fused ? 2 : 1); ++part) {
        diff_unit unit;
        unit.tensor = weight.values->name;
        if (weight.format.stacked) {
          unit.tensor += fmt::format("[{}]{}", slice, !fused ? "" : part == 0 ? ".gate" : ".up");
        }
        unit.stored = description(weight);
        unit.entries = {weight.values};
        if (weight.scales != nullptr) unit.entries.push_back(weight.scales);
        if (weight.global != nullptr) unit.entries.push_back(weight.global);
        unit.readable = true;
        unit.job.matrices = &matrices;
        unit.job.slice = slice;
        unit.job.transposed = weight.format.transposed;
        unit.job.rows = weight.format.rows / (fused ? 2 : 1);
        unit.job.cols = weight.format.cols;
        bool const interleaved = weight.format.gate_up == gate_up_layout::interleaved;
        if (fused) unit.job.first = interleaved ? part : part * unit.job.rows;
        if (fused && interleaved) unit.job.step = 2;
        projection_kind kind = weight.projection;
        if (fused) kind = part == 0 ? projection_kind::gate : projection_kind::up;
        std::string key = weight.of_experts
                              ? key_of(weight, weight.expert < 0 ? slice : weight.expert, kind)
                              : std::string(weight.module) + ".weight";
        side_.units.emplace(std::move(key), std::move(unit));
      }
    }
  }

  void add_tensor(tensor_entry const& tensor) {
    diff_unit unit;
    unit.tensor = tensor.name;
    unit.stored = name(tensor.type);
    unit.entries = {&tensor};
    auto const key = match_key(tensor.name);
    tensor_part const part = key ? key->part : match_dense_key(tensor.name).part;
    unit.of_activations = part == tensor_part::activation_scale;
    if (is_plain(tensor.type)) {
      index_t const cols = tensor.shape.empty() ? 1 : tensor.shape.back();
      index_t const numbers = tensor.bytes * 8 / bits(tensor.type);
      stored_matrices matrices;
      matrices.values = &tensor;
      matrices.type = library_scale_type(tensor.type);
      matrices.rows = cols > 0 ? numbers / cols : 0;
      matrices.cols = matrices.pitch = cols;
      side_.matrices.push_back(matrices);
      unit.readable = true;
      unit.job.matrices = &side_.matrices.back();
      unit.job.rows = matrices.rows;
      unit.job.cols = matrices.cols;
    }
    side_.units.emplace(std::string(tensor.name), std::move(unit));
  }

  checkpoint_reader::state const& opened_;
  checkpoint_part const& part_;
  std::unordered_set<tensor_entry const*> used_;
  diff_side side_;
};

}  // namespace

diff_side units_of(checkpoint_reader::state const& opened, checkpoint_part const& part) {
  return side_builder(opened, part).build();
}

}  // namespace moe64::checkpoint
