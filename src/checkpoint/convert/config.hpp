#pragma once

#include "checkpoint/convert/plan.hpp"

#include <optional>
#include <string>

namespace moe64::checkpoint {

/// The JSON files beside the tensors of a converted checkpoint; hf_quant_config.json is not among
/// them, since what it says is no longer true.
struct converted_configs {
  std::optional<std::string> config;  ///< config.json; empty: the source has none
  std::optional<std::string> params;  ///< params.json
};

/// The source's configs with what they declare about quantisation and element types changed, and
/// nothing else. A checkpoint in which nothing is converted keeps its texts.
[[nodiscard]] converted_configs convert_configs(folder const& files, conversion_plan const& plan);

/// Reads the result as if it were a checkpoint, and fails with errc::unsupported where no dialect
/// states it: a conversion must not write what nobody can read.
void require_readable(conversion_plan const& plan, converted_configs const& configs,
                      std::vector<std::string> const& assumed);

}  // namespace moe64::checkpoint
