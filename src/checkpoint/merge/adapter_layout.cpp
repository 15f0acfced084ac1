#include "checkpoint/merge/adapter_layout.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <array>

namespace moe64::checkpoint {
namespace {

constexpr std::string_view stamp = "lora_B_layout";
constexpr std::string_view detail = "unsloth_fused_expert_lora";

/// The families whose experts unsloth computed with B grouped by expert before 2026.9.6; an
/// unstamped file of any other may be either.
constexpr std::array<std::string_view, 13> grouped_before_stamps = {
    "deepseek_v3",   "ernie4_5_moe", "ernie4_5_vl_moe", "gemma4",  "glm4_moe",
    "glm4_moe_lite", "gpt_oss",      "lfm2_moe",        "mixtral", "qwen3_5_moe",
    "qwen3_moe",     "qwen3_next",   "qwen3_vl_moe"};

factor_layout layout_named(json_value const& word) {
  std::string_view const text = word.text();
  for (factor_layout const layout : {factor_layout::rank_major, factor_layout::grouped}) {
    if (text == name(layout)) return layout;
  }
  fail(errc::unsupported, "[merge] {} is {}, which is neither rank_major nor grouped_by_expert",
       word.path(), quoted(text));
}

[[noreturn]] void contradicts(json_value const& config, std::string_view parameter) {
  fail(errc::malformed_file, "[merge] {} contradicts itself: two layouts of {}", config.path(),
       parameter.empty() ? "all parameters" : quoted(parameter));
}

json_value const* object_in(json_value const& from, std::string_view key) {
  json_value const* const found = from.find(key);
  return found != nullptr && found->is(json_kind::object) ? found : nullptr;
}

void read_detail(json_value const& config, json_value const& given, layout_statement& stated) {
  if (json_value const* const a = given.find("lora_A_layout");
      a != nullptr && a->text() != name(factor_layout::grouped)) {
    fail(errc::unsupported, "[merge] {} is {}: only grouped_by_expert is known", a->path(),
         quoted(a->text()));
  }
  json_value const* const parameters = object_in(given, "parameters");
  if (parameters == nullptr) return;
  for (json_value const& entry : *parameters) {
    json_value const* const word = entry.is(json_kind::object) ? entry.find(stamp) : nullptr;
    if (word == nullptr) continue;
    factor_layout const layout = layout_named(*word);
    for (auto const& [known, other] : stated.parameters) {
      if (known == entry.key() && other != layout) contradicts(config, known);
    }
    stated.parameters.emplace_back(entry.key(), layout);
  }
}

}  // namespace

std::string_view name(factor_layout layout) noexcept {
  return layout == factor_layout::rank_major ? "rank_major" : "grouped_by_expert";
}

std::optional<factor_layout> layout_statement::of(std::string_view parameter) const {
  for (auto const& [known, layout] : parameters) {
    if (known == parameter) return layout;
  }
  return everywhere;
}

layout_statement read_layout_statement(json_value const& config) {
  layout_statement stated;
  auto const everywhere = [&](json_value const* word) {
    if (word == nullptr) return;
    factor_layout const layout = layout_named(*word);
    if (stated.everywhere.value_or(layout) != layout) contradicts(config, {});
    stated.everywhere = layout;
  };
  json_value const* const mapping = object_in(config, "auto_mapping");
  for (json_value const* const source : {&config, mapping}) {
    if (source == nullptr) continue;
    everywhere(source->find(stamp));
    json_value const* const given = source->find(detail);
    if (given == nullptr || given->is(json_kind::null)) continue;
    if (!given->is(json_kind::object)) {
      fail(errc::malformed_file, "[merge] {} is {}, not an object", given->path(),
           name(given->kind()));
    }
    everywhere(given->find(stamp));
    read_detail(config, *given, stated);
  }
  for (auto const& [parameter, layout] : stated.parameters) {
    if (stated.everywhere.value_or(layout) != layout) contradicts(config, parameter);
  }
  json_value const* const fixed = mapping == nullptr ? nullptr : mapping->find("unsloth_fixed");
  bool const marked = fixed != nullptr && fixed->is(json_kind::boolean) && fixed->boolean();
  stated.unstamped = marked && !stated.everywhere && stated.parameters.empty();
  return stated;
}

factor_layout layout_of_parameter(layout_statement const& stated, std::string_view parameter,
                                  std::string_view family, std::optional<factor_layout> asked) {
  if (auto const known = stated.of(parameter)) {
    if (asked.value_or(*known) == *known) return *known;
    fail(errc::invalid_argument, "[merge] the layout of B is stated as {}, but the adapter says {}",
         name(*asked), name(*known));
  }
  if (asked) return *asked;
  if (!stated.parameters.empty()) {
    fail(errc::unsupported,
         "[merge] the layout of B of {} is not known: the adapter states that of other parameters "
         "alone; state it as rank_major or grouped_by_expert",
         quoted(parameter));
  }
  if (!stated.unstamped) return factor_layout::rank_major;
  if (family.ends_with("_text")) family.remove_suffix(std::string_view("_text").size());
  if (std::find(grouped_before_stamps.begin(), grouped_before_stamps.end(), family) !=
      grouped_before_stamps.end()) {
    return factor_layout::grouped;
  }
  fail(errc::unsupported,
       "[merge] the layout of B of {} is not known: unsloth wrote the adapter before it stamped "
       "layouts, and how it trained experts of {} is not known; state it as rank_major or "
       "grouped_by_expert",
       quoted(parameter), quoted(family));
}

}  // namespace moe64::checkpoint
