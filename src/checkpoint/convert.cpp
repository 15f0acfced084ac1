#include "moe64/convert.hpp"

#include "checkpoint/convert_config.hpp"
#include "checkpoint/convert_files.hpp"
#include "checkpoint/convert_manifest.hpp"
#include "checkpoint/json_write.hpp"
#include "checkpoint/quoted.hpp"
#include "core/fail.hpp"
#include "moe64/version.hpp"

#include <algorithm>
#include <array>
#include <errno.h>
#include <future>
#include <map>

namespace moe64 {
namespace checkpoint {
namespace {

constexpr std::string_view index_name = "model.safetensors.index.json";

/// One conversion from its plan to the last file.
class conversion {
 public:
  conversion(checkpoint_reader::state const& from, std::string const& out,
             convert_options const& options, stream where, progress_report const& progress,
             convert_environment const& environment)
      : from_(from),
        files_(from.files),
        out_path_(out),
        options_(options),
        where_(where),
        report_progress_(progress),
        environment_(environment) {}

  convert_report run() {
    check_arguments();
    prepare();
    output_folder const out(environment_.files, out_path_);
    for (shard const& file : files_.shards()) out.refuse_input(file.status, file.name);
    std::vector<shard_record> kept = start(out);
    manifest_writer manifest(out, identity_, kept);
    write_shards(out, manifest, std::move(kept));
    write_side_files(out);
    write_index(out);
    write_configs(out);
    manifest.complete();
    finish_report();
    return std::move(report_);
  }

 private:
  void check_arguments() const {
    require_cpu(where_, "convert");
    if (options_.memory_bytes < 1 || options_.shard_bytes < 1) {
      fail(errc::invalid_argument, "[convert] memory of {} bytes and shards of {} bytes",
           options_.memory_bytes, options_.shard_bytes);
    }
    if (!options_.unsound) require_sound(from_.resolved);
    file_status input;
    file_status output;
    bool const both = environment_.files.path_status(from_.path, true, input) >= 0 &&
                      environment_.files.path_status(out_path_, true, output) >= 0;
    if (both && input.same_file(output)) {
      fail(errc::invalid_argument, "[convert] {}: is the input {}", escaped_path(out_path_),
           escaped_path(from_.path));
    }
  }

  /// Everything that can be decided without the output folder.
  void prepare() {
    plan_ = plan_conversion(files_, from_.resolved, options_);
    configs_ = convert_configs(files_, plan_);
    if (from_.resolved.sound()) require_readable(plan_, configs_, from_.resolved.assumed);
    for (diagnostic const& found : from_.resolved.found.kept()) {
      if (found.level == severity::error) report_.anomalies.push_back(found.text);
    }
    if (plan_.converted_modules == 0) {
      report_.notes.emplace_back("no module is quantised: everything is copied as it is");
    }
    identity_ = identity_of(files_, options_, from_.resolved.assumed,
                            configs_.config.value_or("") + configs_.params.value_or(""));
    metadata_ = {{"format", "pt"},
                 {"moe64_converted_to", std::string(name(options_.to))},
                 {"moe64_version", std::string(version())}};
    std::string assumed;
    for (std::string const& text : from_.resolved.assumed) {
      assumed += (assumed.empty() ? "" : " ") + text;
    }
    if (!assumed.empty()) metadata_.emplace_back("moe64_assumed", assumed);
    memory_ = memory_of(plan_);
    // one buffer more reads a finished shard back
    index_t const room = options_.memory_bytes - std::max(memory_.out, memory_.out_scales);
    if (room < memory_.total()) {
      fail(errc::out_of_memory, "[convert] {} bytes of memory, but the widest tensor needs {}",
           options_.memory_bytes, memory_.total() + std::max(memory_.out, memory_.out_scales));
    }
    index_t const fitting = room / std::max<index_t>(1, memory_.total());
    workers_ = std::clamp<index_t>(fitting, 1, workers_of(where_));
    report_.buffer_bytes = workers_ * memory_.total() + std::max(memory_.out, memory_.out_scales);
  }

