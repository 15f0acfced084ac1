#include "moe64/convert.hpp"

#include "checkpoint/convert/account.hpp"
#include "checkpoint/convert/config.hpp"
#include "checkpoint/convert/estimate.hpp"
#include "checkpoint/convert/files.hpp"
#include "checkpoint/convert/index.hpp"
#include "checkpoint/convert/resume/earlier.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/naming/part.hpp"
#include "core/fail.hpp"
#include "moe64/version.hpp"

#include <algorithm>
#include <array>
#include <errno.h>
#include <future>

namespace moe64 {
namespace checkpoint {
namespace {

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
    look_at_output();
    find_kept(out);
    require_room();
    earlier_.remove_outdated(out);
    manifest_writer manifest(out, identity_, outputs_, earlier_.files());
    write_shards(out, manifest);
    write_side_files(out, manifest);
    write_texts(out, manifest);
    manifest.complete();
    account_for(from_, plan_, records_, report_);
    if (environment_.merged != nullptr) {
      for (shard_record const& record : records_) {
        environment_.merged->insert(environment_.merged->end(), record.merged.begin(),
                                    record.merged.end());
      }
    }
    return std::move(report_);
  }

  convert_preview preview() {
    check_arguments();
    prepare();
    look_at_output();
    for (convert_file& file : planned_) {
      shard_record const* const record = earlier_.shard(file.name);
      file.kept =
          record != nullptr && earlier_.has_written(file.name) && record->file.bytes == file.bytes;
    }
    convert_preview result;
    for (convert_file const& file : planned_) {
      if (file.tensors > 0) report_.output_bytes += file.bytes;
      if (file.kept) ++report_.shards_kept;
    }
    result.files = planned_;
    disk_space const space = space_now();
    result.write_bytes = space.needed;
    result.free_bytes = space.free;
    result.freed_bytes = space.freed;
    time_estimate const time = estimate_time(files_, plan_, memory_, workers_, where_);
    result.seconds = time.seconds;
    result.sampled_bytes = time.sampled_bytes;
    account_for(from_, plan_, records_, report_);
    result.report = std::move(report_);
    return result;
  }

 private:
  void check_arguments() const {
    require_cpu(where_, "convert");
    require_present(options_.part, files_, "convert");
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
    plan_ = plan_conversion(files_, from_.resolved, options_, environment_.deltas);
    configs_ = convert_configs(files_, plan_);
    // a part need not be a checkpoint by itself, and what is copied is read as it was
    bool const whole = options_.part.whole();
    bool const remade = whole && options_.to != convert_target::same;
    if (from_.resolved.sound() && remade) {
      require_readable(plan_, configs_, from_.resolved.assumed);
    }
    for (finding const& found : from_.resolved.found.kept()) {
      if (found.level == finding_level::error) report_.anomalies.push_back(found.text);
    }
    if (plan_.converted_modules == 0 && plan_.recast_tensors == 0 &&
        options_.to != convert_target::same) {
      report_.notes.emplace_back("no module is quantised: everything is copied as it is");
    }
    if (!whole) {
      report_.notes.push_back(
          fmt::format("a part of the checkpoint: {}", to_string(options_.part)));
    }
    identity_ = identity_of(files_, options_, from_.resolved.assumed, plan_);
    metadata_ = {{"format", "pt"},
                 {"moe64_converted_to", std::string(name(options_.to))},
                 {"moe64_version", std::string(version())}};
    std::string assumed;
    for (std::string const& text : from_.resolved.assumed) {
      assumed += (assumed.empty() ? "" : " ") + text;
    }
    if (!assumed.empty()) metadata_.emplace_back("moe64_assumed", assumed);
    index_t kept_factors = 0;
    if (environment_.deltas != nullptr) {
      metadata_.emplace_back("moe64_merged_adapter", hex(environment_.deltas->sum()));
      kept_factors = environment_.deltas->cache().room();
    }
    memory_ = memory_of(plan_);
    // one buffer more reads a finished shard back
    index_t const beside = std::max(memory_.out, memory_.out_scales) + kept_factors;
    index_t const room = options_.memory_bytes - beside;
    if (room < memory_.total()) {
      fail(errc::out_of_memory, "[convert] {} bytes of memory, but the widest tensor needs {}",
           options_.memory_bytes, memory_.total() + beside);
    }
    index_t const fitting = room / std::max<index_t>(1, memory_.total());
    workers_ = std::clamp<index_t>(fitting, 1, workers_of(where_));
    report_.buffer_bytes = workers_ * memory_.total() + beside;
    plan_files();
  }

