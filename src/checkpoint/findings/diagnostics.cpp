#include "checkpoint/findings/diagnostics.hpp"

#include "checkpoint/naming/key_schema.hpp"

#include <algorithm>

namespace moe64::checkpoint {

namespace {

constexpr std::size_t most_marks = 1'000'000;

/// Of a tensor, or of a module: those have no ".weight" at the end.
matrix_place place_of(std::string_view tensor) {
  if (tensor.empty()) return {};
  auto key = match_key(tensor);
  std::string const module = key ? std::string() : std::string(tensor) + ".weight";
  if (!key) key = match_key(module);
  if (!key) return {};
  return {key->layer, key->mtp, name(key->projection), key->expert};
}

}  // namespace

std::string_view name(severity level) noexcept {
  switch (level) {
    case severity::note:
      return "note";
    case severity::warning:
      return "warning";
    case severity::error:
      return "error";
  }
  return "unknown";
}

bool diagnostics::counted(severity level, std::string_view rule, std::string_view tensor) {
  matrix_place const place = place_.layer >= 0 ? place_ : place_of(tensor);
  if (place.layer >= 0 && marks_.size() < most_marks) marks_.push_back({level, place});
  ++counts_[static_cast<std::size_t>(level)];
  auto found = std::find_if(rules_.begin(), rules_.end(), [&](rule_count const& entry) {
    return entry.level == level && entry.rule == rule;
  });
  if (found == rules_.end()) found = rules_.insert(rules_.end(), {level, rule, 0});
  return ++found->count <= kept_per_rule_;
}

void diagnostics::keep(severity level, errc code, std::string_view rule, std::string_view tensor,
                       std::string text) {
  matrix_place const place = place_.layer >= 0 ? place_ : place_of(tensor);
  kept_.push_back({level, code, rule, std::string(tensor), std::move(text), place});
}

index_t diagnostics::count(std::string_view rule) const noexcept {
  index_t total = 0;
  for (rule_count const& entry : rules_) total += entry.rule == rule ? entry.count : 0;
  return total;
}

index_t diagnostics::omitted() const noexcept {
  index_t total = 0;
  for (index_t const count : counts_) total += count;
  return total - static_cast<index_t>(kept_.size());
}

}  // namespace moe64::checkpoint
