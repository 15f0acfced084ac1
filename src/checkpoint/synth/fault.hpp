#pragma once

#include "checkpoint/dialect/module_format.hpp"
#include "moe64/index.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

enum class synth_fault_kind : std::uint8_t {
  none,
  dropped_scale,
  orphan_scale,
  duplicate_scale,
  missing_expert,
  wrong_block_size,
  wrong_scale_shape,
  missing_declaration,
  duplicate_tensor,
  wrong_index,
  missing_shard,
  truncated_shard,
  nan_code,
  zero_scale,
  nan_scale,
  negative_scale,
  reciprocal_scale,
  uneven_scale,
  inverted_layer,
  inverted_projection,
  inverted_matrix,
  scaled_layer,
  unit_scale,
  zero_hole,
  zero_matrix,
  missing_embeddings,
  missing_router,
  missing_attention,
  missing_shared_expert,
};

struct synth_fault_row {
  synth_fault_kind kind;
  std::string_view name;
  std::string_view text;
  bool value;  ///< opening cannot tell
};

/// Which matrices a fault of values is planted in.
enum class synth_fault_reach : std::uint8_t { one, layer, projection, all };
[[nodiscard]] synth_fault_reach reach_of(synth_fault_kind kind) noexcept;
/// Whether it takes away a tensor beside the experts.
[[nodiscard]] bool takes_away(synth_fault_kind kind) noexcept;

/// Bytes of a hole of zeros: these, or half of a matrix that is smaller than two of them.
inline constexpr index_t synth_hole_bytes = 32768;
inline constexpr index_t least_synth_hole = 4096;
[[nodiscard]] std::span<synth_fault_row const> synth_fault_table() noexcept;

/// The kind of that name; errc::invalid_argument lists them.
[[nodiscard]] synth_fault_kind synth_fault_named(std::string_view name);

/// What is to be planted where.
struct synth_fault_plan {
  synth_fault_kind kind = synth_fault_kind::none;
  index_t module = -1;  ///< position among the modules
  std::string tensor;   ///< its name

  [[nodiscard]] bool is(synth_fault_kind wanted) const noexcept { return kind == wanted; }
};

/// Why modules of this format cannot have the fault; empty when they can.
[[nodiscard]] std::string_view synth_fault_refusal(synth_fault_kind kind,
                                                   module_format const& format);

/// The bytes of one slice, as they go to the files.
struct synth_bytes {
  std::span<std::byte> values;
  std::span<std::byte> scales;
  std::span<std::byte> global;
};
/// Changes the numbers of one slice.
void plant_in_values(synth_fault_kind kind, module_format const& format, synth_bytes const& bytes);

}  // namespace moe64::checkpoint