  /// Every file that will be written, in order: config.json is the last.
  void plan_files() {
    for (planned_shard const& shard : plan_.shards) {
      planned_.push_back({shard.name, lay_out(shard.tensors, metadata_).bytes,
                          static_cast<index_t>(shard.tensors.size())});
    }
    find_side_files();
    if (plan_.shards.size() > 1) texts_.emplace_back(converted_index_name, index_text(plan_));
    if (configs_.params) texts_.emplace_back("params.json", *configs_.params);
    if (configs_.config) texts_.emplace_back("config.json", *configs_.config);
    for (auto const& [name, text] : texts_) {
      planned_.push_back({name, static_cast<index_t>(text.size()), 0});
    }
    for (convert_file const& file : planned_) outputs_.push_back(file.name);
  }

  void find_side_files() {
    std::string const folder = files_.path().string();
    file_status status;
    int const result = environment_.files.path_status(folder, true, status);
    if (result < 0) {
      fail(errc::io_failure, "[convert] {}: asking for its status: {}", escaped_path(folder),
           error_text(-result));
    }
    if (status.kind != file_kind::folder) return;
    side_files_ = side_files_of(environment_.files, files_, report_.notes);
    if (files_.hf_quant_config() != nullptr) {
      if (plan_.converted_modules > 0) {
        report_.notes.emplace_back("hf_quant_config.json was left out: it is no longer true");
      } else {
        side_files_.emplace_back("hf_quant_config.json");
      }
    }
    for (std::string const& name : side_files_) {
      bool const known = environment_.files.path_status(folder + "/" + name, true, status) >= 0;
      planned_.push_back({name, known ? status.bytes : 0, 0});
    }
  }

  void look_at_output() {
    earlier_ = earlier_output(environment_.files, out_path_, identity_, outputs_, report_.notes);
  }

  /// Shards of an earlier run that are whole.
  void find_kept(output_folder const& out) {
    for (std::size_t i = 0; i < plan_.shards.size(); ++i) {
      shard_record const* const record = earlier_.shard(plan_.shards[i].name);
      if (record == nullptr || !earlier_.has_written(record->file.name)) continue;
      planned_[i].kept =
          is_whole(out, shard_layout(plan_.shards[i], metadata_), *record, workers_, where_);
      if (planned_[i].kept) continue;
      report_.notes.push_back(
          fmt::format("{} is not what was written: it is made again", quoted(record->file.name)));
    }
  }

  /// Bytes on the disk of the output.
  struct disk_space {
    index_t needed = 0;
    index_t free = -1;  ///< -1: the system does not say
    index_t freed = 0;  ///< of files that make way
  };
  [[nodiscard]] disk_space space_now() const {
    disk_space result;
    for (convert_file const& file : planned_) {
      if (!file.kept) result.needed = checked_add(result.needed, file.bytes);
    }
    result.freed = earlier_.bytes_that_make_way();
    file_status status;
    bool const there = environment_.files.path_status(out_path_, true, status) >= 0;
    index_t bytes = 0;
    std::string const path = there ? out_path_ : parent_of(out_path_);
    if (environment_.files.free_space(path, bytes) >= 0) result.free = bytes;
    return result;
  }

  void require_room() {
    disk_space const space = space_now();
    if (space.free < 0) {
      report_.notes.emplace_back("how much space is left for the output is not known");
    } else if (space.needed > checked_add(space.free, space.freed)) {
      fail(errc::io_failure, "[convert] {}: {} bytes would be written, and {} are free: {}",
           escaped_path(out_path_), space.needed, space.free + space.freed, error_text(ENOSPC));
    }
  }

