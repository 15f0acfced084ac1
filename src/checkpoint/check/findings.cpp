#include "checkpoint/check/findings.hpp"

#include "checkpoint/findings/quoted.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::checkpoint {
namespace {

/// In blocks of this many codes few reach the largest one; in small groups many do.
constexpr index_t least_block = 1024;
constexpr double most_saturated = 0.02;
/// Experts of one projection are trained alike: their scales differ less.
constexpr double unusual_ratio = 16.0;

index_t block_elements(scan_item const& item) {
  storage_grid const grid = storage_of(*item.format);
  return std::min(grid.rows.block, grid.rows.extent) * std::min(grid.cols.block, grid.cols.extent);
}

bool is_repeated_scale(scan_item const& item) {
  return item.shared >= 0 && item.value_begin > 0 && item.format->scales == scale_codec::tensor;
}

/// Of a stack, which expert; nothing for a tensor of its own.
std::string slice_text(scan_item const& item) {
  return item.format != nullptr && item.format->stacked ? fmt::format(", expert {}", item.expert)
                                                        : std::string();
}

void judge_scales(scan_item const& item, scan_result const& result, findings& found) {
  scale_counts const& counts = result.scales;
  std::string_view const tensor = item.scales->name;
  auto const error = [&](std::string_view rule, index_t count, std::string_view what) {
    if (count == 0) return;
    found.error(errc::invalid_argument, rule, tensor, "tensor {}{}: {} of {} scales {}",
                quoted(tensor), slice_text(item), count, counts.scales, what);
  };
  error("non-finite-scale", counts.non_finite, "are NaN or infinite");
  error("negative-scale", counts.negative, "are negative");
  error("zero-scale", result.wrong_zeros, "are zero, but their blocks hold other codes than zero");
  error("not-power-of-two", counts.not_power_of_two,
        "are no powers of two, although ue8m0 is declared");
  if (counts.subnormal > 0) {
    found.warning("subnormal-scale", tensor,
                  "tensor {}{}: {} of {} scales are subnormal: zero on hardware that flushes them",
                  quoted(tensor), slice_text(item), counts.subnormal, counts.scales);
  }
  if (index_t const idle = counts.zero - result.wrong_zeros; idle > 0) {
    found.note("empty-block", tensor, "tensor {}{}: {} of {} scales are zero, over codes of zero",
               quoted(tensor), slice_text(item), idle, counts.scales);
  }
}

void judge_global(scan_item const& item, scan_result const& result, findings& found) {
  bool const repeated = item.shared >= 0 && item.value_begin > 0;
  if (!result.global || repeated || (std::isfinite(*result.global) && *result.global > 0.0)) return;
  found.error(errc::invalid_argument, "bad-global-scale", item.global->name,
              "tensor {}: the global scale is {}, expected a positive number",
              quoted(item.global->name), *result.global);
}

/// One that adds 1 to its weight begins at zero, and does not stay there.
bool is_norm(scan_item const& item) {
  return item.role == scan_role::other && item.values->shape.size() == 1 &&
         item.values->name.ends_with("norm.weight");
}

void judge_values(scan_item const& item, value_counts const& counts, findings& found) {
  std::string_view const tensor = item.values->name;
  if (counts.non_finite > 0 && is_codes(item.kind)) {
    found.error(errc::invalid_argument, "nan-code", tensor, "tensor {}{}: {} of {} codes are {}",
                quoted(tensor), slice_text(item), counts.non_finite, counts.elements,
                item.kind == value_kind::e5m2 ? "NaN or infinite" : "NaN");
  } else if (counts.non_finite > 0) {
    found.error(errc::invalid_argument, "non-finite-value", tensor,
                "tensor {}{}: {} of {} {} numbers are NaN or infinite", quoted(tensor),
                slice_text(item), counts.non_finite, counts.elements, name(item.values->type));
  }
  bool const weights = is_matrix(item) || is_plain_weight(item);
  if ((weights || is_norm(item)) && counts.elements > 0 && counts.largest == 0.0) {
    found.warning("all-zero", tensor, "tensor {}{}: all {} elements are zero", quoted(tensor),
                  slice_text(item), counts.elements);
  }
  if (!weights) return;
  bool const large_blocks = item.kind == value_kind::e4m3 && item.scales != nullptr &&
                            block_elements(item) >= least_block;
  double const share = static_cast<double>(counts.saturated) /
                       static_cast<double>(std::max<index_t>(1, counts.elements));
  if (large_blocks && share > most_saturated) {
    found.warning("saturated", tensor,
                  "tensor {}{}: {:.1f} % of its codes are the largest one: values were cut off",
                  quoted(tensor), slice_text(item), 100.0 * share);
  }
}

void judge_activation(scan_item const& item, scale_counts const& counts, findings& found) {
  index_t const wrong = counts.non_finite + counts.negative + counts.zero;
  if (wrong == 0) return;
  found.error(errc::invalid_argument, "bad-activation-scale", item.values->name,
              "tensor {}: {} of {} scales of activations are not positive numbers",
              quoted(item.values->name), wrong, counts.scales);
}

void judge_stated(scan_item const& item, scan_result const& result, findings& found) {
  if (item.value_bytes == 0) return;  // some exporters leave it empty
  std::array<index_t, 2> const expected = {item.format->rows, item.format->cols};
  if (result.stated == expected) return;
  found.error(errc::shape_mismatch, "weight-shape", item.values->name,
              "tensor {} states {}, but the weight holds [{}, {}]", quoted(item.values->name),
              result.stated ? fmt::format("[{}, {}]", (*result.stated)[0], (*result.stated)[1])
                            : "no two integers",
              expected[0], expected[1]);
}

void judge_layers(std::span<layer_statistics const> layers, findings& found) {
  for (layer_statistics const& layer : layers) {
    for (projection_statistics const& projection : layer.projections) {
      double const usual = projection.all.scale_median;
      for (matrix_statistics const& one : projection.experts) {
        found.set_place({layer.layer, layer.mtp, projection.projection, one.expert});
        if (one.scale_median <= 0.0 || usual <= 0.0) continue;
        double const ratio = one.scale_median / usual;
        if (ratio <= unusual_ratio && ratio >= 1.0 / unusual_ratio) continue;
        found.note("unusual-scale", "",
                   "{}layer {}, {} of expert {}: its median scale {:.3g} is {:.3g} times that of "
                   "the layer",
                   layer.mtp ? "MTP " : "", layer.layer, projection.projection, one.expert,
                   one.scale_median, ratio);
      }
    }
  }
}

/// Of an expert of a stack; names of single tensors say it themselves.
finding_place place_of(scan_item const& item, std::span<layer_statistics const> layers) {
  if (item.role != scan_role::expert || !item.format->stacked) return {};
  layer_statistics const& layer = layers[static_cast<std::size_t>(item.layer)];
  return {layer.layer, layer.mtp,
          layer.projections[static_cast<std::size_t>(item.projection)].projection, item.expert};
}

}  // namespace

