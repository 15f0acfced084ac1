#include "checkpoint/convert/requantised.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

namespace moe64::checkpoint {
namespace {

/// Why the format cannot be written again; empty: it can.
std::string_view obstacle(weight_module const& weight, stored_matrices const& m) {
  module_format const& format = weight.format;
  if (weight.global != nullptr) return "its global scale covers more than a part of it";
  if (format.scales == scale_codec::blk_pow2 && format.scale_type != file_dtype::f8_e8m0) {
    return "its scales are powers of two stored as other numbers";
  }
  if (m.count > 1 && m.grid_slice == 0) return "its matrices share one scale";
  for (axis_blocks const& axis : {m.row_blocks, m.col_blocks}) {
    if (axis.half % axis.block != 0) return "its blocks begin anew in the middle of one";
  }
  if (m.pitch != m.cols || m.cols * bits(m.type) % 8 != 0) return "its rows are padded";
  return {};
}

granularity layout_of(stored_matrices const& m) {
  if (m.row_blocks.block > 1) return granularity::block(m.row_blocks.block, m.col_blocks.block);
  return m.col_blocks.block >= m.cols ? granularity::row() : granularity::group(m.col_blocks.block);
}

new_tensor same_tensor(tensor_entry const& tensor) {
  return {std::string(tensor.name), tensor.type, {tensor.shape.begin(), tensor.shape.end()}};
}

}  // namespace

planned_output requantised(weight_module const& weight, stored_matrices const& matrices,
                           module_delta const& delta) {
  if (auto const why = obstacle(weight, matrices); !why.empty()) {
    fail(errc::unsupported,
         "[merge] {}: cannot be quantised again as it is ({}: {}): merge to bf16, fp8-block or "
         "fp8-row",
         quoted(weight.values->name), name(weight.format.scales), why);
  }
  planned_output result;
  conversion_job& job = result.job;
  job.kind = job_kind::quantise;
  job.matrices = &matrices;
  job.slices = matrices.count;
  job.rows = matrices.rows;
  job.cols = matrices.cols;
  job.scales = 1;
  job.type = matrices.type;
  job.layout = layout_of(matrices);
  job.scale_type = matrices.scale_type;
  job.offset_nibbles = matrices.offset_nibbles;
  job.delta = &delta;
  result.tensors.push_back(same_tensor(*weight.values));
  result.tensors.push_back(same_tensor(*weight.scales));
  return result;
}

}  // namespace moe64::checkpoint
