#pragma once

#include "moe64/export.hpp"
#include "moe64/index.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace moe64 {

/// Numbers from first to last.
struct number_range {
  index_t first = 0;
  index_t last = 0;
  bool operator==(number_range const&) const = default;
};

/// "3", "0-5", "0-5,9": in any order; errc::invalid_argument, with `what` in its words, for
/// anything else.
[[nodiscard]] MOE64_API std::vector<number_range> parse_ranges(std::string_view text,
                                                               std::string_view what);

/// What of a checkpoint a piece of work is limited to. An empty list limits nothing.
struct checkpoint_part {
  /// Numbers in the names of tensors: of the backbone, and where the names count on, of
  /// multi-token prediction. With it, tensors of no layer are left out.
  std::vector<number_range> layers = {};
  /// Files of the checkpoint in order of their names, from 1 on.
  std::vector<number_range> shards = {};

  [[nodiscard]] bool whole() const noexcept { return layers.empty() && shards.empty(); }
};
/// "layers 0-5,9; files 1-2", or "everything".
[[nodiscard]] MOE64_API std::string to_string(checkpoint_part const& part);

}  // namespace moe64
