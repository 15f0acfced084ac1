#include "moe64/synth.hpp"

#include "checkpoint/convert/parallel_work.hpp"
#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/json/json.hpp"
#include "checkpoint/synth/files.hpp"
#include "checkpoint/synth/values.hpp"
#include "core/fail.hpp"

#include <algorithm>

namespace moe64 {
namespace checkpoint {
namespace {

/// What a reader will make of the plan. Anything that it would complain about is a mistake of the
/// tables here, but for a dialect that the model's own type rules out.
std::vector<std::string> read_back(synth_plan const& plan) {
  std::vector<tensor_entry> entries;
  for (synth_tensor const& tensor : plan.tensors) {
    entries.push_back({tensor.file.name, tensor.file.type, tensor.file.shape, 0, 0, 0});
  }
  std::sort(entries.begin(), entries.end(),
            [](auto const& left, auto const& right) { return left.name < right.name; });
  std::vector<std::unique_ptr<json_document const>> documents;
  config_sources sources;
  for (auto const& [name, text] : plan.documents) {
    documents.push_back(parse_json(text, name));
    json_value const* const root = &documents.back()->root();
    if (name == "config.json") sources.config = root;
    if (name == "hf_quant_config.json") sources.hf_quant_config = root;
    if (name == "params.json") sources.params = root;
  }
  resolved_checkpoint const resolved = resolve(entries, sources);
  for (finding const& found : resolved.found.kept()) {
    if (found.level == finding_level::note) continue;
    fail(errc::internal, "[synth] {} in {} would be read with: {}", plan.like, plan.dialect,
         found.text);
  }
  std::vector<std::string> ids(resolved.dialects.begin(), resolved.dialects.end());
  if (std::find(ids.begin(), ids.end(), plan.dialect) == ids.end()) {
    fail(errc::invalid_argument,
         "[synth] a checkpoint of type '{}' is read as {}, never as {}: name another model",
         plan.model_type, ids.empty() ? "nothing" : ids.front(), plan.dialect);
  }
  return ids;
}

/// Large pieces of work first, so that no thread is left with one at the end.
struct task {
  index_t module = -1;
  index_t tensor = -1;
  index_t numbers = 0;
};

std::vector<task> tasks_of(synth_plan const& plan) {
  std::vector<task> tasks;
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    module_format const& format = plan.modules[i].format;
    tasks.push_back({static_cast<index_t>(i), -1,
                     checked_mul(format.experts, checked_mul(format.rows, format.cols))});
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    synth_tensor const& tensor = plan.tensors[i];
    if (tensor.part || tensor.file.name.empty()) continue;
    index_t numbers = 1;
    for (index_t const extent : tensor.file.shape) numbers = checked_mul(numbers, extent);
    tasks.push_back({-1, static_cast<index_t>(i), numbers});
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](task const& left, task const& right) {
    return left.numbers > right.numbers;
  });
  return tasks;
}

std::string_view fault_text(synth_fault_kind kind) {
  for (synth_fault_row const& row : synth_fault_table()) {
    if (row.kind == kind) return row.text;
  }
  return {};
}

}  // namespace
}  // namespace checkpoint

synth_report synthesize(std::string const& out, synth_options const& options, stream where,
                        progress_report const& progress) {
  using namespace checkpoint;
  require_cpu(where, "synth");
  if (options.shard_bytes < 0) {
    fail(errc::invalid_argument, "[synth] shard_bytes is {}", options.shard_bytes);
  }
  synth_plan const plan = plan_synthesis(options);
  synth_report report;
  // a fault is to be found in the result, not here
  report.dialects = plan.fault.is(synth_fault_kind::none) ? read_back(plan)
                                                          : std::vector<std::string>{plan.dialect};
  output_folder const folder(posix_files(), out);
  synth_files files(folder, plan, options.shard_bytes, options.seed);
  progress_counter counter(progress, files.bytes());
  synth_sink const sink = [&](index_t tensor, std::span<std::byte const> bytes) {
    files.append(tensor, bytes);
    counter.add(static_cast<index_t>(bytes.size()));
  };
  std::vector<task> const tasks = tasks_of(plan);
  run_tasks(where, static_cast<index_t>(tasks.size()), [&](index_t i) {
    task const& one = tasks[static_cast<std::size_t>(i)];
    if (one.module >= 0) {
      write_module(plan, one.module, options.seed, sink);
    } else {
      write_plain_tensor(plan, one.tensor, options.seed, sink);
    }
  });
  files.finish();
  counter.finish();
  report.like = plan.like;
  report.model_type = plan.model_type;
  report.hidden = plan.extents.at("hidden");
  report.inter = plan.extents.at("inter");
  report.experts = plan.extents.at("experts");
  report.layers = plan.extents.at("layers");
  report.moe_layers = plan.moe_layers;
  report.tensors = files.tensors();
  report.parameters = plan.parameters;
  report.bytes = files.bytes();
  report.shards = files.count();
  report.fault = fault_text(plan.fault.kind);
  report.fault_tensor = plan.fault.tensor;
  return report;
}

std::vector<synth_model> synth_models() {
  std::vector<synth_model> models;
  for (checkpoint::synth_release const& release : checkpoint::synth_releases()) {
    models.push_back(
        {std::string(release.like), std::string(release.dialect), std::string(release.text)});
  }
  return models;
}

std::vector<synth_fault> synth_faults() {
  std::vector<synth_fault> faults;
  for (checkpoint::synth_fault_row const& row : checkpoint::synth_fault_table()) {
    faults.push_back({std::string(row.name), std::string(row.text), row.value});
  }
  return faults;
}

}  // namespace moe64
