#include "moe64/merge.hpp"

#include "fmt/format.h"
#include "interrupt.hpp"
#include "machine.hpp"
#include "moe64/cpu.hpp"
#include "nlohmann/json.hpp"
#include "standard_output.hpp"
#include "terminal.hpp"
#include "verbs.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

void row(char const* label, std::string const& text) { fmt::print("{:<12} {}\n", label, text); }

/// The smallest and the largest of a figure over all tensors with a change.
std::string range_of(merge_report const& report, double merged_tensor::*figure) {
  double least = HUGE_VAL;
  double most = -HUGE_VAL;
  for (merged_tensor const& tensor : report.merged) {
    if (tensor.delta == 0) continue;
    least = std::min(least, tensor.*figure);
    most = std::max(most, tensor.*figure);
  }
  if (least > most) return "nothing to say";
  return fmt::format("{:.4f} to {:.4f}", least, most);
}

void print_text(merge_options_asked const& asked, merge_report const& report, double seconds) {
  row("checkpoint", printable(asked.folder));
  row("adapter", printable(asked.adapter));
  row("written to", fmt::format("{} as {}", printable(asked.out), name(asked.what.to)));
  std::string kept;
  if (report.shards_kept > 0) kept = fmt::format(" ({} from an earlier run)", report.shards_kept);
  row("files", fmt::format("{}{}, {} tensors, {}", report.shards, kept, report.output_tensors,
                           human_bytes(static_cast<double>(report.output_bytes))));
  row("merged", fmt::format("{} pairs of factors into {} tensors of the base, {} of the result",
                            report.pairs, report.modules, report.merged.size()));
  row("kept",
      fmt::format("{} of the change (1: all of it)", range_of(report, &merged_tensor::kept)));
  row("error", fmt::format("{} times the change", range_of(report, &merged_tensor::error)));
  row("time", fmt::format("{}, {}, buffers {}, peak {}", human_seconds(seconds),
                          human_rate(static_cast<double>(report.output_bytes) / seconds, "B/s"),
                          human_bytes(static_cast<double>(report.buffer_bytes)),
                          human_bytes(peak_memory())));
  for (std::string const& note : report.notes) row("note", printable(note));
  for (std::string const& warning : report.warnings) row("WARNING", printable(warning));
  for (std::string const& anomaly : report.anomalies) row("ANOMALY", printable(anomaly));
}

/// A number that JSON has no text for is null.
json number(double value) { return std::isfinite(value) ? json(value) : json(); }

void print_json(merge_options_asked const& asked, merge_report const& report, double seconds) {
  json object;
  object["base"] = asked.folder;
  object["adapter"] = asked.adapter;
  object["out"] = asked.out;
  object["to"] = name(asked.what.to);
  object["ok"] = report.clean();
  object["pairs"] = report.pairs;
  object["modules"] = report.modules;
  object["tensors"] = {{"input", report.tensors.size()}, {"output", report.output_tensors}};
  object["merged"] = json::array();
  for (merged_tensor const& tensor : report.merged) {
    object["merged"].push_back({{"tensor", tensor.tensor},
                                {"delta", number(tensor.delta)},
                                {"kept", number(tensor.kept)},
                                {"error", number(tensor.error)},
                                {"survives", tensor.survives()}});
  }
  object["shards"] = report.shards;
  object["shards_kept"] = report.shards_kept;
  object["input_bytes"] = report.input_bytes;
  object["output_bytes"] = report.output_bytes;
  object["not_finite"] = report.not_finite;
  object["assumed"] = report.assumed;
  object["side_files"] = report.side_files;
  object["notes"] = report.notes;
  object["warnings"] = report.warnings;
  object["anomalies"] = report.anomalies;
  object["seconds"] = seconds;
  object["buffer_bytes"] = report.buffer_bytes;
  object["peak_bytes"] = peak_memory();
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace

exit_code merge_verb(merge_options_asked const& asked) {
  cpu_pool pool(asked.threads);
  interrupt_watch const watch;
  checkpoint_reader const reader(asked.folder, asked.how);
  auto const begin = std::chrono::steady_clock::now();
  merge_report report;
  {
    progress_bar bar("merge", "MB", asked.progress);
    report = merge(reader, asked.adapter, asked.out, asked.what, cpu_stream(&pool),
                   [&](index_t done, index_t total) {
                     watch.check();
                     bar.update(done / 1'000'000, total / 1'000'000);
                   });
  }
  double const seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  asked.json ? print_json(asked, report, seconds) : print_text(asked, report, seconds);
  flush_output();
  return report.clean() ? exit_code::ok : exit_code::failed;
}

void refuse_adapter(std::string const& folder) {
  std::error_code ignored;
  std::filesystem::path const path(folder);
  if (!std::filesystem::exists(path / "adapter_config.json", ignored) ||
      std::filesystem::exists(path / "config.json", ignored)) {
    return;
  }
  throw error(errc::invalid_argument,
              fmt::format("[check] {}: is an adapter: state the checkpoint that it is for with "
                          "--base, or merge it",
                          folder));
}

exit_code check_fit(check_verb_options const& options) {
  checkpoint_reader const base(options.base, options.how);
  adapter_fit const fit = check_adapter(base, options.folder, options.adapter);
  if (options.json) {
    json object;
    object["adapter"] = options.folder;
    object["base"] = options.base;
    object["ok"] = true;
    object["pairs"] = fit.pairs;
    object["modules"] = fit.modules;
    object["bytes"] = fit.bytes;
    fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
  } else {
    row("adapter", fmt::format("{}, {}", printable(options.folder),
                               human_bytes(static_cast<double>(fit.bytes))));
    row("base", printable(options.base));
    fmt::print("ok: {} pairs of factors fit {} tensors of the base\n", fit.pairs, fit.modules);
  }
  flush_output();
  return exit_code::ok;
}

}  // namespace moe64::cli
