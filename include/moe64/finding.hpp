#pragma once

#include "moe64/error.hpp"
#include "moe64/export.hpp"
#include "moe64/index.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace moe64 {

enum class finding_level : std::uint8_t {
  note = 0,     ///< worth knowing
  warning = 1,  ///< legal, but often a mistake
  error = 2,    ///< the checkpoint is not what it says it is
};
[[nodiscard]] MOE64_API std::string_view name(finding_level level) noexcept;

/// The matrices that a finding is about.
struct finding_place {
  index_t layer = -1;  ///< -1: it is about none
  bool mtp = false;
  std::string projection = {};  ///< as in projection_statistics; empty: all of the layer
  index_t expert = -1;          ///< -1: all
};

/// One thing that was found out about a checkpoint. Texts are safe to print.
struct finding {
  finding_level level = finding_level::note;
  errc code = errc::invalid_argument;  ///< of an error: what a call that needs it right throws
  std::string rule;                    ///< a stable word to filter by: "missing-scale"
  std::string tensor;  ///< the tensor or module that it is about as the file spells it, or empty
  std::string text;    ///< a sentence with the values
  finding_place place = {};
};

/// How often a rule spoke. Of each rule some findings keep their text; all are counted here.
struct rule_total {
  finding_level level = finding_level::note;
  std::string rule;
  index_t count = 0;
};

/// A matrix, or all of a projection, and the level of something that was found about it.
struct finding_mark {
  finding_level level = finding_level::note;
  finding_place place;
};

}  // namespace moe64
