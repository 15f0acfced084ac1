#include "checkpoint/check/findings.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::checkpoint {
namespace {

matrix_statistics matrix_of(scan_item const& item, scan_result const& result) {
  matrix_statistics one;
  one.expert = item.expert;
  one.elements = result.values.elements;
  one.non_finite = result.values.non_finite;
  one.saturated = result.values.saturated;
  one.negative_zero = result.values.negative_zero;
  one.scales = result.scales.scales;
  one.wrong_scales = wrong_scales(result);
  one.amax = result.values.largest;
  one.rms = weight_rms(item, result);
  if (item.scales == nullptr) return one;
  double const factor = global_factor(item, result);
  if (std::isfinite(result.scales.smallest)) one.scale_min = result.scales.smallest * factor;
  one.scale_median = result.median_scale() * factor;
  one.scale_max = result.scales.largest * factor;
  one.amax = one.scale_max * result.values.largest;
  return one;
}

matrix_statistics summary_of(std::span<matrix_statistics const> experts) {
  matrix_statistics all;
  std::vector<double> medians;
  std::vector<double> sizes;
  for (matrix_statistics const& one : experts) {
    all.elements += one.elements;
    all.non_finite += one.non_finite;
    all.saturated += one.saturated;
    all.negative_zero += one.negative_zero;
    all.scales += one.scales;
    all.wrong_scales += one.wrong_scales;
    all.amax = std::max(all.amax, one.amax);
    if (one.rms > 0.0) sizes.push_back(one.rms);
    if (one.scale_median <= 0.0) continue;
    all.scale_min = medians.empty() ? one.scale_min : std::min(all.scale_min, one.scale_min);
    all.scale_max = std::max(all.scale_max, one.scale_max);
    medians.push_back(one.scale_median);
  }
  all.scale_median = median_of(medians);
  all.rms = median_of(sizes);
  return all;
}

}  // namespace

double median_of(std::vector<double>& values) {
  if (values.empty()) return 0.0;
  auto const middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double weight_rms(scan_item const& item, scan_result const& result) {
  return result.sample.rms() * global_factor(item, result);
}

double global_factor(scan_item const& item, scan_result const& result) {
  if (!result.global) return 1.0;
  double const stored = *result.global;
  if (!std::isfinite(stored) || stored <= 0.0) return 0.0;
  bool const divides = item.format != nullptr && item.format->scales == scale_codec::nv16_div;
  return divides ? 1.0 / stored : stored;
}

index_t wrong_scales(scan_result const& result) {
  scale_counts const& scales = result.scales;
  bool const wrong_global =
      result.global && (!std::isfinite(*result.global) || *result.global <= 0);
  return scales.non_finite + scales.negative + scales.not_power_of_two + result.wrong_zeros +
         (wrong_global ? 1 : 0);
}

std::vector<layer_statistics> statistics_of(scanned const& all) {
  std::vector<layer_statistics> layers;
  for (layer_entry const& entry : all.resolved.layers) {
    layer_statistics layer;
    layer.layer = entry.layer;
    layer.mtp = entry.mtp;
    layer.dialect = entry.dialect;
    layer.experts = entry.experts;
    for (char const* const name : {"gate", "up", "down"}) {
      projection_statistics projection;
      projection.projection = name;
      layer.projections.push_back(std::move(projection));
    }
    if (entry.gate.module.fused || !is_gated(entry.schema)) {
      layer.projections.erase(layer.projections.begin() + 1);
      layer.projections.front().projection = entry.gate.module.fused ? "gate_up" : "up";
    }
    layers.push_back(std::move(layer));
  }
  for (std::size_t i = 0; i < all.plan.items.size(); ++i) {
    scan_item const& item = all.plan.items[i];
    if (item.role != scan_role::expert) continue;
    layers[static_cast<std::size_t>(item.layer)]
        .projections[static_cast<std::size_t>(item.projection)]
        .experts.push_back(matrix_of(item, all.results[i]));
  }
  for (layer_statistics& layer : layers) {
    for (projection_statistics& projection : layer.projections) {
      projection.all = summary_of(projection.experts);
    }
  }
  return layers;
}

void add_totals(scanned const& all, check_totals& into) {
  std::vector<double> medians;
  for (std::size_t i = 0; i < all.plan.items.size(); ++i) {
    scan_item const& item = all.plan.items[i];
    scan_result const& result = all.results[i];
    if (item.role == scan_role::activation_scale || item.role == scan_role::weight_shape) continue;
    if (is_codes(item.kind)) {
      into.codes += result.values.elements;
      into.nan_codes += result.values.non_finite;
      into.saturated_codes += result.values.saturated;
      into.negative_zero_codes += result.values.negative_zero;
    } else if (item.kind != value_kind::opaque) {
      into.plain_numbers += result.values.elements;
      into.non_finite_numbers += result.values.non_finite;
    }
    // the one scale of a stack is counted with its first expert
    bool const repeated =
        item.shared >= 0 && item.value_begin > 0 && item.format->scales == scale_codec::tensor;
    if (item.scales == nullptr || repeated) continue;
    into.scales += result.scales.scales;
    into.wrong_scales += wrong_scales(result);
    double const median = result.median_scale() * global_factor(item, result);
    if (median > 0.0) medians.push_back(median);
  }
  into.median_scale = median_of(medians);
}

}  // namespace moe64::checkpoint