  /// What an earlier run has left: shards that are whole, or a reason to start over.
  std::vector<shard_record> start(output_folder const& out) {
    auto earlier = read_manifest(out);
    if (!earlier) {
      refuse_foreign(out);
      return {};
    }
    std::string changed;
    if (earlier->identity.library != identity_.library) changed = "library";
    if (earlier->identity.options != identity_.options) changed = "options";
    if (earlier->identity.inputs != identity_.inputs) changed = "input";
    if (!changed.empty() && earlier->complete) {
      fail(errc::invalid_argument,
           "[convert] {}: holds a finished conversion of another {}; remove it or choose another "
           "folder",
           escaped_path(out_path_), changed);
    }
    if (!changed.empty()) {
      report_.notes.push_back(
          fmt::format("the {} changed since the last run: started over", changed));
      remove_own_files(out);
      return {};
    }
    std::vector<shard_record> kept;
    for (shard_record const& record : earlier->shards) {
      auto const planned =
          std::find_if(plan_.shards.begin(), plan_.shards.end(),
                       [&](planned_shard const& shard) { return shard.name == record.name; });
      if (planned == plan_.shards.end()) continue;
      if (is_whole(out, shard_layout(*planned, plan_, metadata_), record, workers_, where_)) {
        kept.push_back(record);
      } else {
        report_.notes.push_back(
            fmt::format("{} is not what was written: it is made again", quoted(record.name)));
      }
    }
    return kept;
  }

