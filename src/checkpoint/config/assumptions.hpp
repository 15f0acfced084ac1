#pragma once

#include "checkpoint/dialect/table.hpp"
#include "moe64/index.hpp"
#include "moe64/ops.hpp"
#include "moe64/quant.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// How a fused gate_up tensor was cut into blocks when the gate rows do not fill whole blocks.
enum class fused_grid : std::uint8_t {
  fused,   ///< blocks of the 2I rows: one of them covers gate and up rows
  halves,  ///< gate and up have their own blocks, the last of each partial
};

/// What the user states instead of, or against, the files. Each is recorded in the result.
///   dialect=D5 · scale=tensor|row|block|group|mx32 · block=128x128 · group=32
///   orientation=rows|transposed · gate_up=concatenated|interleaved · grid=fused|halves
///   hidden=N · inter=N · experts=N
///   activation=KIND, with limit=X and alpha=X where the kind has them: of the experts of all
///   layers ignore=KEY: what looks like a parameter of the activation in a config is none; any
///   number of times
struct assumptions {
  std::optional<std::string> dialect;
  std::optional<scale_codec> scale;
  std::optional<index_t> block_rows;
  std::optional<index_t> block_cols;
  std::optional<index_t> group;
  std::optional<bool> transposed;
  std::optional<gate_up_layout> gate_up;
  std::optional<fused_grid> grid;
  std::optional<index_t> hidden;
  std::optional<index_t> inter;
  std::optional<index_t> experts;
  std::optional<activation_spec> activation;
  std::vector<std::string> ignored;
  std::vector<std::string> texts;  ///< as given, in order
};

/// Fails with errc::invalid_argument for an unknown key or value, naming those that exist.
[[nodiscard]] assumptions parse_assumptions(std::span<std::string const> texts);

}  // namespace moe64::checkpoint
