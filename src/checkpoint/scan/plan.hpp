#pragma once

#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/dialect/storage_grid.hpp"
#include "checkpoint/naming/part.hpp"
#include "checkpoint/scan/value_counts.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moe64::checkpoint {

enum class scan_role : std::uint8_t {
  expert,            ///< a matrix of a routed expert
  dense,             ///< a quantised matrix beside them
  activation_scale,  ///< one or more scales of activations
  weight_shape,      ///< the stated extents of a packed matrix
  other,             ///< anything else, judged by its type alone
};

/// One matrix with its scales, or one tensor by itself.
struct scan_item {
  scan_role role = scan_role::other;
  value_kind kind = value_kind::opaque;
  tensor_entry const* values = nullptr;
  index_t value_begin = 0;  ///< first byte in the tensor
  index_t value_bytes = 0;
  module_format const* format = nullptr;  ///< of experts, dense matrices and their stated extents
  tensor_entry const* scales = nullptr;   ///< null: none
  index_t scale_begin = 0;
  tensor_entry const* global = nullptr;
  index_t shared = -1;  ///< scale and global scale of a whole stack are in shared_scales
  index_t layer = -1;   ///< position in resolved_checkpoint::layers
  int projection = 0;   ///< of that layer: position in projections_of()
  index_t expert = 0;   ///< its number
};

/// A part of an item that is read in one go. Of a matrix with scales it is rows of the grid, so
/// that no scale is needed twice; otherwise bytes.
struct scan_band {
  index_t item = 0;
  index_t begin = 0;
  index_t end = 0;
};

/// The one scale, and the one global scale, of all experts of a stack: read by the plan itself.
struct shared_scales {
  std::array<std::byte, 4> scale = {};
  std::array<std::byte, 4> global = {};
  bool has_scale = false;
};

/// Every byte of every tensor of the part once, in the order of the files.
struct scan_plan {
  std::vector<scan_item> items;  ///< experts in order, then dense modules, then the others by name
  std::vector<scan_band> bands;  ///< in the order of the files
  std::vector<index_t> tasks;    ///< first band of each task, and the number of bands at the end
  std::vector<shared_scales> shared;
  index_t total_bytes = 0;
  index_t read_bytes = 0;  ///< by the plan
};

[[nodiscard]] scan_plan plan_scan(folder const& files, resolved_checkpoint const& resolved,
                                  checkpoint_part const& part = {});

/// Gate, up and down; of a layer whose gate and up are one tensor, that one and down.
[[nodiscard]] std::vector<projection_entry const*> projections_of(layer_entry const& layer);

}  // namespace moe64::checkpoint
