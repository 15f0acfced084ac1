#include "moe64/convert.hpp"

#include "fmt/format.h"
#include "interrupt.hpp"
#include "machine.hpp"
#include "moe64/cpu.hpp"
#include "nlohmann/json.hpp"
#include "terminal.hpp"
#include "verbs.hpp"

#include <chrono>
#include <cstdio>
#include <map>

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
  for (tensor_fate const fate : {tensor_fate::consumed, tensor_fate::dropped}) {
    for (auto const& [reason, count] : reasons_of(report, fate)) {
      row("", fmt::format("{} {}: {}", count, name(fate), reason));
    }
  }
  row("beside", report.side_files.empty() ? "nothing" : joined(report.side_files));
  row("time", fmt::format("{}, {}, buffers {}, peak {}", human_seconds(seconds),
                          human_rate(static_cast<double>(report.output_bytes) / seconds, "B/s"),
                          human_bytes(static_cast<double>(report.buffer_bytes)),
                          human_bytes(peak_memory())));
  for (std::string const& note : report.notes) row("note", printable(note));
  for (std::string const& anomaly : report.anomalies) row("ANOMALY", printable(anomaly));
}

void print_json(convert_options_asked const& asked, convert_report const& report, double seconds) {
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
  object["seconds"] = seconds;
  object["buffer_bytes"] = report.buffer_bytes;
  object["peak_bytes"] = peak_memory();
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

void write_coverage(std::string const& path, convert_report const& report) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw error(errc::io_failure, "[convert] cannot write " + path);
  for (tensor_account const& account : report.tensors) {
    fmt::print(file, "{}\t{}\t{}\n", name(account.fate), printable(account.tensor), account.reason);
  }
  bool const failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed) {
    throw error(errc::io_failure, "[convert] cannot write " + path);
  }
}

}  // namespace

exit_code convert_verb(convert_options_asked const& asked) {
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
  if (!asked.coverage.empty()) write_coverage(asked.coverage, report);
  asked.json ? print_json(asked, report, seconds) : print_text(asked, report, seconds);
  return report.clean() ? exit_code::ok : exit_code::failed;
}

}  // namespace moe64::cli
