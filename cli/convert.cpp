#include "moe64/convert.hpp"

#include "fmt/format.h"
#include "interrupt.hpp"
#include "machine.hpp"
#include "moe64/cpu.hpp"
#include "nlohmann/json.hpp"
#include "standard_output.hpp"
#include "terminal.hpp"
#include "verbs.hpp"
#include "whole_file.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

void row(char const* label, std::string const& text) { fmt::print("{:<12} {}\n", label, text); }

std::string joined(std::vector<std::string> const& words) {
  std::string text;
  for (std::string const& word : words) text += (text.empty() ? "" : ", ") + printable(word);
  return text;
}

/// Reasons and how many tensors each has, in order of names.
std::map<std::string_view, index_t> reasons_of(convert_report const& report, tensor_fate fate) {
  std::map<std::string_view, index_t> reasons;
  for (tensor_account const& account : report.tensors) {
    if (account.fate == fate) ++reasons[account.reason];
  }
  return reasons;
}

void print_text(convert_options_asked const& asked, convert_report const& report, double seconds) {
  row("checkpoint", printable(asked.folder));
  row("dialects", report.dialects.empty() ? "none" : joined(report.dialects));
  if (!report.assumed.empty()) row("assumed", joined(report.assumed));
  row("written to", fmt::format("{} as {}", printable(asked.out), name(asked.what.to)));
  std::string kept;
  if (report.shards_kept > 0) kept = fmt::format(" ({} from an earlier run)", report.shards_kept);
  row("files", fmt::format("{}{}, {} tensors, {}", report.shards, kept, report.output_tensors,
                           human_bytes(static_cast<double>(report.output_bytes))));
  row("coverage", fmt::format("{} tensors: {} converted, {} copied, {} consumed, {} dropped",
                              report.tensors.size(), report.converted, report.copied,
                              report.consumed, report.dropped));
  for (tensor_fate const fate :
       {tensor_fate::copied, tensor_fate::consumed, tensor_fate::dropped}) {
    for (auto const& [reason, count] : reasons_of(report, fate)) {
      if (reason.empty()) continue;
      row("", fmt::format("{} {}: {}", count, name(fate), reason));
    }
  }
  row("copied", report.side_files.empty() ? "nothing" : joined(report.side_files));
  row("time", fmt::format("{}, {}, buffers {}, peak {}", human_seconds(seconds),
                          human_rate(static_cast<double>(report.output_bytes) / seconds, "B/s"),
                          human_bytes(static_cast<double>(report.buffer_bytes)),
                          human_bytes(peak_memory())));
  for (std::string const& note : report.notes) row("note", printable(note));
  for (std::string const& anomaly : report.anomalies) row("ANOMALY", printable(anomaly));
}

/// What is known before the conversion and after it.
json describe(convert_options_asked const& asked, convert_report const& report) {
  json object;
  object["from"] = asked.folder;
  object["out"] = asked.out;
  object["to"] = name(asked.what.to);
  object["ok"] = report.clean();
  object["dialects"] = report.dialects;
  object["assumed"] = report.assumed;
  object["tensors"] = {{"input", report.tensors.size()}, {"output", report.output_tensors},
                       {"converted", report.converted},  {"copied", report.copied},
                       {"consumed", report.consumed},    {"dropped", report.dropped}};
  object["dropped"] = json::array();
  for (tensor_account const& account : report.tensors) {
    if (account.fate != tensor_fate::dropped) continue;
    object["dropped"].push_back({{"tensor", account.tensor}, {"reason", account.reason}});
  }
  object["shards"] = report.shards;
  object["shards_kept"] = report.shards_kept;
  object["input_bytes"] = report.input_bytes;
  object["output_bytes"] = report.output_bytes;
  object["overflows"] = report.overflows;
  object["not_finite"] = report.not_finite;
  object["side_files"] = report.side_files;
  object["notes"] = report.notes;
  object["anomalies"] = report.anomalies;
  return object;
}

