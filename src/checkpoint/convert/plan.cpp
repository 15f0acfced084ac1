#include "checkpoint/convert/plan.hpp"

#include "checkpoint/convert/outputs.hpp"
#include "checkpoint/convert/requantised.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/naming/part.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <unordered_set>

namespace moe64::checkpoint {
namespace {

constexpr std::string_view scale_reason = "its numbers are part of the converted weight";
constexpr std::string_view shape_reason = "the converted weight has this shape";
constexpr std::string_view wide_reason = "it has more bits than the target, and keeps them";
constexpr std::string_view part_reason = "it is not in the part that was asked for";
constexpr std::string_view activation_reason =
    "a scale of activations, which the target does not have";

/// Where the output of a source tensor goes: the order of the source's files.
struct placed_output {
  index_t shard;
  index_t begin;
  planned_output output;
};

class planner {
 public:
  planner(folder const& files, resolved_checkpoint const& resolved, convert_options const& options,
          weight_deltas const* deltas)
      : files_(files), options_(options), weights_(weights_of(resolved)) {
    plan_.to = options.to;
    plan_.deltas = deltas;
    plan_.fates.assign(files.tensors().size(), tensor_fate::copied);
    plan_.reasons.resize(files.tensors().size());
  }

  conversion_plan make() {
    bool const any_quantised = std::any_of(weights_.begin(), weights_.end(),
                                           [](weight_module const& w) { return w.quantised(); });
    for (weight_module const& weight : weights_) {
      // DeepSeek-V4 names: its fp8 has powers of two under `scale`
      if (weight.of_experts && weight.schema == key_schema::ffn_w123 &&
          options_.to == convert_target::fp8_block) {
        plan_.scale_type = dtype::e8m0;
      }
    }
    bool const same = options_.to == convert_target::same;
    for (weight_module const& weight : weights_) {
      if (!includes(options_.part, *weight.values)) {
        leave_out(weight);
        continue;
      }
      kept_.insert({weight.values, weight.scales, weight.global, shape_tensor(weight)});
      if (same) {
        if (weight.quantised() && delta_of(weight.values) != nullptr) requantise(weight);
        continue;
      }
      if (weight.quantised() || (is_fp8(options_.to) && !any_quantised)) convert(weight);
    }
    f32_too_ = f32_is_all();
    for (tensor_entry const& tensor : files_.tensors()) account(tensor);
    require_all_merged();
    cut_shards();
    return std::move(plan_);
  }

 private:
  void set_fate(tensor_entry const* tensor, tensor_fate fate, std::string_view reason = {}) {
    if (tensor == nullptr) return;
    auto const position = static_cast<std::size_t>(tensor - files_.tensors().data());
    plan_.fates[position] = fate;
    plan_.reasons[position] = reason;
  }
  [[nodiscard]] tensor_fate fate_of(tensor_entry const& tensor) const {
    return plan_.fates[static_cast<std::size_t>(&tensor - files_.tensors().data())];
  }

  [[nodiscard]] tensor_entry const* shape_tensor(weight_module const& weight) const {
    if (weight.weight_shape != nullptr) return weight.weight_shape;
    return files_.find(std::string(weight.module) + ".weight_shape");
  }

  void leave_out(weight_module const& weight) {
    for (tensor_entry const* const part :
         {weight.values, weight.scales, weight.global, shape_tensor(weight)}) {
      set_fate(part, tensor_fate::dropped, part_reason);
    }
  }

  [[nodiscard]] module_delta const* delta_of(tensor_entry const* values) const {
    return plan_.deltas == nullptr ? nullptr : plan_.deltas->of(values);
  }

  /// In its own format, with a delta.
  void requantise(weight_module const& weight) {
    set_fate(weight.values, tensor_fate::converted);
    set_fate(weight.scales, tensor_fate::consumed, scale_reason);
    plan_.matrices.push_back(
        matrices_of(weight.format, weight.values, weight.scales, weight.global));
    placed_.push_back({weight.values->shard, weight.values->begin,
                       requantised(weight, plan_.matrices.back(), *delta_of(weight.values))});
    ++merged_;
  }

  /// Every module of the adapter has a job, or something was not understood.
  void require_all_merged() const {
    if (plan_.deltas == nullptr || merged_ == plan_.deltas->modules()) return;
    fail(errc::internal, "[merge] {} of {} modules of the adapter would be merged", merged_,
         plan_.deltas->modules());
  }

