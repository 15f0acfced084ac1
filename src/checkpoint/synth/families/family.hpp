#pragma once

#include "checkpoint/dialect/table.hpp"
#include "checkpoint/naming/key_schema.hpp"

#include <array>
#include <span>
#include <string_view>

namespace moe64::checkpoint {

/// How MTP layers are named.
enum class mtp_naming : std::uint8_t {
  none,      ///< the model has none
  numbered,  ///< after the backbone: model.layers.61
  apart,     ///< under a word of their own, from 0: mtp.layers.0, mtp.0
};

/// One architecture: what its checkpoints hold besides the quantised experts, as text.
///
/// `tensors` has one tensor per line: [condition:] name extent... [!type]. Extents are expressions
/// of synth_extents; `^` stands for the prefix of the model, `~` for that of a layer, and a line
/// with it is repeated for every layer that fits the condition (dense, moe, full, linear). Lines of
/// `mtp` are those of an MTP layer. Types are BF16 unless stated.
///
/// `config` is the inside of config.json; `$name` and `$(expression)` are extents, and a few more
/// names stand for lists: see synth/config.cpp.
struct synth_family {
  std::string_view name;
  std::string_view model_type = {};
  schema_set schemas;  ///< that its releases use for experts
  std::string_view model_prefix = {};
  std::string_view layer_prefix;  ///< in front of the number
  mtp_naming mtp = mtp_naming::none;
  std::string_view mtp_prefix = {};  ///< apart: in front of the number
  std::string_view extents;
  std::array<std::string_view, 5> tensors;
  std::array<std::string_view, 5> config = {};
  std::string_view params = {};  ///< params.json instead of config.json
};

[[nodiscard]] std::span<synth_family const> synth_mla_families() noexcept;
[[nodiscard]] std::span<synth_family const> synth_gqa_families() noexcept;
[[nodiscard]] std::span<synth_family const> synth_language_families() noexcept;
[[nodiscard]] std::span<synth_family const> synth_native_families() noexcept;
[[nodiscard]] synth_family const& synth_family_named(std::string_view name);

/// A name that users give: an architecture in a dialect.
struct synth_release {
  std::string_view like;
  std::string_view family;
  std::string_view dialect;
  std::string_view text;
};
[[nodiscard]] std::span<synth_release const> synth_releases() noexcept;

/// The release of that name, or the first of that dialect, or both; errc::invalid_argument when
/// there is none.
[[nodiscard]] synth_release synth_release_of(std::string_view like, std::string_view dialect);

}  // namespace moe64::checkpoint
