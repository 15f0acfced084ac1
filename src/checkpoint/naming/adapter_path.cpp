#include "checkpoint/naming/adapter_path.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace moe64::checkpoint {
namespace {

constexpr std::string_view adapter_prefix = "base_model.model.";
constexpr std::string_view a_suffix = ".lora_A.weight";
constexpr std::string_view b_suffix = ".lora_B.weight";
constexpr std::string_view wrapped = ".base_layer";

constexpr std::array<std::string_view, 7> language_prefixes = {"",
                                                               "model.",
                                                               "language_model.",
                                                               "language_model.model.",
                                                               "model.language_model.",
                                                               "backbone.",
                                                               "model.text_model."};

/// The next component, which is taken off the front.
std::string_view take_component(std::string_view& text) noexcept {
  std::size_t const dot = text.find('.');
  std::string_view const word = text.substr(0, dot);
  text = dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
  return word;
}

std::optional<index_t> number_in(std::string_view word) noexcept {
  index_t number = 0;
  auto const [end, status] = std::from_chars(word.data(), word.data() + word.size(), number);
  bool const whole = status == std::errc{} && end == word.data() + word.size() && !word.empty();
  bool const plain = whole && number >= 0 && (word.size() == 1 || word[0] != '0');
  return plain ? std::optional(number) : std::nullopt;
}

std::optional<projection_kind> projection_in(std::string_view word) noexcept {
  if (word == "gate_proj" || word == "w1") return projection_kind::gate;
  if (word == "up_proj" || word == "w3") return projection_kind::up;
  if (word == "down_proj" || word == "w2") return projection_kind::down;
  return std::nullopt;
}

}  // namespace

std::optional<adapter_key> match_adapter_key(std::string_view name) {
  adapter_key key;
  key.is_b = name.ends_with(b_suffix);
  if (!name.starts_with(adapter_prefix) || !(key.is_b || name.ends_with(a_suffix))) return {};
  name.remove_prefix(adapter_prefix.size());
  if (name.size() <= a_suffix.size()) return {};
  name.remove_suffix(a_suffix.size());
  while (name.ends_with(wrapped)) {
    name.remove_suffix(wrapped.size());
    ++key.inner;
  }
  if (name.empty() || name.find("lora_") != std::string_view::npos) return {};
  key.path = name;
  return key;
}

std::optional<experts_path> match_experts_path(std::string_view path) noexcept {
  split_path const split = split_at_layers(path);
  std::string_view rest = split.rest;
  if (take_component(rest) != "layers") return {};
  experts_path result;
  result.prefix = split.prefix;
  auto const layer = number_in(take_component(rest));
  if (!layer) return {};
  result.layer = *layer;
  std::string_view word = take_component(rest);
  if (word != "experts") word = take_component(rest);  // of mlp, block_sparse_moe, mixer, ...
  if (word != "experts") return {};
  if (rest.empty()) return result;
  auto const expert = number_in(take_component(rest));
  auto const projection = projection_in(rest);
  if (!expert || !projection) return {};
  result.expert = *expert;
  result.projection = *projection;
  return result;
}

split_path split_at_layers(std::string_view path) noexcept {
  for (std::size_t at = path.find("layers."); at != std::string_view::npos;
       at = path.find("layers.", at + 1)) {
    if (at == 0 || path[at - 1] == '.') return {path.substr(0, at), path.substr(at)};
  }
  std::size_t const dot = path.rfind('.');
  std::size_t const begin = dot == std::string_view::npos ? 0 : dot + 1;
  return {path.substr(0, begin), path.substr(begin)};
}

bool is_language_prefix(std::string_view prefix) noexcept {
  return std::find(language_prefixes.begin(), language_prefixes.end(), prefix) !=
         language_prefixes.end();
}

}  // namespace moe64::checkpoint