  void write_shards(output_folder const& out, manifest_writer& manifest) {
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
      records_.push_back(finished.get());
    };
    auto const is_kept = [](convert_file const& file) { return file.kept; };
    auto left = static_cast<std::ptrdiff_t>(plan_.shards.size()) -
                std::count_if(planned_.begin(), planned_.end(), is_kept);
    for (std::size_t i = 0; i < plan_.shards.size(); ++i) {
      planned_shard const& shard = plan_.shards[i];
      if (planned_[i].kept) {
        records_.push_back(*earlier_.shard(shard.name));
        ++report_.shards_kept;
        progress.add(shard.tensor_bytes);
        continue;
      }
      auto writer = std::make_unique<shard_writer>(out, shard_layout(shard, metadata_),
                                                   earlier_.has_written(shard.name));
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
        // one shard is finished at a time, and the manifest is written by nobody else meanwhile
        return finishing->finish(files_, last ? workers_ : 1, last ? where_ : cpu_stream(),
                                 [&](shard_record const& record) {
                                   if (environment_.deltas != nullptr) {
                                     environment_.deltas->adapter().check_unchanged();
                                   }
                                   manifest.add(record);
                                 });
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

  void write_side_files(output_folder const& out, manifest_writer& manifest) {
    std::string const folder = files_.path().string();
    for (std::string const& name : side_files_) {
      side_file_target const target{out, earlier_.has_written(name),
                                    [&](file_record const& record) { manifest.add(record); }};
      if (copy_side_file(environment_.files, folder, name, target, report_.notes)) {
        report_.side_files.push_back(name);
      }
    }
  }

  void write_texts(output_folder const& out, manifest_writer& manifest) const {
    for (auto const& [name, text] : texts_) {
      auto const bytes = std::as_bytes(std::span(text));
      file_record const record = record_of(name, bytes);
      write_file(out, name, bytes, earlier_.has_written(name), [&] { manifest.add(record); });
    }
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
  std::vector<convert_file> planned_;  ///< the shards of the plan, then all other files
  std::vector<std::string> side_files_;
  std::vector<std::pair<std::string, std::string>> texts_;  ///< names and contents
  std::vector<std::string> outputs_;                        ///< names of planned_
  earlier_output earlier_;
  std::vector<shard_record> records_;
  convert_report report_;
};

}  // namespace

convert_preview preview_files(checkpoint_reader::state const& from, std::string const& out,
                              convert_options const& options, stream where,
                              convert_environment const& environment) {
  progress_report const silent;
  return conversion(from, out, options, where, silent, environment).preview();
}

convert_report convert_files(checkpoint_reader::state const& from, std::string const& out,
                             convert_options const& options, stream where,
                             progress_report const& progress,
                             convert_environment const& environment) {
  return conversion(from, out, options, where, progress, environment).run();
}

}  // namespace checkpoint

std::string_view name(convert_target target) noexcept {
  constexpr std::array<std::string_view, 5> names = {"bf16", "f16", "fp8-block", "fp8-row", "same"};
  auto const i = static_cast<std::size_t>(target);
  return i < names.size() ? names[i] : "unknown";
}

std::string_view name(tensor_fate fate) noexcept {
  constexpr std::array<std::string_view, 4> names = {"converted", "copied", "consumed", "dropped"};
  auto const i = static_cast<std::size_t>(fate);
  return i < names.size() ? names[i] : "unknown";
}

convert_preview preview_conversion(checkpoint_reader const& from, std::string const& out,
                                   convert_options const& options, stream where) {
  return checkpoint::preview_files(from.internals(), out, options, where,
                                   {checkpoint::posix_files()});
}

convert_report convert(checkpoint_reader const& from, std::string const& out,
                       convert_options const& options, stream where,
                       progress_report const& progress) {
  return checkpoint::convert_files(from.internals(), out, options, where, progress,
                                   {checkpoint::posix_files()});
}

}  // namespace moe64