  void convert(weight_module const& weight) {
    check_shape(weight);
    ++plan_.converted_modules;
    set_fate(weight.values, tensor_fate::converted);
    set_fate(weight.scales, tensor_fate::consumed, scale_reason);
    set_fate(weight.global, tensor_fate::consumed, scale_reason);
    modules_.insert(weight.module);
    plan_.matrices.push_back(
        matrices_of(weight.format, weight.values, weight.scales, weight.global));
    module_delta const* const delta = delta_of(weight.values);
    merged_ += delta != nullptr ? 1 : 0;
    for (planned_output& output : outputs_of(weight, plan_.matrices.back(), plan_, delta)) {
      plan_.quantised_outputs += output.tensors.front().type == file_dtype::f8_e4m3 ? 1 : 0;
      placed_.push_back({weight.values->shard, weight.values->begin, std::move(output)});
    }
  }

  /// A `weight_shape` that says something else than the config: one of them is wrong.
  void check_shape(weight_module const& weight) const {
    tensor_entry const* const shape = shape_tensor(weight);
    bool const whole = shape != nullptr && shape->shape.size() == 1 && shape->shape[0] == 2;
    if (weight.format.values != value_codec::int4x8 || !whole) return;
    std::array<std::int64_t, 2> stated = {};
    if (shape->type == file_dtype::i64) {
      files_.read(*shape, 0, std::as_writable_bytes(std::span(stated)));
    } else if (shape->type == file_dtype::i32) {
      std::array<std::int32_t, 2> narrow_stated = {};
      files_.read(*shape, 0, std::as_writable_bytes(std::span(narrow_stated)));
      stated = {narrow_stated[0], narrow_stated[1]};
    } else {
      return;
    }
    if (stated[0] == weight.format.rows && stated[1] == weight.format.cols) return;
    fail(errc::shape_mismatch, "[convert] tensor {} says [{}, {}], but {} is read as [{}, {}]",
         quoted(shape->name), stated[0], stated[1], quoted(weight.values->name), weight.format.rows,
         weight.format.cols);
  }

  void account(tensor_entry const& tensor) {
    if (fate_of(tensor) != tensor_fate::copied) return;
    // of a module that stays together, whatever file its scales are in
    if (!includes(options_.part, tensor) && !kept_.contains(&tensor)) {
      set_fate(&tensor, tensor_fate::dropped, part_reason);
      return;
    }
    auto const key = match_key(tensor.name);
    dense_key const dense = match_dense_key(tensor.name);
    tensor_part const part = key ? key->part : dense.part;
    std::string_view const module = key ? key->module : dense.module;
    bool const of_converted = modules_.contains(module);
    if (of_converted && part == tensor_part::activation_scale) {
      set_fate(&tensor, tensor_fate::dropped, activation_reason);
      return;
    }
    if (of_converted && part == tensor_part::weight_shape) {
      set_fate(&tensor, tensor_fate::consumed, shape_reason);
      return;
    }
    planned_output output;
    output.tensors.push_back(
        {std::string(tensor.name), tensor.type, {tensor.shape.begin(), tensor.shape.end()}});
    output.job.from = &tensor;
    if (options_.to == convert_target::bf16 || options_.to == convert_target::f16) {
      recast(tensor, output);
    }
    if (module_delta const* const delta = delta_of(&tensor)) merge_plain(tensor, *delta, output);
    placed_.push_back({tensor.shard, tensor.begin, std::move(output)});
    bool const weight = part == tensor_part::weight && is_plain(tensor.type);
    if (weight && (key || tensor.shape.size() == 2)) list_plain(key, module);
  }

  /// Beside numbers of fewer bits, f32 is there for a reason: router biases, norms.
  [[nodiscard]] bool f32_is_all() const {
    return std::none_of(weights_.begin(), weights_.end(),
                        [](weight_module const& weight) { return weight.quantised(); }) &&
           std::none_of(files_.tensors().begin(), files_.tensors().end(),
                        [](tensor_entry const& tensor) { return is_half(tensor.type); });
  }

  static bool is_half(file_dtype type) {
    return type == file_dtype::bf16 || type == file_dtype::f16;
  }

