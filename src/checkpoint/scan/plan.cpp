#include "checkpoint/scan/plan.hpp"

#include "checkpoint/files/folder.hpp"

#include <algorithm>
#include <tuple>

namespace moe64::checkpoint {
namespace {

constexpr index_t band_bytes = index_t{32} << 20;       // of values
constexpr index_t band_scale_bytes = index_t{1} << 20;  // of scales
constexpr index_t task_bytes = index_t{16} << 20;       // small bands share a task

class planner {
 public:
  planner(folder const& files, resolved_checkpoint const& resolved, checkpoint_part const& part)
      : files_(files), resolved_(resolved), claimed_(files.tensors().size(), false), part_(part) {}

  scan_plan plan() {
    for (std::size_t i = 0; i < resolved_.layers.size(); ++i) {
      add_layer(resolved_.layers[i], static_cast<index_t>(i));
    }
    for (dense_entry const& entry : resolved_.dense) {
      if (leave_out({entry.values, entry.scales, entry.global})) continue;
      scan_item item;
      item.role = scan_role::dense;
      item.values = entry.values;
      item.scales = entry.scales;
      item.global = entry.global;
      item.format = &entry.format;
      add_matrix(item, 0);
    }
    for (tensor_entry const& tensor : files_.tensors()) add_other(tensor);
    cut_items();
    group_bands();
    return std::move(plan_);
  }

 private:
  [[nodiscard]] bool is_free(tensor_entry const* tensor) const {
    return tensor == nullptr || !claimed_[position(tensor)];
  }
  void claim(tensor_entry const* tensor) {
    if (tensor == nullptr) return;
    claimed_[position(tensor)] = true;
    plan_.total_bytes = checked_add(plan_.total_bytes, tensor->bytes);
  }
  [[nodiscard]] std::size_t position(tensor_entry const* tensor) const {
    return static_cast<std::size_t>(tensor - files_.tensors().data());
  }

  /// A matrix outside of the part; its scales are not looked at on their own then.
  bool leave_out(expert_source const& source) {
    if (includes(part_, *source.values)) return false;
    for (tensor_entry const* const tensor : {source.scales, source.global}) {
      if (tensor != nullptr) claimed_[position(tensor)] = true;
    }
    return true;
  }

  void add_layer(layer_entry const& layer, index_t position) {
    int number = 0;
    for (projection_entry const* const entry : projections_of(layer)) {
      index_t shared = -1;
      for (expert_source const& source : entry->experts) {
        if (!source.present() || leave_out(source)) continue;
        scan_item item;
        item.role = scan_role::expert;
        item.values = source.values;
        item.scales = source.scales;
        item.global = source.global;
        item.format = &entry->module;
        item.layer = position;
        item.projection = number;
        item.expert = number_of(source);
        item.kind = kind_of(item.format->values, item.format->value_type);
        if (entry->stacked && source.slice == 0 && acceptable(item, 0)) shared = share(item);
        item.shared = shared;
        if (!add_matrix(item, source.slice)) continue;
        add_weight_shape(item, source.weight_shape);
      }
      ++number;
    }
  }

  static index_t number_of(expert_source const& source) {
    auto const key = match_key(source.values->name);
    return key && key->expert >= 0 ? key->expert : source.slice;
  }

  /// Reads what all slices of a stack have in common. The bands then do not.
  index_t share(scan_item const& item) {
    bool const one_scale = item.scales != nullptr && item.format->scales == scale_codec::tensor;
    if (!one_scale && item.global == nullptr) return -1;
    shared_scales both;
    auto const read = [&](tensor_entry const& tensor, std::array<std::byte, 4>& into) {
      if (tensor.bytes < 1 || tensor.bytes > std::ssize(into)) return false;
      try {
        files_.read(tensor, 0, std::span(into).first(static_cast<std::size_t>(tensor.bytes)));
      } catch (error const&) {
        return false;  // the scan meets it again, and says so
      }
      plan_.read_bytes += tensor.bytes;
      return true;
    };
    both.has_scale = one_scale && read(*item.scales, both.scale);
    if (item.global != nullptr && !read(*item.global, both.global)) return -1;
    plan_.shared.push_back(both);
    return static_cast<index_t>(plan_.shared.size()) - 1;
  }

  /// Whether the tensors are as large as the format says: a layer that is not sound may mix them.
  [[nodiscard]] static bool fits(scan_item const& item) {
    module_format const& format = *item.format;
    storage_grid const grid = storage_of(format);
    index_t const slices = format.stacked ? format.experts : 1;
    index_t const value_bits = checked_mul(grid.elements(), bits(item.kind, format.value_type));
    if (value_bits % 8 != 0 || item.values->bytes != checked_mul(value_bits / 8, slices)) {
      return false;
    }
    if ((item.scales != nullptr) != (format.scales != scale_codec::none)) return false;
    if (item.global != nullptr && item.global->bytes != 4) return false;
    if (item.scales == nullptr) return true;
    index_t const scale_slices = format.scales == scale_codec::tensor ? 1 : slices;
    return item.scales->bytes ==
               checked_mul(checked_mul(grid.scales(), scale_slices), bits(format.scale_type) / 8) &&
           item.scales->type == format.scale_type;
  }

