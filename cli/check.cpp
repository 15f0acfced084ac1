#include "moe64/check.hpp"

#include "check_json.hpp"
#include "check_page.hpp"
#include "fmt/format.h"
#include "interrupt.hpp"
#include "layer_text.hpp"
#include "moe64/cpu.hpp"
#include "standard_output.hpp"
#include "terminal.hpp"
#include "verbs.hpp"
#include "whole_file.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr index_t texts_per_rule = 5;
constexpr std::size_t layers_shown = 20;

void row(char const* label, std::string const& text) { fmt::print("{:<10} {}\n", label, text); }

std::string share_text(index_t part, index_t whole) {
  if (whole == 0) return "0 %";
  return fmt::format("{:.3g} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void print_totals(std::string const& folder, check_report const& report, double seconds) {
  check_totals const& all = report.totals;
  row("checkpoint", printable(folder));
  row("read", fmt::format("{} shards, {} tensors, {} of {} bytes in {} ({})", all.shards,
                          all.tensors, all.read_bytes, all.data_bytes, human_seconds(seconds),
                          human_rate(static_cast<double>(all.read_bytes) / seconds, "B/s")));
  row("matched", fmt::format("{} quantised weights, {} scales, {} matched", all.weights_found,
                             all.scales_found, all.matched));
  row("codes",
      fmt::format("{}: {} NaN, {} saturated ({}), {} negative zeros",
                  human_count(static_cast<double>(all.codes)), all.nan_codes, all.saturated_codes,
                  share_text(all.saturated_codes, all.codes), all.negative_zero_codes));
  row("scales",
      fmt::format("{}: {} wrong, median {:.3g}", human_count(static_cast<double>(all.scales)),
                  all.wrong_scales, all.median_scale));
  row("plain",
      fmt::format("{} numbers, {} not finite", human_count(static_cast<double>(all.plain_numbers)),
                  all.non_finite_numbers));
}

/// Errors first; of each rule a few texts.
void print_findings(check_report const& report) {
  for (finding_level const level :
       {finding_level::error, finding_level::warning, finding_level::note}) {
    for (rule_total const& rule : report.rules) {
      if (rule.level != level) continue;
      fmt::print("\n{} {} ({})\n", name(level), printable(rule.rule), rule.count);
      index_t shown = 0;
      for (finding const& found : report.findings) {
        if (found.level != level || found.rule != rule.rule || shown == texts_per_rule) continue;
        fmt::print("  {}\n", printable(found.text));
        ++shown;
      }
      if (rule.count > shown) fmt::print("  ... and {} more\n", rule.count - shown);
    }
  }
}

/// Projections in which something is wrong.
void print_layers(check_report const& report) {
  std::vector<std::vector<std::string>> rows{{"layer", "part", "dialect", "scale min", "median",
                                              "max", "amax", "saturated", "NaN", "wrong scales",
                                              "experts"}};
  std::size_t left_out = 0;
  for (layer_statistics const& layer : report.layers) {
    for (projection_statistics const& part : layer.projections) {
      if (part.all.non_finite == 0 && part.all.wrong_scales == 0) continue;
      if (rows.size() > layers_shown) {
        ++left_out;
        continue;
      }
      std::string experts;
      index_t wrong = 0;
      for (matrix_statistics const& one : part.experts) {
        if (one.non_finite == 0 && one.wrong_scales == 0) continue;
        if (++wrong <= 4) experts += fmt::format("{}{}", wrong > 1 ? ", " : "#", one.expert);
      }
      if (wrong > 4) experts += fmt::format(" and {} more", wrong - 4);
      rows.push_back(
          {fmt::format("{}{}", layer.mtp ? "MTP " : "", layer.layer), part.projection,
           layer.dialect, fmt::format("{:.3g}", part.all.scale_min),
           fmt::format("{:.3g}", part.all.scale_median), fmt::format("{:.3g}", part.all.scale_max),
           fmt::format("{:.3g}", part.all.amax), share_text(part.all.saturated, part.all.elements),
           fmt::format("{}", part.all.non_finite), fmt::format("{}", part.all.wrong_scales),
           experts});
    }
  }
  if (rows.size() == 1) return;
  fmt::print("\n{}", table(rows));
  if (left_out > 0) fmt::print("... and {} more\n", left_out);
}

void print_files(check_report const& report) {
  if (report.files.empty()) return;
  auto const as_stated = [](file_digest const& file) {
    return !file.stated.empty() && file.stated == file.sha256;
  };
  row("sha256", fmt::format("{} files, {} as stated beside them", report.files.size(),
                            std::ranges::count_if(report.files, as_stated)));
}

void print_text(check_verb_options const& options, check_report const& report, double seconds) {
  if (!options.part.whole()) row("limited to", to_string(options.part));
  print_totals(options.folder, report, seconds);
  print_files(report);
  print_findings(report);
  print_layers(report);
  fmt::print("\n{}: {} errors, {} warnings, {} notes\n", report.ok() ? "ok" : "FAIL",
             report.count(finding_level::error), report.count(finding_level::warning),
             report.count(finding_level::note));
}

void print_json(check_verb_options const& options, check_report const& report, double seconds) {
  json object;
  object["checkpoint"] = options.folder;
  object["seconds"] = seconds;
  if (!options.part.whole()) object["limited_to"] = to_string(options.part);
  object.update(to_json(report));
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace

exit_code check(check_verb_options const& options) {
  refuse_adapter(options.folder);
  auto const begin = std::chrono::steady_clock::now();
  std::optional<whole_file> page;
  if (!options.report.empty()) page.emplace(options.report, "check --report", is_check_page);
  interrupt_watch const watch;
  checkpoint_reader const reader(options.folder, options.how);
  cpu_pool pool(options.threads);
  check_report report;
  {
    constexpr index_t unit = 1'000'000;
    progress_bar bar("check", "MB", options.progress);
    check_options how;
    how.part = options.part;
    how.sha256 = options.sha256;
    report = moe64::check(reader, how, cpu_stream(&pool), [&](index_t done, index_t total) {
      watch.check();
      bar.update(done / unit, total / unit);
    });
  }
  double const seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  // The findings took long to get: one place that fails does not keep them from the other.
  std::exception_ptr not_printed;
  try {
    options.json ? print_json(options, report, seconds) : print_text(options, report, seconds);
    flush_output();
  } catch (...) {
    not_printed = std::current_exception();
  }
  if (page) page->write(check_page(options.folder, report));
  if (not_printed) std::rethrow_exception(not_printed);
  return report.ok() ? exit_code::ok : exit_code::failed;
}

}  // namespace moe64::cli