  [[nodiscard]] std::vector<std::string> names_in(output_folder const& out) const {
    std::vector<std::string> names;
    if (int const result = environment_.files.list_folder(out.path(), names); result < 0) {
      fail(errc::io_failure, "[convert] {}: listing the folder: {}", escaped_path(out.path()),
           error_text(-result));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void refuse_foreign(output_folder const& out) const {
    for (std::string const& name : names_in(out)) {
      if (name == ".moe64.lock" || name == std::string(manifest_name) + ".partial") continue;
      fail(errc::invalid_argument,
           "[convert] {}: is not empty (it has {}), and no conversion was begun there",
           escaped_path(out.path()), quoted(name));
    }
  }

  /// Shards that a conversion with other options would leave behind.
  void remove_own_files(output_folder const& out) const {
    for (std::string const& name : names_in(out)) {
      bool const own = name.ends_with(".safetensors") || name.ends_with(".partial") ||
                       name == index_name || name == "config.json" || name == "params.json";
      if (!own) continue;
      std::string const path = out.path_of(name);
      int const result = environment_.files.unlink(path);
      if (result < 0 && result != -ENOENT) {
        fail(errc::io_failure, "[convert] {}: removing: {}", escaped_path(path),
             error_text(-result));
      }
    }
  }

  void write_shards(output_folder const& out, manifest_writer& manifest,
                    std::vector<shard_record> kept) {
    index_t total = 0;
    for (planned_shard const& shard : plan_.shards) total += shard.tensor_bytes;
    progress_counter progress(report_progress_, total);
    std::vector<std::unique_ptr<tile_worker>> workers;
    for (index_t i = 0; i < workers_; ++i) {
      workers.push_back(std::make_unique<tile_worker>(files_, plan_, memory_));
    }
    // declared before the future: it has to outlive the thread
    std::unique_ptr<shard_writer> finishing;
    std::future<shard_record> finished;
    auto const settle = [&] {
      if (!finished.valid()) return;
      shard_record const record = finished.get();
      manifest.add(record);
      records_.push_back(record);
    };
    std::size_t left = plan_.shards.size() - kept.size();
    for (planned_shard const& shard : plan_.shards) {
      auto const done = std::find_if(kept.begin(), kept.end(), [&](shard_record const& record) {
        return record.name == shard.name;
      });
      if (done != kept.end()) {
        records_.push_back(*done);
        ++report_.shards_kept;
        progress.add(shard.tensor_bytes);
        continue;
      }
      auto writer = std::make_unique<shard_writer>(out, shard_layout(shard, plan_, metadata_));
      try {
        writer->run(workers, where_, progress);
      } catch (...) {
        keep_finished(settle);
        throw;
      }
      settle();
      finishing = std::move(writer);
      // behind the last one nothing is converted, and all threads can read it back
      bool const last = --left == 0;
      if (last) workers.clear();
      bool const behind = environment_.background && !last;
      finished = std::async(behind ? std::launch::async : std::launch::deferred, [&, last] {
        return finishing->finish(files_, last ? workers_ : 1, last ? where_ : cpu_stream());
      });
      if (!behind) settle();
    }
    settle();
    progress.finish();
  }

  /// A shard that is whole is worth keeping, whatever became of the one behind it.
  template <class Settle>
  static void keep_finished(Settle const& settle) noexcept {
    try {
      settle();
    } catch (...) {  // the first failure is the one to tell
    }
  }

  void write_text(output_folder const& out, std::string_view name, std::string const& text) const {
    write_file(out, name, std::as_bytes(std::span(text)), true);
  }

  void write_side_files(output_folder const& out) {
    std::string const folder = files_.path().string();
    file_status status;
    if (environment_.files.path_status(folder, true, status) < 0 ||
        status.kind != file_kind::folder) {
      return;
    }
    for (std::string const& name : side_files_of(environment_.files, folder, report_.notes)) {
      if (copy_side_file(environment_.files, folder, name, out, report_.notes)) {
        report_.side_files.push_back(name);
      }
    }
    if (files_.hf_quant_config() != nullptr && plan_.converted_modules > 0) {
      report_.notes.emplace_back("hf_quant_config.json was left out: it is no longer true");
    } else if (files_.hf_quant_config() != nullptr &&
               copy_side_file(environment_.files, folder, "hf_quant_config.json", out,
                              report_.notes)) {
      report_.side_files.emplace_back("hf_quant_config.json");
    }
  }

  void write_index(output_folder const& out) const {
    if (plan_.shards.size() == 1) return;
    std::map<std::string_view, std::string_view> names;
    index_t total = 0;
    for (planned_shard const& shard : plan_.shards) {
      total += shard.tensor_bytes;
      for (new_tensor const& tensor : shard.tensors) names.emplace(tensor.name, shard.name);
    }
    std::string text = fmt::format(
        "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
    bool first = true;
    for (auto const& [tensor, file] : names) {
      text += first ? "\n    " : ",\n    ";
      first = false;
      append_json_text(text, tensor);
      text += ": ";
      append_json_text(text, file);
    }
    write_text(out, index_name, text + "\n  }\n}\n");
  }

  void write_configs(output_folder const& out) const {
    if (configs_.params) write_text(out, "params.json", *configs_.params);
    if (configs_.config) write_text(out, "config.json", *configs_.config);
  }

  void finish_report() {
    std::span<tensor_entry const> const tensors = files_.tensors();
    std::array<index_t, 4> counts = {};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      ++counts[static_cast<std::size_t>(plan_.fates[i])];
      report_.input_bytes += tensors[i].bytes;
      report_.tensors.push_back({std::string(tensors[i].name), plan_.fates[i], plan_.reasons[i]});
    }
    report_.converted = counts[0];
    report_.copied = counts[1];
    report_.consumed = counts[2];
    report_.dropped = counts[3];
    report_.shards = static_cast<index_t>(plan_.shards.size());
    for (planned_shard const& shard : plan_.shards) {
      report_.output_tensors += static_cast<index_t>(shard.tensors.size());
    }
    std::vector<std::string> named;
    for (shard_record const& record : records_) {
      report_.output_bytes += record.bytes;
      report_.overflows += record.counts.overflows;
      report_.not_finite += record.counts.not_finite;
      for (std::string const& text : record.anomalies) {
        if (named.size() < 8) named.push_back(text);
      }
    }
    if (report_.overflows > 0) {
      report_.anomalies.push_back(
          fmt::format("{} numbers are too large for f16 and became infinite", report_.overflows));
    }
    if (report_.not_finite > 0) {
      report_.anomalies.push_back(
          fmt::format("{} numbers or scales of the output are not finite", report_.not_finite));
    }
    report_.anomalies.insert(report_.anomalies.end(), named.begin(), named.end());
    for (std::string_view const id : from_.resolved.dialects) report_.dialects.emplace_back(id);
    report_.assumed = from_.resolved.assumed;
  }

  checkpoint_reader::state const& from_;
  folder const& files_;
  std::string const& out_path_;
  convert_options const& options_;
  stream where_;
  progress_report const& report_progress_;
  convert_environment const& environment_;
  conversion_plan plan_;
  converted_configs configs_;
  conversion_identity identity_;
  metadata_list metadata_;
  tile_memory memory_;
  index_t workers_ = 1;
  std::vector<shard_record> records_;
  convert_report report_;
};

}  // namespace

convert_report convert_files(checkpoint_reader::state const& from, std::string const& out,
                             convert_options const& options, stream where,
                             progress_report const& progress,
                             convert_environment const& environment) {
  return conversion(from, out, options, where, progress, environment).run();
}

}  // namespace checkpoint

std::string_view name(convert_target target) noexcept {
  constexpr std::array<std::string_view, 4> names = {"bf16", "f16", "fp8-block", "fp8-row"};
  auto const i = static_cast<std::size_t>(target);
  return i < names.size() ? names[i] : "unknown";
}

std::string_view name(tensor_fate fate) noexcept {
  constexpr std::array<std::string_view, 4> names = {"converted", "copied", "consumed", "dropped"};
  auto const i = static_cast<std::size_t>(fate);
  return i < names.size() ? names[i] : "unknown";
}

convert_report convert(checkpoint_reader const& from, std::string const& out,
                       convert_options const& options, stream where,
                       progress_report const& progress) {
  return checkpoint::convert_files(from.internals(), out, options, where, progress,
                                   {checkpoint::posix_files()});
}

}  // namespace moe64
