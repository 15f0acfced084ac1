#include "moe64/check.hpp"

#include "checkpoint/check_findings.hpp"
#include "checkpoint/opened.hpp"
#include "checkpoint/part.hpp"

#include <algorithm>

namespace moe64 {
namespace {

void add_findings(checkpoint_reader::state const& opened, checkpoint::diagnostics const& found,
                  check_report& report) {
  for (checkpoint::finding const& warning : opened.files.warnings()) {
    report.findings.push_back({finding_level::warning, warning.rule, "", warning.text});
    auto const known =
        std::find_if(report.rules.begin(), report.rules.end(),
                     [&](rule_total const& total) { return total.rule == warning.rule; });
    if (known == report.rules.end()) {
      report.rules.push_back({finding_level::warning, warning.rule, 1});
    } else {
      ++known->count;
    }
  }
  for (checkpoint::diagnostic const& entry : found.kept()) {
    report.findings.push_back(checkpoint::public_finding(entry));
  }
  for (auto const& rule : found.rules()) {
    report.rules.push_back(
        {static_cast<finding_level>(rule.level), std::string(rule.rule), rule.count});
  }
}

}  // namespace

index_t check_report::count(finding_level level) const noexcept {
  index_t total = 0;
  for (rule_total const& rule : rules) total += rule.level == level ? rule.count : 0;
  return total;
}

check_report check(checkpoint_reader const& checkpoint, check_options const& options, stream where,
                   progress_report const& progress) {
  return checkpoint::check_opened(checkpoint.internals(), options, where, progress);
}

namespace checkpoint {

check_report check_opened(checkpoint_reader::state const& opened, check_options const& options,
                          stream where, progress_report const& progress) {
  require_cpu(where, "check");
  require_present(options.part, opened.files, "check");
  resolved_checkpoint const& resolved = opened.resolved;
  check_report report;
  check_totals& totals = report.totals;
  totals.shards = std::ssize(opened.files.shards());
  totals.tensors = std::ssize(opened.files.tensors());
  for (auto const& tensor : opened.files.tensors()) {
    totals.data_bytes = checked_add(totals.data_bytes, tensor.bytes);
  }
  totals.weights_found = resolved.weights_found;
  totals.scales_found = resolved.scales_found;
  totals.matched = resolved.matched;
  totals.activation_scales = resolved.activation_scales;

  diagnostics found = resolved.found;
  if (options.values) {
    scan_plan const plan = plan_scan(opened.files, resolved, options.part);
    progress_counter counter(progress, plan.total_bytes);
    auto const results = run_scan(opened.files, plan, where, counter);
    counter.finish();
    totals.read_bytes = counter.done();
    scanned const all{resolved, plan, results};
    report.layers = statistics_of(all);
    add_totals(all, totals);
    find_in_values(all, report.layers, totals.median_scale, found);
  }
  add_findings(opened, found, report);
  return report;
}

}  // namespace checkpoint
}  // namespace moe64
