#include "checkpoint/synth/plan.hpp"
#include "core/fail.hpp"

namespace moe64::checkpoint {
namespace {

template <class Word>
std::string per_layer(synth_extents const& extents, Word const& word) {
  std::string text;
  for (index_t layer = 0; layer < extents.at("layers"); ++layer) {
    text += (layer == 0 ? "[" : ", ") + std::string(word(layer));
  }
  return text + "]";
}

std::string moe_numbers(synth_extents const& extents, std::string_view separator) {
  std::string text;
  for (index_t layer = 0; layer < extents.at("layers"); ++layer) {
    if (!synth_is_moe(extents, layer)) continue;
    text += fmt::format("{}{}", text.empty() ? "" : separator, layer);
  }
  return text;
}

std::string value_of(std::string_view name, synth_extents const& extents) {
  if (name == "mlp_layer_types") {
    return per_layer(extents, [&](index_t layer) {
      return synth_is_moe(extents, layer) ? R"("sparse")" : R"("dense")";
    });
  }
  if (name == "layer_types") {
    return per_layer(extents, [&](index_t layer) {
      return synth_is_full(extents, layer) ? R"("full_attention")" : R"("linear_attention")";
    });
  }
  if (name == "sliding_layers") {
    return per_layer(extents, [](index_t) { return R"("sliding_attention")"; });
  }
  if (name == "moe_types") return per_layer(extents, [](index_t) { return R"("moe")"; });
  if (name == "moe_layers") return "[" + moe_numbers(extents, ", ") + "]";
  if (name == "moe_enum") return moe_numbers(extents, ",");
  return fmt::format("{}", extents.at(name));
}

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

}  // namespace

bool synth_is_moe(synth_extents const& extents, index_t layer) {
  return layer >= extents.get("dense", 0) && (layer + 1) % extents.get("moe_step", 1) == 0;
}

bool synth_is_full(synth_extents const& extents, index_t layer) {
  return (layer + 1) % extents.get("full_step", 1) == 0;
}

std::string synth_text(std::string_view text, synth_extents const& extents) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '$') {
      result += text[at++];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == '(') {
      std::size_t const close = text.find(')', at);
      result += fmt::format("{}", extents.evaluate(text.substr(at + 2, close - at - 2)));
      at = close + 1;
      continue;
    }
    std::size_t end = at + 1;
    while (end < text.size() && is_word(text[end])) ++end;
    result += value_of(text.substr(at + 1, end - at - 1), extents);
    at = end;
  }
  return result;
}

}  // namespace moe64::checkpoint
