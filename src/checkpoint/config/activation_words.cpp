#include "checkpoint/config/activation_words.hpp"

#include <algorithm>
#include <string>

namespace moe64::checkpoint {
namespace {

/// What makes a key look like an activation wherever it stands in it, whatever lies between its
/// letters: "swiglulimit", "SwiGLULimit", "soft_cap".
constexpr std::string_view strong_stems[] = {"clamp", "geglu",   "gelu",   "hiddenact", "nonlinear",
                                             "silu",  "softcap", "swiglu", "swish",     "xielu"};
/// The same, but only as words of their own.
constexpr std::string_view strong_words[] = {
    "act",   "activation", "activations", "clip",   "clipping", "clips",
    "glu",   "nonlin",     "polynorm",    "reglu",  "relu",     "relu2",
    "relu6", "situ",       "swiglu",      "limits", "caps"};
/// Of these, what clamps: it counts in objects of the config that nothing else is read from, too.
constexpr std::string_view clamp_stems[] = {"clamp", "softcap", "swiglu"};
constexpr std::string_view clamp_words[] = {"clip", "clipping", "clips"};
constexpr std::string_view limit_words[] = {"cap", "caps", "limit", "limits"};
/// Words that do beside a word of experts, or as the whole key.
constexpr std::string_view weak_words[] = {
    "alpha",   "alphas", "beta",    "bound",     "bounds",     "cap",         "ceil",
    "ceiling", "gain",   "gains",   "limit",     "multiplier", "multipliers", "saturation",
    "scale",   "scales", "scaling", "threshold", "thresholds"};
/// Words that do beside "expert" or "experts": what is done to the result of each.
constexpr std::string_view result_words[] = {"layernorm", "norm", "norms", "rmsnorm"};
constexpr std::string_view expert_words[] = {
    "down", "expert", "experts", "feed", "ffn", "gate", "inter", "intermediate",
    "mlp",  "moe",    "routed",  "up",   "w1",  "w13",  "w2",    "w3"};
/// Words of other parts of a model: keys with one of them say nothing about routed experts.
constexpr std::string_view other_words[] = {
    "attention", "attn",      "audio",  "classifier", "conv",   "embedding", "final",
    "head",      "image",     "logit",  "logits",     "mamba",  "perceiver", "projector",
    "qformer",   "resampler", "rope",   "router",     "speech", "ssm",       "tower",
    "vae",       "video",     "vision", "vit"};
constexpr std::string_view shared_words[] = {"share", "shared"};
/// Texts that name a function which experts might compute; what routers compute is none of them.
constexpr std::string_view functions[] = {"silu",
                                          "swish",
                                          "swiglu",
                                          "swiglu_oai",
                                          "swigluoai",
                                          "gelu",
                                          "gelu_new",
                                          "gelu_fast",
                                          "gelu_python",
                                          "gelu_tanh",
                                          "gelu_10",
                                          "gelu_accurate",
                                          "gelu_pytorch_tanh",
                                          "quick_gelu",
                                          "geglu",
                                          "reglu",
                                          "glu",
                                          "relu",
                                          "relu2",
                                          "relu6",
                                          "relu_squared",
                                          "leaky_relu",
                                          "mish",
                                          "xielu",
                                          "situ",
                                          "polynorm"};

bool is_upper(char c) noexcept { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) noexcept { return c >= 'a' && c <= 'z'; }
bool is_separator(char c) noexcept { return !is_upper(c) && !is_lower(c) && (c < '0' || c > '9'); }
char lower(char c) noexcept { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; }

/// Whether a word of a file is this one, which is in small letters.
bool same_word(std::string_view found, std::string_view word) noexcept {
  return std::equal(found.begin(), found.end(), word.begin(), word.end(),
                    [](char a, char b) { return lower(a) == b; });
}

template <std::size_t Count>
bool is_any(std::string_view found, std::string_view const (&list)[Count]) noexcept {
  return std::any_of(std::begin(list), std::end(list),
                     [&](std::string_view word) { return same_word(found, word); });
}

/// Whether a word of a key begins with this capital: "Limit" in "swigluLimit" and in "GLULimit".
bool begins_word(std::string_view text, std::size_t at) noexcept {
  if (!is_upper(text[at])) return false;
  return !is_upper(text[at - 1]) || (at + 1 < text.size() && is_lower(text[at + 1]));
}

/// Any word of a key that is in the list: words lie between whatever is no letter and no digit, and
/// within those capitals begin others.
template <std::size_t Count>
bool has_any(std::string_view key, std::string_view const (&list)[Count]) noexcept {
  while (!key.empty()) {
    auto const found = std::find_if(key.begin(), key.end(), is_separator);
    auto const end = static_cast<std::size_t>(found - key.begin());
    std::string_view const word = key.substr(0, end);
    if (is_any(word, list)) return true;
    for (std::size_t begin = 0, i = 1; i <= word.size(); ++i) {
      if (i < word.size() && !begins_word(word, i)) continue;
      if (is_any(word.substr(begin, i - begin), list)) return true;
      begin = i;
    }
    key.remove_prefix(std::min(key.size(), end + 1));
  }
  return false;
}

/// The letters and digits of a key, small.
std::string letters_of(std::string_view key) {
  std::string letters;
  for (char const c : key) {
    if (!is_separator(c)) letters += lower(c);
  }
  return letters;
}

template <std::size_t Count>
bool has_stem(std::string_view key, std::string_view const (&stems)[Count]) {
  std::string const letters = letters_of(key);
  return std::any_of(std::begin(stems), std::end(stems), [&](std::string_view stem) {
    return letters.find(stem) != std::string::npos;
  });
}

/// About another part of the model.
bool is_elsewhere(std::string_view key) noexcept {
  constexpr std::string_view routed[] = {"routed"};
  return has_any(key, other_words) || (has_any(key, shared_words) && !has_any(key, routed));
}

bool is_one_word(std::string_view key) noexcept {
  return std::none_of(key.begin(), key.end(), is_separator);
}

}  // namespace

bool names_experts(std::string_view key) noexcept {
  return has_any(key, expert_words) && !is_elsewhere(key);
}

bool names_function(std::string_view text) noexcept { return is_any(text, functions); }

bool looks_like_clamp(std::string_view key) {
  return !is_elsewhere(key) &&
         (has_stem(key, clamp_stems) || has_any(key, clamp_words) || is_any(key, limit_words));
}

bool may_hold_experts(std::string_view key) noexcept {
  constexpr std::string_view storage[] = {"quantization", "compression"};
  return !is_elsewhere(key) && !has_any(key, storage);
}

bool looks_like_activation(std::string_view key, bool of_experts) {
  constexpr std::string_view each[] = {"expert", "experts"};
  if (is_elsewhere(key)) return false;
  bool const experts = of_experts || has_any(key, expert_words);
  return has_stem(key, strong_stems) || has_any(key, strong_words) ||
         (has_any(key, each) && has_any(key, result_words)) ||
         ((experts || is_one_word(key)) && has_any(key, weak_words));
}

}  // namespace moe64::checkpoint