  /// Slice 0 claims the tensors for all slices.
  [[nodiscard]] bool acceptable(scan_item const& item, index_t slice) const {
    bool const free =
        is_free(item.values) && is_free(item.scales) && is_free(item.global) && fits(item);
    return slice == 0 ? free : !is_free(item.values);
  }

  bool add_matrix(scan_item item, index_t slice) {
    item.kind = kind_of(item.format->values, item.format->value_type);
    if (!acceptable(item, slice)) return false;
    index_t const slices = item.format->stacked ? item.format->experts : 1;
    item.value_bytes = item.values->bytes / slices;
    item.value_begin = item.value_bytes * slice;
    bool const own_scale = item.scales != nullptr && item.format->scales != scale_codec::tensor;
    if (own_scale) item.scale_begin = item.scales->bytes / slices * slice;
    if (slice == 0) {
      claim(item.values);
      claim(item.scales);
      claim(item.global);
    }
    plan_.items.push_back(item);
    return true;
  }

  void add_weight_shape(scan_item const& matrix, tensor_entry const* stated) {
    if (stated == nullptr || !is_free(stated)) return;
    scan_item item = matrix;
    item.role = scan_role::weight_shape;
    item.kind = value_kind::opaque;
    item.values = stated;
    item.value_begin = 0;
    item.value_bytes = stated->bytes;
    item.scales = item.global = nullptr;
    item.shared = -1;
    claim(stated);
    plan_.items.push_back(item);
  }

  void add_other(tensor_entry const& tensor) {
    if (!is_free(&tensor) || !includes(part_, tensor)) return;
    scan_item item;
    item.values = &tensor;
    item.value_bytes = tensor.bytes;
    item.kind = kind_of(tensor.type);
    auto const key = match_key(tensor.name);
    tensor_part const part = key ? key->part : match_dense_key(tensor.name).part;
    if (part == tensor_part::activation_scale && is_plain(tensor.type)) {
      item.role = scan_role::activation_scale;
    }
    claim(&tensor);
    plan_.items.push_back(item);
  }

  void cut_items() {
    for (std::size_t i = 0; i < plan_.items.size(); ++i) {
      scan_item const& item = plan_.items[i];
      index_t units = item.value_bytes;  // bytes, or rows of the grid
      index_t at_once = band_bytes;
      if (item.scales != nullptr) {
        storage_grid const grid = storage_of(*item.format);
        units = grid.rows.count();
        index_t const scale_row = grid.cols.count() * bits(item.format->scale_type) / 8;
        index_t const value_row = std::max<index_t>(1, item.value_bytes / units);
        at_once = std::max<index_t>(
            1,
            std::min(band_bytes / value_row, band_scale_bytes / std::max<index_t>(1, scale_row)));
        bool const odd = grid.pitch * bits(item.kind, item.format->value_type) % 8 != 0;
        if (odd) at_once = units;
      }
      auto const number = static_cast<index_t>(i);
      if (units == 0) plan_.bands.push_back({number, 0, 0});
      for (index_t begin = 0; begin < units; begin += at_once) {
        plan_.bands.push_back({number, begin, std::min(units, begin + at_once)});
      }
    }
    auto const place = [&](scan_band const& band) {
      scan_item const& item = plan_.items[static_cast<std::size_t>(band.item)];
      return std::tuple(item.values->shard, item.values->begin + item.value_begin, band.begin);
    };
    std::sort(plan_.bands.begin(), plan_.bands.end(),
              [&](scan_band const& a, scan_band const& b) { return place(a) < place(b); });
  }

  void group_bands() {
    index_t bytes = task_bytes;
    for (std::size_t i = 0; i < plan_.bands.size(); ++i) {
      if (bytes >= task_bytes) {
        plan_.tasks.push_back(static_cast<index_t>(i));
        bytes = 0;
      }
      scan_band const& band = plan_.bands[i];
      scan_item const& item = plan_.items[static_cast<std::size_t>(band.item)];
      bytes +=
          item.scales != nullptr ? std::min(item.value_bytes, band_bytes) : band.end - band.begin;
    }
    plan_.tasks.push_back(static_cast<index_t>(plan_.bands.size()));
  }

  folder const& files_;
  resolved_checkpoint const& resolved_;
  std::vector<bool> claimed_;
  checkpoint_part const& part_;
  scan_plan plan_;
};

}  // namespace

std::vector<projection_entry const*> projections_of(layer_entry const& layer) {
  bool const two = layer.gate.module.fused || !is_gated(layer.schema);
  if (two) return {&layer.gate, &layer.down};
  return {&layer.gate, &layer.up, &layer.down};
}

scan_plan plan_scan(folder const& files, resolved_checkpoint const& resolved,
                    checkpoint_part const& part) {
  return planner(files, resolved, part).plan();
}

}  // namespace moe64::checkpoint
