#include "checkpoint/check/findings.hpp"
#include "checkpoint/findings/quoted.hpp"

#include <algorithm>
#include <map>

namespace moe64::checkpoint {
namespace {

/// Root mean squares of trained experts lie between 0.001 and 0.2, those of weights that were drawn
/// and never trained at 1 or below. With this size the inputs of a matrix of 64 columns come out 32
/// times as large.
constexpr double largest_rms = 4.0;
/// Beyond this no plain weight of any part of a model is; embeddings may be larger than experts.
constexpr double largest_plain_rms = 1e4;
/// How far experts of a projection, projections and layers may be apart. In trained models they
/// are within a factor of 3 or so.
constexpr double unusual_size = 8.0;
/// The same for other weights: attention, routers, dense layers.
constexpr double unusual_other_size = 16.0;
/// How far all experts may be from all the others. In trained models they are within a factor
/// of 10.
constexpr double unusual_experts_size = 64.0;
constexpr index_t least_layers = 3;  ///< of two nobody knows which is the odd one

bool is_far(double one, double usual, double factor) {
  return one > 0.0 && usual > 0.0 && (one > usual * factor || one * factor < usual);
}

std::string layer_text(layer_statistics const& layer) {
  return fmt::format("{}layer {}", layer.mtp ? "MTP " : "", layer.layer);
}

constexpr std::string_view too_large_text =
    "no trained model has such weights; scales are inverted, or were never divided by the largest "
    "code";

/// The experts of one projection of a layer.
void judge_projection(layer_statistics const& layer, projection_statistics const& part,
                      double usual, index_t layers, findings& found) {
  double const size = part.all.rms;
  finding_place place{layer.layer, layer.mtp, part.projection, -1};
  found.set_place(place);
  if (size > largest_rms) {
    found.error(
        errc::invalid_argument, "weight-size", "",
        "{}, {}: its weights are about {:.3g} (root mean square), those of all layers {:.3g}: "
        "{}",
        layer_text(layer), part.projection, size, usual, too_large_text);
    return;
  }
  if (layers >= least_layers && is_far(size, usual, unusual_size)) {
    found.warning("layer-size", "",
                  "{}, {}: its weights are about {:.3g} (root mean square), {:.3g} times those of "
                  "the other layers",
                  layer_text(layer), part.projection, size, size / usual);
  }
  for (matrix_statistics const& one : part.experts) {
    place.expert = one.expert;
    found.set_place(place);
    if (one.rms > largest_rms) {
      found.error(errc::invalid_argument, "weight-size", "",
                  "{}, {} of expert {}: its weights are about {:.3g} (root mean square), those of "
                  "the other experts {:.3g}: {}",
                  layer_text(layer), part.projection, one.expert, one.rms, size, too_large_text);
    } else if (one.rms > size * unusual_size && size > 0.0) {
      found.warning("expert-size", "",
                    "{}, {} of expert {}: its weights are about {:.3g} (root mean square), {:.3g} "
                    "times those of the other experts",
                    layer_text(layer), part.projection, one.expert, one.rms, one.rms / size);
    } else if (is_far(one.rms, size, unusual_size)) {
      found.note(
          "small-expert", "",
          "{}, {} of expert {}: its weights are about {:.3g} (root mean square), {:.3g} times "
          "those of the other experts: perhaps never trained",
          layer_text(layer), part.projection, one.expert, one.rms, one.rms / size);
    }
  }
}

/// Gate, up and down of the whole checkpoint. Not when they are wrong by themselves.
void judge_projections(std::map<std::string_view, double> const& sizes, findings& found) {
  auto const is_small = [](auto const& left, auto const& right) {
    return left.second < right.second;
  };
  auto const [least, most] = std::minmax_element(sizes.begin(), sizes.end(), is_small);
  if (least == sizes.end() || most->second > largest_rms) return;
  if (!is_far(most->second, least->second, unusual_size)) return;
  found.warning("projection-size", "",
                "the weights of {} are about {:.3g} (root mean square), those of {} {:.3g}: {:.3g} "
                "times as large",
                most->first, most->second, least->first, least->second,
                most->second / least->second);
}

/// Experts of the whole checkpoint, and what is beside them. Not when they are wrong by themselves.
void judge_experts(scanned const& all, std::map<std::string_view, double> const& sizes,
                   findings& found) {
  std::vector<double> experts;
  for (auto const& [projection, size] : sizes) experts.push_back(size);
  std::vector<double> others;
  for (std::size_t i = 0; i < all.plan.items.size(); ++i) {
    scan_item const& item = all.plan.items[i];
    if (item.role != scan_role::dense && !is_plain_weight(item)) continue;
    if (double const size = weight_rms(item, all.results[i]); size > 0.0) others.push_back(size);
  }
  if (std::ssize(others) < least_layers) return;
  double const size = median_of(experts);
  double const usual = median_of(others);
  if (size > largest_rms || !is_far(size, usual, unusual_experts_size)) return;
  found.warning(
      "experts-size", "",
      "the weights of the routed experts are about {:.3g} (root mean square), {:.3g} times "
      "the others, which are about {:.3g}: a factor of all scales is lost",
      size, size / usual, usual);
}

/// "model.layers.*.self_attn.q_proj.weight": what the tensors of all layers have in common.
std::string across_layers(std::string_view name) {
  std::string result;
  bool replaced = false;
  while (!name.empty()) {
    auto const end = std::min(name.find('.'), name.size());
    std::string_view const word = name.substr(0, end);
    bool const number = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
    result += number && !replaced ? std::string_view("*") : word;
    replaced = replaced || number;
    if (end < name.size()) result += '.';
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return result;
}

/// Matrices beside the routed experts, each with its namesakes in the other layers.
void compare_others(scanned const& all, findings& found) {
  std::map<std::string, std::vector<std::size_t>> namesakes;
  for (std::size_t i = 0; i < all.plan.items.size(); ++i) {
    scan_item const& item = all.plan.items[i];
    if (item.role != scan_role::dense && !is_plain_weight(item)) continue;
    double const size = weight_rms(item, all.results[i]);
    double const most = item.role == scan_role::dense ? largest_rms : largest_plain_rms;
    if (size > most) {
      found.error(
          errc::invalid_argument, "weight-size", item.values->name,
          "{}: its weights are about {:.3g} (root mean square): {}", text_of(item), size,
          item.role == scan_role::dense ? too_large_text : "no trained model has such weights");
    } else if (size > 0.0) {
      namesakes[across_layers(item.values->name)].push_back(i);
    }
  }
  for (auto const& [pattern, items] : namesakes) {
    if (std::ssize(items) < least_layers) continue;
    std::vector<double> sizes;
    for (std::size_t const i : items) {
      sizes.push_back(weight_rms(all.plan.items[i], all.results[i]));
    }
    double const usual = median_of(sizes);
    for (std::size_t const i : items) {
      double const size = weight_rms(all.plan.items[i], all.results[i]);
      if (!is_far(size, usual, unusual_other_size)) continue;
      found.warning(
          "tensor-size", all.plan.items[i].values->name,
          "{}: its weights are about {:.3g} (root mean square), {:.3g} times those of the "
          "{} tensors {}",
          text_of(all.plan.items[i]), size, size / usual, items.size(), quoted(pattern));
    }
  }
}

}  // namespace

void compare_sizes(scanned const& all, std::span<layer_statistics const> layers, findings& found) {
  std::map<std::string_view, std::vector<double>> sizes;
  for (layer_statistics const& layer : layers) {
    for (projection_statistics const& part : layer.projections) {
      if (part.all.rms > 0.0) sizes[part.projection].push_back(part.all.rms);
    }
  }
  std::map<std::string_view, double> usual;
  std::map<std::string_view, index_t> counts;
  for (auto& [projection, of_layers] : sizes) {
    counts[projection] = std::ssize(of_layers);
    usual[projection] = median_of(of_layers);
  }
  for (layer_statistics const& layer : layers) {
    for (projection_statistics const& part : layer.projections) {
      if (part.all.rms == 0.0) continue;
      judge_projection(layer, part, usual[part.projection], counts[part.projection], found);
    }
  }
  found.set_place({});
  judge_projections(usual, found);
  judge_experts(all, usual, found);
  compare_others(all, found);
}

}  // namespace moe64::checkpoint
