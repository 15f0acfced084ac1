#pragma once

#include "checkpoint/dialect/stored_matrix.hpp"
#include "checkpoint/files/folder.hpp"
#include "checkpoint/load/weight_list.hpp"
#include "checkpoint/merge/deltas.hpp"
#include "checkpoint/safetensors/writer.hpp"
#include "moe64/convert.hpp"

#include <deque>
#include <string>
#include <vector>

namespace moe64::checkpoint {

enum class job_kind : std::uint8_t {
  copy,     ///< bytes of `from`
  numbers,  ///< scales of `from` as f32, exactly
  recast,   ///< bf16, f16 or f32 of `from` as bf16 or f16
  widen,    ///< matrices as bf16, f16 or f32
  quantise  ///< matrices as codes with scales
};

/// How one output tensor (with its scales: two) comes about. Output row r is stored row
/// first + r * step, or stored column where `transposed`.
struct conversion_job {
  job_kind kind = job_kind::copy;
  tensor_entry const* from = nullptr;
  stored_matrices const* matrices = nullptr;
  index_t slice = 0;   ///< the first matrix ...
  index_t slices = 1;  ///< ... and how many, one behind the other in the output
  bool transposed = false;
  index_t first = 0;
  index_t step = 1;
  index_t rows = 0;  ///< of one output matrix
  index_t cols = 0;
  index_t values = 0;  ///< position in planned_shard::tensors
  index_t scales = -1;
  dtype type = dtype::bf16;  ///< of widened numbers, or of codes ...
  granularity layout;        ///< ... with these scales ...
  dtype scale_type = dtype::f32;
  bool offset_nibbles = false;          ///< ... int4 written as value + 8
  module_delta const* delta = nullptr;  ///< what is added to the numbers; null: nothing
};
/// The output has the columns of the module as rows: of a job with a delta.
[[nodiscard]] bool is_turned(conversion_job const& job) noexcept;

struct planned_shard {
  std::string name;
  std::vector<new_tensor> tensors;
  std::vector<conversion_job> jobs;
  index_t tensor_bytes = 0;
};

/// Everything that a conversion will do, before it does anything.
struct conversion_plan {
  convert_target to = convert_target::bf16;
  dtype scale_type = dtype::f32;         ///< of quantised output
  std::deque<stored_matrices> matrices;  // jobs point into it
  std::vector<planned_shard> shards;
  std::vector<tensor_fate> fates;  ///< by position in folder::tensors()
  std::vector<std::string_view> reasons;
  std::vector<std::string> plain_modules;  ///< weights that stay as they are, as configs list them
  index_t converted_modules = 0;
  index_t recast_tensors = 0;             ///< plain ones that take the target's type
  weight_deltas const* deltas = nullptr;  ///< what is merged into the weights; null: nothing
  index_t quantised_outputs = 0;
};

[[nodiscard]] conversion_plan plan_conversion(folder const& files,
                                              resolved_checkpoint const& resolved,
                                              convert_options const& options,
                                              weight_deltas const* deltas = nullptr);

/// The file's name of what quantised numbers become.
[[nodiscard]] constexpr bool is_fp8(convert_target target) noexcept {
  return target == convert_target::fp8_block || target == convert_target::fp8_row;
}
inline constexpr index_t target_block = 128;

/// Layout of the scales of the target.
[[nodiscard]] constexpr granularity target_layout(convert_target target) noexcept {
  return target == convert_target::fp8_block ? granularity::block(target_block, target_block)
                                             : granularity::row();
}

}  // namespace moe64::checkpoint
