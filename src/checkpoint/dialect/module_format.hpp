#pragma once

#include "checkpoint/dialect/dialect.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// How the tensors of one module are stored, with everything that is needed to read a number.
struct module_format {
  dialect const* row = nullptr;  ///< null: plain
  value_codec values = value_codec::plain;
  file_dtype value_type = file_dtype::bf16;
  scale_codec scales = scale_codec::none;
  file_dtype scale_type = file_dtype::f32;
  index_t block_rows = 0;  ///< blk codecs
  index_t block_cols = 0;  ///< blk codecs, and the group of mx32, nv16 and grp
  index_t experts = 1;     ///< of a stack
  index_t rows = 0;        ///< outputs; of a fused gate_up all of them
  index_t cols = 0;        ///< inputs
  bool fused = false;      ///< rows are gate and up
  bool stacked = false;
  bool transposed = false;  ///< stored [cols, rows]
  gate_up_layout gate_up = gate_up_layout::concatenated;
  fused_grid grid = fused_grid::fused;

  friend bool operator==(module_format const&, module_format const&) = default;
};

/// Rows and columns of the grid of scales of `rows` outputs.
struct scale_grid {
  index_t rows = 0;
  index_t cols = 0;
};
[[nodiscard]] scale_grid grid_of(module_format const& format, index_t rows);

/// The shape of the scale tensor by ceil arithmetic, never the other way round.
[[nodiscard]] std::vector<index_t> scale_shape(module_format const& format);

/// Whether `shape` is `expected`, or that with dimensions of extent 1 left out: writers squeeze
/// [N, 1] to [N].
[[nodiscard]] bool is_squeezed(std::span<index_t const> shape, std::span<index_t const> expected);

/// Gate and up of a fused tensor share a row of blocks, so up has no grid of its own.
[[nodiscard]] bool straddles(module_format const& format);

[[nodiscard]] std::string shape_text(std::span<index_t const> shape);  ///< "[64, 128]"

/// Extents of one expert as the config (or an assumption) states them; 0: unstated.
struct expert_extents {
  index_t hidden = 0;
  index_t inter = 0;
};

/// Resolves modules of one checkpoint, one after the other; whatever is wrong goes to `found`.
class module_resolver {
 public:
  module_resolver(model_config const& config, assumptions const& assumed, findings& found);

  /// Empty when the module has no readable format; then `found` has an error about it.
  [[nodiscard]] std::optional<module_format> resolve(module_tensors const& module);

 private:
  [[nodiscard]] std::optional<module_format> resolve_plain(module_tensors const& module);
  [[nodiscard]] std::optional<module_format> resolve_codes(module_tensors const& module);
  [[nodiscard]] tensor_entry const* one_scale(module_tensors const& module, tensor_part& part);
  [[nodiscard]] bool read_extents(module_tensors const& module, module_format& format);
  [[nodiscard]] bool read_orientation(module_tensors const& module, module_format& format);
  [[nodiscard]] bool read_block(module_tensors const& module, quant_scheme const& scheme,
                                module_format& format);
  [[nodiscard]] bool check_geometry(module_tensors const& module, module_format const& format);
  [[nodiscard]] bool check_scale(module_tensors const& module, tensor_entry const& scale,
                                 module_format& format);
  [[nodiscard]] bool check_global(module_tensors const& module, dialect const& row);
  void check_skipped(module_tensors const& module, bool quantised);

  model_config const& config_;
  assumptions const& assumed_;
  findings& found_;
  dialect_chooser chooser_;
  expert_extents stated_;
};

}  // namespace moe64::checkpoint
