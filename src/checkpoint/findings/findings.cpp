#include "checkpoint/findings/findings.hpp"

#include "checkpoint/naming/key_schema.hpp"

#include <algorithm>

namespace moe64 {

std::string_view name(finding_level level) noexcept {
  switch (level) {
    case finding_level::note:
      return "note";
    case finding_level::warning:
      return "warning";
    case finding_level::error:
      return "error";
  }
  return "unknown";
}

namespace checkpoint {
namespace {

constexpr std::size_t most_marks = 1'000'000;

/// Of a tensor, or of a module: those have no ".weight" at the end.
finding_place place_of(std::string_view tensor) {
  if (tensor.empty()) return {};
  auto key = match_key(tensor);
  std::string const module = key ? std::string() : std::string(tensor) + ".weight";
  if (!key) key = match_key(module);
  if (!key) return {};
  return {key->layer, key->mtp, std::string(name(key->projection)), key->expert};
}

}  // namespace

bool findings::counted(finding_level level, std::string_view rule, std::string_view tensor) {
  finding_place place = place_.layer >= 0 ? place_ : place_of(tensor);
  if (place.layer >= 0 && marks_.size() < most_marks) marks_.push_back({level, std::move(place)});
  ++counts_[static_cast<std::size_t>(level)];
  auto found = std::find_if(rules_.begin(), rules_.end(), [&](rule_total const& entry) {
    return entry.level == level && entry.rule == rule;
  });
  if (found == rules_.end()) found = rules_.insert(rules_.end(), {level, std::string(rule), 0});
  return ++found->count <= kept_per_rule_;
}

void findings::keep(finding_level level, errc code, std::string_view rule, std::string_view tensor,
                    std::string text) {
  kept_.push_back({level, code, std::string(rule), std::string(tensor), std::move(text),
                   place_.layer >= 0 ? place_ : place_of(tensor)});
}

index_t findings::count(std::string_view rule) const noexcept {
  index_t total = 0;
  for (rule_total const& entry : rules_) total += entry.rule == rule ? entry.count : 0;
  return total;
}

index_t findings::omitted() const noexcept {
  index_t total = 0;
  for (index_t const count : counts_) total += count;
  return total - static_cast<index_t>(kept_.size());
}

}  // namespace checkpoint
}  // namespace moe64
