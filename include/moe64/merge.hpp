#pragma once

#include "moe64/convert.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe64 {

/// How the factors B of an adapter of stacks of experts count ranks and experts.
enum class adapter_layout : std::uint8_t {
  as_stated = 0,  ///< what adapter_config.json says; where it says nothing, what its writer did
  peft = 1,       ///< [out, rank, experts]
  unsloth = 2,    ///< [out, experts, rank]: unsloth before 2026.9.6
};

struct merge_options {
  /// What the merged weights are written as: bf16, fp8_block and fp8_row as convert() does; same:
  /// every tensor in the format that it has.
  convert_target to = convert_target::bf16;
  index_t memory_bytes = index_t{512} << 20;  ///< of all buffers together
  index_t shard_bytes = 5'000'000'000;        ///< of tensors in one file
  adapter_layout layout = adapter_layout::as_stated;
};

/// What became of the adapter in one tensor. With W the numbers of the base, D what the adapter
/// adds and M what the file now says:
struct merged_tensor {
  std::string tensor;
  double delta = 0;  ///< ||D||, the root of the sum of squares
  double kept = 0;   ///< <M - W, D> / <D, D>: 1 where all of D is there, 0 where none is
  double error = 0;  ///< ||M - (W + D)|| / ||D||: below 1 where less was lost than was added

  /// Rounding took more than a tenth of the change, or is as large as the change itself. A change
  /// of nothing survives.
  [[nodiscard]] bool survives() const noexcept {
    return delta == 0 || (kept >= 0.9 && kept <= 1.1 && error < 1);
  }
};

struct merge_report : convert_report {
  index_t pairs = 0;                  ///< of factors in the adapter
  index_t modules = 0;                ///< tensors of the base that they change
  std::vector<merged_tensor> merged;  ///< every tensor of the result that they changed
  std::vector<std::string> warnings;  ///< where little of the adapter is left; safe to print
};

/// What merge() finds out before it writes: of an adapter that fits. errc and message as of
/// merge() where it does not.
struct adapter_fit {
  index_t pairs = 0;
  index_t modules = 0;
  index_t bytes = 0;  ///< of the adapter's file
};
/// Whether every pair of factors of the adapter has a weight in the base with its extents, and all
/// its numbers are finite. Reads the adapter to the end, and of the base no weight.
[[nodiscard]] MOE64_API adapter_fit
check_adapter(checkpoint_reader const& base, std::string const& adapter,
              adapter_layout layout = adapter_layout::as_stated);

/// Writes base + adapter to the folder `out`: convert() with scaling * B * A added to the numbers
/// of each weight that the adapter has factors for. Numbers of the base are f32 (code times scale).
/// For bf16, f16 and f32 products and sums are f64, rounded once; for codes they are f32, in order
/// of the rank. Everything that convert() promises holds: memory, interruptions, resuming (the
/// adapter is part of what a resumed job depends on), and that the same bytes are written whatever
/// the threads.
///
/// `adapter` is a folder with adapter_config.json and adapter_model.safetensors of kind LORA, as
/// PEFT and unsloth save it: of dense layers and attention, shared experts, single experts and
/// stacks of experts. errc::unsupported, with the key or tensor, for DoRA, saved modules and
/// whatever else would change the numbers in another way; errc::invalid_argument for a pair whose
/// module the base does not have and for numbers that are not finite; errc::shape_mismatch for
/// other extents or ranks. Nothing is written then.
MOE64_API merge_report merge(checkpoint_reader const& base, std::string const& adapter,
                             std::string const& out, merge_options const& options, stream where,
                             progress_report const& progress = {});

}  // namespace moe64