void print_json(convert_options_asked const& asked, convert_report const& report, double seconds) {
  json object = describe(asked, report);
  object["seconds"] = seconds;
  object["buffer_bytes"] = report.buffer_bytes;
  object["peak_bytes"] = peak_memory();
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

void print_preview_text(convert_options_asked const& asked, convert_preview const& planned) {
  convert_report const& report = planned.report;
  row("checkpoint", printable(asked.folder));
  row("dialects", report.dialects.empty() ? "none" : joined(report.dialects));
  if (!report.assumed.empty()) row("assumed", joined(report.assumed));
  row("would write", fmt::format("{} as {}", printable(asked.out), name(asked.what.to)));
  std::vector<std::vector<std::string>> rows{{"file", "bytes", "tensors", "kept"}};
  for (convert_file const& file : planned.files) {
    rows.push_back({printable(file.name), fmt::format("{}", file.bytes),
                    file.tensors > 0 ? fmt::format("{}", file.tensors) : "",
                    file.kept ? "yes" : ""});
  }
  fmt::print("\n{}\n", table(rows));
  row("coverage", fmt::format("{} tensors: {} converted, {} copied, {} consumed, {} dropped",
                              report.tensors.size(), report.converted, report.copied,
                              report.consumed, report.dropped));
  row("to write", fmt::format("{} bytes ({})", planned.write_bytes,
                              human_bytes(static_cast<double>(planned.write_bytes))));
  std::string free = "not known";
  if (planned.free_bytes >= 0) {
    free = human_bytes(static_cast<double>(planned.free_bytes + planned.freed_bytes));
  }
  row("free there", free + (planned.fits() ? "" : ": TOO LITTLE"));
  row("time", fmt::format("about {} to read and convert (from {} on {} threads); writing comes on "
                          "top where the disk is slower",
                          human_seconds(planned.seconds),
                          human_bytes(static_cast<double>(planned.sampled_bytes)), asked.threads));
  for (std::string const& note : report.notes) row("note", printable(note));
  for (std::string const& anomaly : report.anomalies) row("ANOMALY", printable(anomaly));
  fmt::print("nothing was written\n");
}

void print_preview_json(convert_options_asked const& asked, convert_preview const& planned) {
  json object = describe(asked, planned.report);
  object["dry_run"] = true;
  object["files"] = json::array();
  for (convert_file const& file : planned.files) {
    object["files"].push_back({{"name", file.name},
                               {"bytes", file.bytes},
                               {"tensors", file.tensors},
                               {"kept", file.kept}});
  }
  object["write_bytes"] = planned.write_bytes;
  object["free_bytes"] = planned.free_bytes < 0 ? json() : json(planned.free_bytes);
  object["freed_bytes"] = planned.freed_bytes;
  object["fits"] = planned.fits();
  object["estimated_seconds"] = planned.seconds;
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

constexpr std::string_view coverage_option = "convert --coverage";

std::string coverage_text(convert_report const& report) {
  std::string text;
  for (tensor_account const& account : report.tensors) {
    text +=
        fmt::format("{}\t{}\t{}\n", name(account.fate), printable(account.tensor), account.reason);
  }
  return text;
}

/// Every line is a fate, a name and a reason.
bool is_coverage(std::string_view head) {
  bool any = false;
  for (std::size_t end = head.find('\n'); end != std::string_view::npos; end = head.find('\n')) {
    std::string_view const line = head.substr(0, end);
    head.remove_prefix(end + 1);
    std::string_view const fate = line.substr(0, line.find('\t'));
    bool const known = fate == name(tensor_fate::converted) || fate == name(tensor_fate::copied) ||
                       fate == name(tensor_fate::consumed) || fate == name(tensor_fate::dropped);
    if (!known || std::count(line.begin(), line.end(), '\t') != 2) return false;
    any = true;
  }
  return any;
}

/// The output folder holds what convert wrote and nothing else, so that it can go on there.
void refuse_inside(std::string const& file, std::string const& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path const parent = fs::weakly_canonical(fs::absolute(file, ignored).parent_path(), ignored);
  fs::path const out = fs::weakly_canonical(fs::absolute(folder, ignored) / ".", ignored);
  if (parent != out && parent / "" != out) return;
  throw error(errc::invalid_argument,
              fmt::format("[{}] {}: is in the output folder {}, which holds the checkpoint and "
                          "nothing else: choose another place",
                          coverage_option, file, folder));
}

exit_code print_preview(convert_options_asked const& asked) {
  cpu_pool pool(asked.threads);
  checkpoint_reader const reader(asked.folder, asked.how);
  convert_preview const planned =
      preview_conversion(reader, asked.out, asked.what, cpu_stream(&pool));
  asked.json ? print_preview_json(asked, planned) : print_preview_text(asked, planned);
  flush_output();
  if (planned.fits()) return exit_code::ok;
  throw error(errc::io_failure,
              fmt::format("[convert] {}: {} bytes would be written, and {} are free", asked.out,
                          planned.write_bytes, planned.free_bytes + planned.freed_bytes));
}

}  // namespace

exit_code convert_verb(convert_options_asked const& asked) {
  if (asked.dry_run) return print_preview(asked);
  std::optional<whole_file> coverage;
  if (!asked.coverage.empty()) {
    refuse_inside(asked.coverage, asked.out);
    coverage.emplace(asked.coverage, std::string(coverage_option), is_coverage);
  }
  cpu_pool pool(asked.threads);
  interrupt_watch const watch;
  checkpoint_reader const reader(asked.folder, asked.how);
  auto const begin = std::chrono::steady_clock::now();
  convert_report report;
  {
    progress_bar bar("convert", "MB", asked.progress);
    report =
        convert(reader, asked.out, asked.what, cpu_stream(&pool), [&](index_t done, index_t total) {
          watch.check();
          bar.update(done / 1'000'000, total / 1'000'000);
        });
  }
  double const seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  // The conversion took long: one place that fails does not keep its report from the other.
  std::exception_ptr not_printed;
  try {
    asked.json ? print_json(asked, report, seconds) : print_text(asked, report, seconds);
    flush_output();
  } catch (...) {
    not_printed = std::current_exception();
  }
  if (coverage) coverage->write(coverage_text(report));
  if (not_printed) std::rethrow_exception(not_printed);
  return report.clean() ? exit_code::ok : exit_code::failed;
}

}  // namespace moe64::cli
