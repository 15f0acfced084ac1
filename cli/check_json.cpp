#include "check_json.hpp"

#include "layer_text.hpp"

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

json to_json(matrix_statistics const& one) {
  json object;
  if (one.expert >= 0) object["expert"] = one.expert;
  object["elements"] = one.elements;
  object["non_finite"] = one.non_finite;
  object["saturated"] = one.saturated;
  object["negative_zero"] = one.negative_zero;
  object["scales"] = one.scales;
  object["wrong_scales"] = one.wrong_scales;
  object["scale_min"] = one.scale_min;
  object["scale_median"] = one.scale_median;
  object["scale_max"] = one.scale_max;
  object["amax"] = one.amax;
  object["rms"] = one.rms;
  return object;
}

json to_json(layer_statistics const& layer) {
  json object;
  object["layer"] = layer.layer;
  object["mtp"] = layer.mtp;
  object["dialect"] = layer.dialect;
  object["experts"] = layer.experts;
  json projections = json::array();
  for (projection_statistics const& projection : layer.projections) {
    json experts = json::array();
    for (matrix_statistics const& one : projection.experts) experts.push_back(to_json(one));
    projections.push_back({{"projection", projection.projection},
                           {"all", to_json(projection.all)},
                           {"experts", std::move(experts)}});
  }
  object["projections"] = std::move(projections);
  return object;
}

}  // namespace

json to_json(check_totals const& totals) {
  json object;
  object["shards"] = totals.shards;
  object["tensors"] = totals.tensors;
  object["data_bytes"] = totals.data_bytes;
  object["read_bytes"] = totals.read_bytes;
  object["weights_found"] = totals.weights_found;
  object["scales_found"] = totals.scales_found;
  object["matched"] = totals.matched;
  object["activation_scales"] = totals.activation_scales;
  object["codes"] = totals.codes;
  object["nan_codes"] = totals.nan_codes;
  object["saturated_codes"] = totals.saturated_codes;
  object["negative_zero_codes"] = totals.negative_zero_codes;
  object["scales"] = totals.scales;
  object["wrong_scales"] = totals.wrong_scales;
  object["plain_numbers"] = totals.plain_numbers;
  object["non_finite_numbers"] = totals.non_finite_numbers;
  object["median_scale"] = totals.median_scale;
  return object;
}

json to_json(check_report const& report) {
  json object;
  object["ok"] = report.ok();
  object["errors"] = report.count(finding_level::error);
  object["warnings"] = report.count(finding_level::warning);
  object["notes"] = report.count(finding_level::note);
  object["totals"] = to_json(report.totals);
  json rules = json::array();
  for (rule_total const& rule : report.rules) {
    rules.push_back({{"level", name(rule.level)}, {"rule", rule.rule}, {"count", rule.count}});
  }
  object["rules"] = std::move(rules);
  json findings = json::array();
  for (finding const& found : report.findings) {
    findings.push_back({{"level", name(found.level)},
                        {"rule", found.rule},
                        {"tensor", found.tensor},
                        {"text", found.text}});
  }
  object["findings"] = std::move(findings);
  json layers = json::array();
  for (layer_statistics const& layer : report.layers) layers.push_back(to_json(layer));
  object["layers"] = std::move(layers);
  if (!report.files.empty()) {
    json files = json::array();
    for (file_digest const& file : report.files) {
      files.push_back({{"file", file.file},
                       {"sha256", file.sha256},
                       {"stated", file.stated},
                       {"source", file.source}});
    }
    object["files"] = std::move(files);
  }
  return object;
}

}  // namespace moe64::cli
