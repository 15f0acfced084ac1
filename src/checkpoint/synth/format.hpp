#pragma once

#include "checkpoint/dialect/module_format.hpp"
#include "checkpoint/synth/extents.hpp"
#include "checkpoint/synth/families/family.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// How a dialect is written, where its row of the table leaves a choice.
struct synth_format {
  dialect const* row = nullptr;  ///< null: plain
  file_dtype value_type = file_dtype::bf16;
  file_dtype scale_type = file_dtype::f32;
  index_t block_rows = 0;
  index_t block_cols = 0;
  std::string_view activation = {};  ///< the word of a scale of activations; empty: none
};
[[nodiscard]] synth_format synth_format_of(std::string_view dialect_id);

/// The naming that the family's releases use in that dialect; errc::invalid_argument when it has
/// none.
[[nodiscard]] key_schema synth_schema(synth_family const& family, synth_format const& format);

/// The matrices of one module. Kinds are gate, up, down, or gate_up where the schema fuses.
[[nodiscard]] module_format synth_module_format(synth_format const& format, key_schema schema,
                                                projection_kind kind, synth_extents const& extents,
                                                bool interleaved);

/// "model.layers.3.mlp.experts.7.up_proj", given what stands in front of and what the number of
/// the layer is. `expert` is ignored for stacks.
[[nodiscard]] std::string synth_module_name(key_schema schema, std::string_view layer,
                                            projection_kind kind, index_t expert);
/// The name of a part of a module; `word` is its spelling behind a dot, "weight_scale_inv".
[[nodiscard]] std::string synth_part_name(key_schema schema, std::string_view module,
                                          std::string_view word);

/// What the config files say about the quantisation, as members of their objects.
struct synth_declaration {
  std::string config;           ///< of config.json, with a comma in front; or empty
  std::string hf_quant_config;  ///< the whole file, or empty
  std::string params;           ///< of params.json, with a comma in front; or empty
};
/// `skipped` are modules in plain types; `experts_skipped` layers whose experts are. `mtp` is the
/// format of MTP layers where it is another one.
[[nodiscard]] synth_declaration synth_declare(synth_format const& format, synth_format const& mtp,
                                              std::vector<std::string> const& skipped);

}  // namespace moe64::checkpoint
