#pragma once

#include "checkpoint/json/json.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// How the second extent of B of a stack of experts counts ranks and experts.
enum class factor_layout : std::uint8_t {
  rank_major,  ///< [out, rank, experts], as PEFT reads it
  grouped      ///< [out, experts, rank], as unsloth trained before 2026.9.6
};
/// In the words of `lora_B_layout`: "rank_major", "grouped_by_expert".
[[nodiscard]] std::string_view name(factor_layout layout) noexcept;

/// What an adapter_config.json says about it: one layout for all parameters, or one for each.
struct layout_statement {
  std::optional<factor_layout> everywhere;
  std::vector<std::pair<std::string, factor_layout>> parameters;
  bool unstamped = false;  ///< unsloth wrote it before it wrote stamps

  [[nodiscard]] std::optional<factor_layout> of(std::string_view parameter) const;
};
/// errc::malformed_file where it contradicts itself, errc::unsupported for a layout that is none.
[[nodiscard]] layout_statement read_layout_statement(json_value const& config);

/// What a user or a file says about the layout of B of one parameter; errc::unsupported where
/// nobody says it, errc::invalid_argument where they contradict each other. `family` is the model
/// type of the base, `asked` what the user stated.
[[nodiscard]] factor_layout layout_of_parameter(layout_statement const& stated,
                                                std::string_view parameter, std::string_view family,
                                                std::optional<factor_layout> asked);

}  // namespace moe64::checkpoint