std::string text_of(scan_item const& item) {
  return fmt::format("tensor {}{}", quoted(item.values->name), slice_text(item));
}

bool is_matrix(scan_item const& item) noexcept {
  return item.role == scan_role::expert || item.role == scan_role::dense;
}

bool is_plain_weight(scan_item const& item) noexcept {
  return item.role == scan_role::other && !is_codes(item.kind) && item.kind != value_kind::opaque &&
         item.values->shape.size() == 2 && item.values->name.ends_with(".weight");
}

void find_in_values(scanned const& all, std::span<layer_statistics const> layers,
                    double median_scale, findings& found) {
  for (std::size_t i = 0; i < all.plan.items.size(); ++i) {
    scan_item const& item = all.plan.items[i];
    scan_result const& result = all.results[i];
    found.set_place(place_of(item, layers));
    for (std::string const& why : result.unreadable) {
      found.error(errc::io_failure, "unreadable", item.values->name, "{}: {}", text_of(item), why);
    }
    if (!result.unreadable.empty()) continue;  // what was read of it may be misleading
    if (item.role == scan_role::activation_scale) {
      judge_activation(item, result.scales, found);
    } else if (item.role == scan_role::weight_shape) {
      judge_stated(item, result, found);
    } else {
      if (item.scales != nullptr && !is_repeated_scale(item)) judge_scales(item, result, found);
      if (item.global != nullptr) judge_global(item, result, found);
      judge_values(item, result.values, found);
      judge_contents(item, result, found);
    }
  }
  judge_layers(layers, found);
  found.set_place({});
  compare_sizes(all, layers, found);
  find_repetitions(all, found);
  if (median_scale > 1.0) {
    found.error(errc::invalid_argument, "scale-direction", "",
                "the median scale is {:.3g}: scales look like quantisation factors (448 / amax), "
                "not like what codes are multiplied by",
                median_scale);
  }
}

}  // namespace moe64::checkpoint
