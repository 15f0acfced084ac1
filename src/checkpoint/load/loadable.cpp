#include "checkpoint/load/loadable.hpp"

#include "checkpoint/naming/key_schema.hpp"
#include "core/fail.hpp"

namespace moe64::checkpoint {
namespace {

/// A finding that is about no tensor is about the config, which every layer is read by. That some
/// other layer is missing is none of this one's business.
bool concerns_all(finding const& found) {
  return found.level == finding_level::error && found.tensor.empty() &&
         found.rule != "missing-layer";
}

bool concerns(finding const& found, layer_entry const& layer, index_t backbone_layers) {
  if (found.level != finding_level::error || found.tensor.empty()) return false;
  auto const key = match_key(found.tensor);
  if (!key || key->layer != layer.layer) return false;
  return layer.mtp == (key->mtp || (backbone_layers >= 0 && key->layer >= backbone_layers));
}

/// "0 to 3, 5, 7 to 9"; a list that is cut when it is long.
std::string numbers_of(resolved_checkpoint const& resolved, bool mtp) {
  std::string text;
  int ranges = 0;
  index_t first = -1;
  index_t last = -1;
  auto const flush = [&] {
    if (first < 0) return;
    if (++ranges > 8) {
      if (ranges == 9) text += ", ...";
      return;
    }
    text += (text.empty() ? "" : ", ") + fmt::format("{}", first);
    if (last > first) text += fmt::format(" to {}", last);
  };
  for (layer_entry const& layer : resolved.layers) {
    if (layer.mtp != mtp) continue;
    if (first >= 0 && layer.layer == last + 1) {
      last = layer.layer;
      continue;
    }
    flush();
    first = last = layer.layer;
  }
  flush();
  return text.empty() ? "none" : text;
}

}  // namespace

std::optional<layer_refusal> refusal_of(resolved_checkpoint const& resolved,
                                        layer_entry const& layer) {
  auto const& stated = resolved.config.geometry.layers;
  index_t const backbone = stated ? stated->value : -1;
  for (finding const& found : resolved.found.kept()) {
    if (concerns_all(found) || (!layer.sound && concerns(found, layer, backbone))) {
      return layer_refusal{found.code, found.text};
    }
  }
  // of a rule that was broken many times not all texts are kept
  for (finding const& found : resolved.found.kept()) {
    if (layer.sound || found.level != finding_level::error) continue;
    return layer_refusal{found.code,
                         fmt::format("{} errors were found; the first of them: {}",
                                     resolved.found.count(finding_level::error), found.text)};
  }
  if (layer.activation.spec) return std::nullopt;
  return layer_refusal{layer.activation.code, layer.activation.refusal};
}

expert_range require_range(resolved_checkpoint const& resolved, layer_request const& request) {
  layer_entry const* const layer = resolved.layer(request.layer, request.mtp);
  if (layer == nullptr) {
    fail(errc::invalid_argument,
         "[load_layer] there is no {}layer {} with experts; layers: {}; MTP layers: {}",
         request.mtp ? "MTP " : "", request.layer, numbers_of(resolved, false),
         numbers_of(resolved, true));
  }
  if (auto const refused = refusal_of(resolved, *layer)) {
    fail(refused->code, "[load_layer] {}layer {}: {}", request.mtp ? "MTP " : "", request.layer,
         refused->text);
  }
  index_t const first = request.first_expert;
  bool const inside = first >= 0 && first < layer->experts;
  index_t const rest = inside ? layer->experts - first : 0;
  index_t const count = request.experts == -1 ? rest : request.experts;
  if (!inside || count < 1 || count > rest) {
    fail(errc::invalid_argument, "[load_layer] {} experts from {} on, but {}layer {} has {}",
         request.experts, first, request.mtp ? "MTP " : "", request.layer, layer->experts);
  }
  return {layer, first, count};
}

}  // namespace moe64::checkpoint
