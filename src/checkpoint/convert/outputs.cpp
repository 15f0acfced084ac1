#include "checkpoint/convert/outputs.hpp"

#include "core/fail.hpp"

namespace moe64::checkpoint {
namespace {

file_dtype file_type(dtype scale) {
  return scale == dtype::e8m0 ? file_dtype::f8_e8m0 : file_dtype::f32;
}

/// Stacks whose tensors have no ".weight" at their end.
bool is_bare_stack(weight_module const& weight) {
  return weight.of_experts &&
         (weight.schema == key_schema::mlp_stack || weight.schema == key_schema::mlp_stack_blocks ||
          weight.schema == key_schema::feed_forward_stack ||
          weight.schema == key_schema::mlp_stack_w13);
}

std::string values_name(weight_module const& weight) {
  std::string name(weight.module);
  return is_bare_stack(weight) ? name : name + ".weight";
}

std::string scale_suffix(conversion_plan const& plan) {
  if (plan.to == convert_target::fp8_row) return ".weight_scale";
  return plan.scale_type == dtype::e8m0 ? ".scale" : ".weight_scale_inv";
}

std::vector<index_t> shape_of(index_t slices, bool stacked, index_t rows, index_t cols) {
  std::vector<index_t> shape;
  if (stacked) shape.push_back(slices);
  shape.insert(shape.end(), {rows, cols});
  return shape;
}

planned_output widened(weight_module const& weight, stored_matrices const& matrices,
                       conversion_plan const& plan) {
  planned_output result;
  conversion_job& job = result.job;
  job.kind = job_kind::widen;
  job.type = library_scale_type(float_type(plan.to));
  job.matrices = &matrices;
  job.slices = matrices.count;
  // what Transformers loads for gpt-oss is [experts, in, out], and so are its bf16 releases
  job.transposed = weight.of_experts && weight.schema == key_schema::mlp_stack_blocks;
  job.rows = job.transposed ? matrices.cols : matrices.rows;
  job.cols = job.transposed ? matrices.rows : matrices.cols;
  result.tensors.push_back({values_name(weight), float_type(plan.to),
                            shape_of(job.slices, weight.format.stacked, job.rows, job.cols)});
  return result;
}

planned_output quantised(std::string const& module, bool stacked, conversion_job job,
                         conversion_plan const& plan) {
  planned_output result;
  granularity const layout = target_layout(plan.to);
  job.kind = job_kind::quantise;
  job.scales = 1;
  job.type = dtype::e4m3;
  job.layout = layout;
  job.scale_type = plan.scale_type;
  result.job = job;
  result.tensors.push_back(
      {module + ".weight", file_dtype::f8_e4m3, shape_of(job.slices, stacked, job.rows, job.cols)});
  result.tensors.push_back(
      {module + scale_suffix(plan), file_type(plan.scale_type),
       shape_of(job.slices, stacked, layout.grid_rows(job.rows), layout.grid_cols(job.cols))});
  return result;
}

/// Every expert and part of a fused stack on its own.
std::vector<planned_output> unstacked(weight_module const& weight, stored_matrices const& matrices,
                                      conversion_plan const& plan) {
  std::vector<planned_output> results;
  std::string_view const prefix = weight.module.substr(0, weight.module.rfind('.') + 1);
  bool const fused = weight.format.fused;
  bool const interleaved = weight.format.gate_up == gate_up_layout::interleaved;
  for (index_t expert = 0; expert < matrices.count; ++expert) {
    for (int part = 0; part < (fused ? 2 : 1); ++part) {
      conversion_job job;
      job.matrices = &matrices;
      job.slice = expert;
      job.transposed = weight.format.transposed;
      job.rows = weight.format.rows / (fused ? 2 : 1);
      job.cols = weight.format.cols;
      if (fused) job.first = interleaved ? part : part * job.rows;
      if (fused && interleaved) job.step = 2;
      char const* const word = !fused ? "down_proj" : part == 0 ? "gate_proj" : "up_proj";
      results.push_back(quantised(fmt::format("{}{}.{}", prefix, expert, word), false, job, plan));
    }
  }
  return results;
}

/// Codes as they are; scales under the target's name and in its type.
std::vector<planned_output> relabelled(weight_module const& weight, conversion_plan const& plan) {
  std::vector<planned_output> results(2);
  std::string const module(weight.module);
  tensor_entry const& values = *weight.values;
  results[0].job.from = &values;
  results[0].tensors.push_back(
      {module + ".weight", values.type, {values.shape.begin(), values.shape.end()}});
  tensor_entry const& scales = *weight.scales;
  bool const as_stored = plan.to == convert_target::fp8_row || scales.type == file_dtype::f32 ||
                         plan.scale_type == dtype::e8m0;
  index_t const slices = weight.format.stacked ? weight.format.experts : 1;
  granularity const layout = target_layout(plan.to);
  results[1].job.kind = as_stored ? job_kind::copy : job_kind::numbers;
  results[1].job.from = &scales;
  results[1].tensors.push_back(
      {module + scale_suffix(plan), as_stored ? scales.type : file_dtype::f32,
       shape_of(slices, weight.format.stacked, layout.grid_rows(weight.format.rows),
                layout.grid_cols(weight.format.cols))});
  return results;
}

}  // namespace

file_dtype float_type(convert_target target) {
  return target == convert_target::bf16 ? file_dtype::bf16 : file_dtype::f16;
}

bool has_target_format(weight_module const& weight, convert_target target) {
  module_format const& format = weight.format;
  if (format.values != value_codec::e4m3 || format.transposed || is_bare_stack(weight)) {
    return false;
  }
  if (target == convert_target::fp8_row) return format.scales == scale_codec::row;
  bool const blocks = format.scales == scale_codec::blk || format.scales == scale_codec::blk_pow2 ||
                      format.scales == scale_codec::blk4d;
  return target == convert_target::fp8_block && blocks && !format.fused &&
         format.block_rows == target_block && format.block_cols == target_block;
}

std::vector<planned_output> outputs_of(weight_module const& weight, stored_matrices const& matrices,
                                       conversion_plan const& plan, module_delta const* delta) {
  bool const keeps_codes = delta == nullptr && has_target_format(weight, plan.to);
  if (is_fp8(plan.to) && keeps_codes) return relabelled(weight, plan);
  std::vector<planned_output> outputs;
  if (!is_fp8(plan.to)) {
    outputs.push_back(widened(weight, matrices, plan));
  } else if (is_bare_stack(weight)) {
    outputs = unstacked(weight, matrices, plan);
  } else {
    conversion_job job;
    job.matrices = &matrices;
    job.slices = matrices.count;
    job.transposed = weight.format.transposed;
    job.rows = weight.format.rows;
    job.cols = weight.format.cols;
    outputs.push_back(quantised(std::string(weight.module), weight.format.stacked, job, plan));
  }
  for (planned_output& output : outputs) output.job.delta = delta;
  return outputs;
}

}  // namespace moe64::checkpoint