  /// A plain tensor of the other 16 bits becomes the target too; what has more bits does not,
  /// unless everything has.
  void recast(tensor_entry const& tensor, planned_output& output) {
    file_dtype const wanted = float_type(options_.to);
    if (tensor.type == wanted) return;
    if (is_half(tensor.type) || (tensor.type == file_dtype::f32 && f32_too_)) {
      output.job.kind = job_kind::recast;
      output.tensors.front().type = wanted;
      set_fate(&tensor, tensor_fate::converted);
      ++plan_.recast_tensors;
    } else if (tensor.type == file_dtype::f32 || tensor.type == file_dtype::f64) {
      set_fate(&tensor, tensor_fate::copied, wide_reason);
    }
  }

  /// A plain tensor stays one, of the type that it has without a delta.
  void merge_plain(tensor_entry const& tensor, module_delta const& delta, planned_output& output) {
    set_fate(&tensor, tensor_fate::converted);
    ++merged_;
    plan_.matrices.push_back(matrices_of(delta.format, &tensor, nullptr, nullptr));
    stored_matrices const& matrices = plan_.matrices.back();
    conversion_job& job = output.job;
    job.kind = job_kind::widen;
    job.matrices = &matrices;
    job.slices = matrices.count;
    job.rows = matrices.rows;
    job.cols = matrices.cols;
    job.type = library_scale_type(output.tensors.front().type);
    job.delta = &delta;
  }

  void list_plain(std::optional<tensor_key> const& key, std::string_view module) {
    // one entry for all experts of a layer, as Transformers replaces them as one module
    std::size_t const experts = key ? module.find(".experts") : std::string_view::npos;
    if (experts != std::string_view::npos && options_.to == convert_target::fp8_block) {
      module = module.substr(0, experts + std::string_view(".experts").size());
    }
    if (listed_.insert(module).second) plan_.plain_modules.emplace_back(module);
  }

  void cut_shards() {
    std::stable_sort(placed_.begin(), placed_.end(),
                     [](placed_output const& left, placed_output const& right) {
                       return std::tie(left.shard, left.begin) < std::tie(right.shard, right.begin);
                     });
    for (placed_output& placed : placed_) {
      index_t bytes = 0;
      for (new_tensor const& tensor : placed.output.tensors) {
        index_t own = 0;
        if (!count_bytes(tensor.type, tensor.shape, own).empty()) {
          fail(errc::size_overflow, "[convert] tensor {} would be too large", quoted(tensor.name));
        }
        bytes = checked_add(bytes, own);
      }
      bool const full = !plan_.shards.empty() && plan_.shards.back().tensor_bytes > 0 &&
                        bytes > options_.shard_bytes - plan_.shards.back().tensor_bytes;
      if (plan_.shards.empty() || full) plan_.shards.emplace_back();
      planned_shard& shard = plan_.shards.back();
      auto const first = static_cast<index_t>(shard.tensors.size());
      conversion_job job = placed.output.job;
      job.values += first;
      if (job.scales >= 0) job.scales += first;
      shard.jobs.push_back(job);
      for (new_tensor& tensor : placed.output.tensors) shard.tensors.push_back(std::move(tensor));
      shard.tensor_bytes += bytes;
    }
    name_shards();
  }

  void name_shards() {
    std::size_t const count = plan_.shards.size();
    if (count == 1) {
      bool const one =
          files_.shards().size() == 1;  // named by its whole path, if it was given alone
      plan_.shards[0].name =
          one ? std::filesystem::path(files_.shards()[0].name).filename() : "model.safetensors";
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      plan_.shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
    }
  }

  folder const& files_;
  convert_options const& options_;
  std::vector<weight_module> weights_;
  bool f32_too_ = false;
  index_t merged_ = 0;
  std::unordered_set<tensor_entry const*> kept_;
  std::unordered_set<std::string_view> modules_;
  std::unordered_set<std::string_view> listed_;
  std::vector<placed_output> placed_;
  conversion_plan plan_;
};

}  // namespace

conversion_plan plan_conversion(folder const& files, resolved_checkpoint const& resolved,
                                convert_options const& options, weight_deltas const* deltas) {
  return planner(files, resolved, options, deltas).make();
}

}  // namespace moe64::checkpoint
