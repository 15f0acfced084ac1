#pragma once

#include "moe64/checkpoint.hpp"
#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/index.hpp"
#include "moe64/part.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moe64 {

/// How a weight or tensor of one checkpoint compares with that of another.
enum class diff_state : std::uint8_t {
  identical = 0,  ///< the same bytes in the same type
  equal = 1,      ///< the same numbers, stored differently
  close = 2,      ///< within the tolerance
  different = 3,
  only_first = 4,
  only_second = 5,
};
inline constexpr int diff_state_count = 6;
/// "identical", "equal", "close", "different", "only in A", "only in B".
[[nodiscard]] MOE64_API std::string_view name(diff_state state) noexcept;

struct diff_options {
  /// Numbers differ when they are further apart than this share of the largest number of their
  /// tensor in the first checkpoint. 0: when they are not equal.
  double tolerance = 0.0;
  bool bitwise = false;  ///< stored differently counts as different
  /// Compare no more than this: layers of both, files of the first and what corresponds to them.
  checkpoint_part part = {};
};

/// One weight (of one expert) or tensor that is not identical.
struct tensor_difference {
  std::string tensor;  ///< as a file spells it: escape it before printing
  diff_state state = diff_state::different;
  std::string first;  ///< how it is stored in each: "F8_E4M3 blk", "BF16"; safe to print
  std::string second;
  index_t numbers = 0;    ///< compared
  index_t different = 0;  ///< not equal (NaN equals NaN)
  double max_abs = 0.0;   ///< largest |a - b|; infinity when one is finite and the other is not
  double max_rel = 0.0;   ///< largest |a - b| / max(|a|, |b|)
  double largest = 0.0;   ///< largest |a|
  bool of_activations = false;  ///< a scale of activations on one side: told, but no difference
};

/// A key of a config that does not say the same in both.
struct config_difference {
  std::string file;   ///< "config.json", "params.json", "hf_quant_config.json"
  std::string key;    ///< "text_config.hidden_size"; empty: the file itself; safe to print
  std::string first;  ///< the value as JSON, shortened; "absent" where there is none; safe to print
  std::string second;
  bool of_storage =
      false;  ///< says how weights are stored, or who wrote the file, not what they are
};

struct diff_report {
  std::array<index_t, diff_state_count> counts = {};  ///< by diff_state
  index_t numbers = 0;                                ///< compared after dequantising
  index_t different = 0;
  double max_abs = 0.0;
  double max_rel = 0.0;
  std::vector<tensor_difference> tensors;  ///< all that are not identical, by name
  std::vector<config_difference> configs;  ///< those of storage are no difference unless bitwise
  bool same = true;                        ///< nothing differs beyond what was asked
};

/// Compares two checkpoints tensor by tensor: bytes first, and where they are not the same, numbers
/// after dequantising. Weights correspond by what they are, not by how they are stored: the matrix
/// of a layer's expert is found in a stack, fused or transposed, as well as in a tensor of its own,
/// and a module in bf16 corresponds to the same one in fp8. Memory does not depend on the size of
/// tensors. Progress counts bytes of both.
MOE64_API diff_report diff(checkpoint_reader const& first, checkpoint_reader const& second,
                           diff_options const& options, stream where,
                           progress_report const& progress = {});

}  // namespace moe64
