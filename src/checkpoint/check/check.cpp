#include "moe64/check.hpp"

#include "checkpoint/check/findings.hpp"
#include "checkpoint/files/digests.hpp"
#include "checkpoint/load/opened.hpp"
#include "checkpoint/naming/part.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace moe64 {
namespace {

/// The worst level of each place.
std::vector<finding_mark> marks_of(checkpoint::findings const& found) {
  using place_key = std::tuple<bool, index_t, std::string_view, index_t>;
  std::map<place_key, finding_level> worst;
  for (auto const& [level, place] : found.marks()) {
    auto& known = worst[{place.mtp, place.layer, place.projection, place.expert}];
    known = std::max(known, level);
  }
  std::vector<finding_mark> marks;
  for (auto const& [key, level] : worst) {
    auto const& [mtp, layer, projection, expert] = key;
    marks.push_back({level, {layer, mtp, std::string(projection), expert}});
  }
  return marks;
}

void add_findings(checkpoint_reader::state const& opened, checkpoint::findings const& found,
                  check_report& report) {
  for (finding const& warning : opened.files.warnings()) {
    report.findings.push_back(warning);
    auto const known =
        std::find_if(report.rules.begin(), report.rules.end(),
                     [&](rule_total const& total) { return total.rule == warning.rule; });
    if (known == report.rules.end()) {
      report.rules.push_back({warning.level, warning.rule, 1});
    } else {
      ++known->count;
    }
  }
  report.findings.insert(report.findings.end(), found.kept().begin(), found.kept().end());
  report.marks = marks_of(found);
  report.rules.insert(report.rules.end(), found.rules().begin(), found.rules().end());
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

  findings found = resolved.found;
  find_missing_tensors(opened, found);
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
  if (options.sha256) {
    index_t bytes = 0;
    for (shard const& file : opened.files.shards()) bytes = checked_add(bytes, file.bytes);
    progress_counter counter(progress, bytes);
    report.files = digests_of(opened.files, where, counter);
    counter.finish();
    compare_digests(report.files, found);
  }
  add_findings(opened, found, report);
  return report;
}

}  // namespace checkpoint
}  // namespace moe64
