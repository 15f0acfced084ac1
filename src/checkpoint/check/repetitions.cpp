#include "checkpoint/check/findings.hpp"
#include "checkpoint/findings/quoted.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace moe64::checkpoint {
namespace {

/// Largest magnitude of the codes; 0 where that is not known.
double largest_code(value_kind kind) {
  switch (kind) {
    case value_kind::e4m3:
      return 448.0;
    case value_kind::e5m2:
      return 57344.0;
    case value_kind::fp4:
      return 6.0;
    case value_kind::int4:
      return 8.0;
    default:
      return 0.0;
  }
}

/// Matrices whose scales come from one quantiser run: a projection of a layer, or all others.
struct scale_set {
  index_t matrices = 0;
  index_t scales = 0;
  index_t ones = 0;       ///< matrices with no other scale than 1
  index_t full = 0;       ///< matrices that use the codes up to the largest ones
  std::string_view name;  ///< of the first tensor of scales
  std::string where;
};

void count_into(scale_set& set, scan_item const& item, scan_result const& result) {
  scale_counts const& scales = result.scales;
  if (set.matrices == 0) set.name = item.scales->name;
  ++set.matrices;
  set.scales += scales.scales;
  set.ones += scales.smallest == 1.0 && scales.largest == 1.0 ? 1 : 0;
  set.full += result.values.largest > largest_code(item.kind) / 2 ? 1 : 0;
}

/// Codes that were never scaled are small: a weight of 0.02 is far below the largest code. Codes
/// that use the whole range were divided by a scale, and 1 is not it.
void judge_set(scale_set const& set, findings& found) {
  if (set.matrices == 0 || set.scales < 2 || set.ones < set.matrices) return;
  if (set.full * 2 > set.matrices) {
    found.error(errc::invalid_argument, "unit-scale", set.name,
                "{}: all {} scales of {} matrices are 1, but their codes go up to the largest: the "
                "scales are lost",
                set.where, set.scales, set.matrices);
  } else {
    found.warning(
        "unit-scale", set.name,
        "{}: all {} scales of {} matrices are 1: the weights were rounded to codes as they "
        "are",
        set.where, set.scales, set.matrices);
  }
}

std::string_view projection_name(layer_entry const& layer, int projection) {
  constexpr std::array<std::string_view, 3> apart = {"gate", "up", "down"};
  constexpr std::array<std::string_view, 2> fused = {"gate_up", "down"};
  auto const i = static_cast<std::size_t>(projection);
  return layer.gate.module.fused ? fused[i] : apart[i];
}

void find_unit_scales(scanned const& all, findings& found) {
  std::map<std::pair<index_t, int>, scale_set> sets;
  for (std::size_t i = 0; i < all.plan.items.size(); ++i) {
    scan_item const& item = all.plan.items[i];
    if (!is_matrix(item) || item.scales == nullptr) continue;
    scale_set& set = sets[{item.layer, item.projection}];
    if (set.matrices == 0) {
      layer_entry const* const layer =
          item.layer < 0 ? nullptr : &all.resolved.layers[static_cast<std::size_t>(item.layer)];
      set.where = layer == nullptr
                      ? std::string("matrices beside the experts")
                      : fmt::format("{}layer {}, experts like {}", layer->mtp ? "MTP " : "",
                                    layer->layer, quoted(item.values->name));
    }
    count_into(set, item, all.results[i]);
  }
  for (auto const& [key, set] : sets) {
    if (key.first >= 0) {
      layer_entry const& layer = all.resolved.layers[static_cast<std::size_t>(key.first)];
      found.set_place(
          {layer.layer, layer.mtp, std::string(projection_name(layer, key.second)), -1});
    }
    judge_set(set, found);
    found.set_place({});
  }
}

/// Experts of a projection that are the same, as far as they were looked at.
void find_copies(scanned const& all, findings& found) {
  std::map<std::tuple<index_t, int, std::uint64_t>, std::size_t> seen;
  for (std::size_t i = 0; i < all.plan.items.size(); ++i) {
    scan_item const& item = all.plan.items[i];
    value_sample const& sample = all.results[i].sample;
    if (item.role != scan_role::expert || sample.constant || sample.taken < 2) continue;
    auto const [first, is_new] = seen.try_emplace({item.layer, item.projection, sample.digest}, i);
    if (is_new) continue;
    scan_item const& other = all.plan.items[first->second];
    found.warning("same-experts", item.values->name,
                  "{} holds the same as {}, expert {}: all {} elements that were looked at",
                  text_of(item), text_of(other), other.expert, sample.taken);
  }
}

}  // namespace

void find_repetitions(scanned const& all, findings& found) {
  find_unit_scales(all, found);
  find_copies(all, found);
}

}  // namespace moe64::checkpoint
