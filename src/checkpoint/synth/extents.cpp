#include "checkpoint/synth/extents.hpp"

#include "core/fail.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace moe64::checkpoint {
namespace {

constexpr index_t block = 128;

/// The next word of `text`, which is taken off it.
std::string_view next_word(std::string_view& text, char separator) {
  auto const end = text.find(separator);
  std::string_view const word = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return word;
}

index_t number(std::string_view word) {
  index_t value = 0;
  auto const [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (status != std::errc{} || end != word.data() + word.size()) {
    fail(errc::internal, "[synth] '{}' is no number", word);
  }
  return value;
}

/// A width of weights: what it leaves in the last block is kept in kind.
index_t scaled_width(index_t real, index_t scale_down) {
  if (scale_down == 1) return real;
  index_t const unit = std::max<index_t>(std::gcd(real, block), 32);
  index_t const width = align_up(ceil_div(real, scale_down), unit);
  bool const ragged = real % block != 0;
  return ragged && width % block == 0 ? width + unit : width;
}

/// A width inside attention, of which only the evenness matters.
index_t scaled_part(index_t real, index_t scale_down) {
  constexpr index_t smallest = 16;
  if (real <= smallest) return real;
  return std::max(smallest, align_up(ceil_div(real, scale_down), 8));
}

void scale_layers(synth_extents& small, index_t scale_down, index_t layers) {
  index_t const real = small.at("layers");
  index_t dense = small.get("dense", 0);
  index_t const step = small.get("moe_step", 1);
  if (scale_down > 1 || layers > 0) {
    // whole-layer exceptions and steps need some layers behind the dense ones to show
    index_t const wanted = std::max<index_t>(real / scale_down, 3);
    dense = dense > 0 ? std::max<index_t>(1, dense / scale_down) : 0;
    index_t const all_kinds = std::max(dense + 2, small.get("full_step", 1));
    small.set("layers", layers > 0 ? layers : std::max(all_kinds, wanted));
  }
  index_t const least = std::max({dense + 1, step, small.get("full_step", 1)});
  if (small.at("layers") < least) {
    fail(errc::invalid_argument, "[synth] layers is {}, expected at least {} for this model",
         small.at("layers"), least);
  }
  small.set("dense", dense);
}

void scale_experts(synth_extents& small, index_t scale_down) {
  index_t const experts = std::max<index_t>(small.at("experts") / scale_down, 4);
  small.set("experts", experts);
  small.set("top_k", std::min(small.at("top_k"), std::max<index_t>(1, experts / 2)));
  // groups need two experts each, and those that are kept must hold top_k
  index_t groups = small.get("groups", 1);
  while (groups > 1 && (experts % groups != 0 || experts / groups < 2)) groups /= 2;
  index_t kept = std::min(groups, small.get("kept_groups", 1));
  while (kept < groups && kept * (experts / groups) < small.at("top_k")) ++kept;
  small.set("groups", groups);
  small.set("kept_groups", kept);
}

void scale_heads(synth_extents& small, std::string_view heads, std::string_view kv_heads,
                 index_t scale_down) {
  index_t const all = small.get(heads, 0);
  if (all == 0 || scale_down == 1) return;
  index_t const shared = small.get(kv_heads, all);
  index_t const fewer = std::max<index_t>(1, shared / scale_down);
  index_t const per_shared = std::min<index_t>(all / shared, 4);
  small.set(heads, std::max<index_t>(fewer * per_shared, 2));
  if (small.get(kv_heads, 0) > 0) small.set(kv_heads, all == shared ? small.at(heads) : fewer);
}

}  // namespace

synth_extents::synth_extents(std::string_view text) {
  while (!text.empty()) {
    std::string_view word = next_word(text, ' ');
    if (word.empty()) continue;
    std::string_view const name = next_word(word, '=');
    set(name, number(word));
  }
}

index_t synth_extents::at(std::string_view name) const {
  auto const found = values_.find(name);
  if (found == values_.end()) fail(errc::internal, "[synth] there is no extent '{}'", name);
  return found->second;
}

index_t synth_extents::get(std::string_view name, index_t otherwise) const {
  auto const found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

void synth_extents::set(std::string_view name, index_t value) {
  values_.insert_or_assign(std::string(name), value);
}

index_t synth_extents::evaluate(std::string_view expression) const {
  index_t sum = 0;
  while (!expression.empty()) {
    std::string_view term = next_word(expression, '+');
    index_t product = 1;
    while (!term.empty()) {
      std::string_view const factor = next_word(term, '*');
      bool const literal = factor[0] >= '0' && factor[0] <= '9';
      product = checked_mul(product, literal ? number(factor) : at(factor));
    }
    sum = checked_add(sum, product);
  }
  return sum;
}

synth_extents scaled_down(synth_extents const& real, index_t scale_down, index_t layers) {
  if (scale_down < 1) {
    fail(errc::invalid_argument, "[synth] scale_down is {}, expected at least 1", scale_down);
  }
  if (layers < 0) fail(errc::invalid_argument, "[synth] layers is {}", layers);
  synth_extents small = real;
  for (std::string_view const width : {"hidden", "inter", "dense_inter", "shared_inter"}) {
    if (index_t const value = real.get(width, 0); value > 0) {
      small.set(width, scaled_width(value, scale_down));
    }
  }
  for (std::string_view const part : {"head_dim", "q_rank", "kv_rank", "nope", "rope", "v_dim",
                                      "index_dim", "o_rank", "key_dim", "value_dim"}) {
    if (index_t const value = real.get(part, 0); value > 0) {
      small.set(part, scaled_part(value, scale_down));
    }
  }
  for (std::string_view const count : {"index_heads", "o_groups"}) {
    if (index_t const value = real.get(count, 0); value > 0) {
      small.set(count, std::max<index_t>(value / scale_down, 2));
    }
  }
  if (scale_down > 1) small.set("vocab", std::max<index_t>(real.at("vocab") / scale_down / 8, 256));
  scale_heads(small, "heads", "kv_heads", scale_down);
  scale_heads(small, "value_heads", "key_heads", scale_down);
  scale_layers(small, scale_down, layers);
  if (scale_down > 1) scale_experts(small, scale_down);
  return small;
}

}  // namespace moe64::checkpoint
