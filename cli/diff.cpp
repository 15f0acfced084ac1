#include "moe64/diff.hpp"

#include "fmt/format.h"
#include "interrupt.hpp"
#include "nlohmann/json.hpp"
#include "terminal.hpp"
#include "verbs.hpp"

#include <cstdio>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

void print_configs(diff_report const& report) {
  std::vector<std::vector<std::string>> rows = {{"config", "key", "A", "B"}};
  for (config_difference const& entry : report.configs) {
    rows.push_back({entry.file + (entry.of_storage ? " *" : ""),
                    entry.key.empty() ? "(the file)" : entry.key, entry.first, entry.second});
  }
  if (rows.size() > 1) fmt::print("\n{}\n", table(rows));
}

void print_text(diff_options_asked const& asked, diff_report const& report) {
  std::vector<std::vector<std::string>> rows = {
      {"state", "A", "B", "differ", "of", "max abs", "max rel", "tensor"}};
  index_t left = asked.shown;
  index_t omitted = 0;
  for (tensor_difference const& entry : report.tensors) {
    if (left == 0) {
      ++omitted;
      continue;
    }
    --left;
    rows.push_back({std::string(name(entry.state)) + (entry.of_activations ? " *" : ""),
                    entry.first.empty() ? "-" : entry.first,
                    entry.second.empty() ? "-" : entry.second, fmt::format("{}", entry.different),
                    fmt::format("{}", entry.numbers), human_error(entry.max_abs),
                    human_error(entry.max_rel), printable(entry.tensor)});
  }
  if (rows.size() > 1) fmt::print("{}", table(rows));
  if (omitted > 0) fmt::print("... and {} more\n", omitted);
  std::string counts;
  for (int i = 0; i < diff_state_count; ++i) {
    index_t const count = report.counts[static_cast<std::size_t>(i)];
    if (count == 0) continue;
    counts +=
        fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, name(static_cast<diff_state>(i)));
  }
  print_configs(report);
  if (!asked.what.part.whole()) fmt::print("limited to {}\n", to_string(asked.what.part));
  fmt::print("{}: {}\n", report.same ? "same" : "DIFFERENT", counts.empty() ? "nothing" : counts);
  if (report.numbers > 0) {
    fmt::print("{} of {} compared numbers differ, by at most {} ({} of the larger one)\n",
               report.different, report.numbers, human_error(report.max_abs),
               human_error(report.max_rel));
  }
}

void print_json(diff_options_asked const& asked, diff_report const& report) {
  json object;
  object["a"] = asked.folder;
  object["b"] = asked.other;
  object["same"] = report.same;
  object["tolerance"] = asked.what.tolerance;
  for (int i = 0; i < diff_state_count; ++i) {
    object["counts"][std::string(name(static_cast<diff_state>(i)))] =
        report.counts[static_cast<std::size_t>(i)];
  }
  object["numbers"] = report.numbers;
  object["different"] = report.different;
  object["max_abs"] = report.max_abs;  // infinity becomes null
  object["max_rel"] = report.max_rel;
  object["limited_to"] = to_string(asked.what.part);
  object["configs"] = json::array();
  for (config_difference const& entry : report.configs) {
    object["configs"].push_back({{"file", entry.file},
                                 {"key", entry.key},
                                 {"a", entry.first},
                                 {"b", entry.second},
                                 {"of_storage", entry.of_storage}});
  }
  object["tensors"] = json::array();
  for (tensor_difference const& entry : report.tensors) {
    object["tensors"].push_back({{"tensor", entry.tensor},
                                 {"state", name(entry.state)},
                                 {"a", entry.first},
                                 {"b", entry.second},
                                 {"numbers", entry.numbers},
                                 {"different", entry.different},
                                 {"max_abs", entry.max_abs},
                                 {"max_rel", entry.max_rel},
                                 {"largest", entry.largest},
                                 {"of_activations", entry.of_activations}});
  }
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace

exit_code diff_verb(diff_options_asked const& asked) {
  cpu_pool pool(asked.threads);
  interrupt_watch const watch;
  checkpoint_reader const first(asked.folder, asked.how);
  checkpoint_reader const second(asked.other, asked.how);
  diff_report report;
  {
    progress_bar bar("diff", "MB", asked.progress);
    report = diff(first, second, asked.what, cpu_stream(&pool), [&](index_t done, index_t total) {
      watch.check();
      bar.update(done / 1'000'000, total / 1'000'000);
    });
  }
  asked.json ? print_json(asked, report) : print_text(asked, report);
  return report.same ? exit_code::ok : exit_code::failed;
}

}  // namespace moe64::cli
