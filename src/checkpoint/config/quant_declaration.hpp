#pragma once

#include "checkpoint/config/facts.hpp"
#include "checkpoint/naming/name_rules.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

enum class quant_method : std::uint8_t {
  none,  ///< nothing is declared
  fp8,
  compressed_tensors,
  mxfp8,
  mxfp4,
  fbgemm_fp8,
  modelopt,
  mistral,  ///< params.json
  unknown,  ///< declared, but not one of these
};
[[nodiscard]] std::string_view name(quant_method method) noexcept;

/// What a declaration says about weights, whatever words it uses.
enum class weight_scheme : std::uint8_t {
  unstated,
  unsupported,  ///< declared, but not one of these; `spelling` has the words
  fp8_block,    ///< one scale per block_rows x block_cols
  fp8_tensor,
  fp8_row,
  mxfp8,
  mxfp4,
  nvfp4,
  int4_group,
};
[[nodiscard]] std::string_view name(weight_scheme scheme) noexcept;

struct quant_scheme {
  weight_scheme kind = weight_scheme::unstated;
  index_t block_rows = 0;  ///< 0: the declaration gives none
  index_t block_cols = 0;
  index_t group = 0;
  std::string spelling;  ///< "float-quantized channel": for messages; safe to print

  friend bool operator==(quant_scheme const&, quant_scheme const&) = default;
};

/// Everything that the files of a checkpoint declare about its quantisation.
struct quant_declaration {
  quant_method method = quant_method::none;
  std::string method_source;
  std::string method_text;      ///< as spelt
  bool mistral_native = false;  ///< params.json declares e4m3 with one scale per tensor
  fact<std::string> format;
  fact<std::string> scale_fmt;
  fact<std::string> expert_dtype;
  fact<std::string> routed_experts_quant_method;
  fact<std::string> activation_scheme;
  quant_scheme scheme;  ///< of every module that no entry below names
  name_rules skipped;   ///< modules that are declared not to be quantised

  /// The scheme that is declared for a module.
  [[nodiscard]] quant_scheme const& scheme_of(std::string_view module) const;
  [[nodiscard]] bool declared() const noexcept {
    return method != quant_method::none || mistral_native;
  }

  struct text_hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  /// Mixed precision: positions in `mixed`, by module, then by rule in file order.
  std::unordered_map<std::string, std::size_t, text_hash, std::equal_to<>> module_schemes;
  std::vector<std::pair<name_rules, std::size_t>> rule_schemes;
  std::vector<quant_scheme> mixed;
};

/// Reads all sources. Disagreement, a kind that does not fit and an expression that is not
/// understood are errors in `found`.
[[nodiscard]] quant_declaration read_quant_declaration(config_sources const& sources,
                                                       findings& found);

}  // namespace moe64::checkpoint
