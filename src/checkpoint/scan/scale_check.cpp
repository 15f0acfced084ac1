#include "checkpoint/dialect/module_format.hpp"
#include "checkpoint/findings/quoted.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

/// The codecs that a scale of this shape could also be meant as: for the message alone.
std::string other_readings(module_format format, std::span<index_t const> shape) {
  std::string readings;
  for (scale_codec const codec : {scale_codec::tensor, scale_codec::row, scale_codec::blk}) {
    format.scales = codec;
    format.block_rows = format.block_cols = 128;
    format.grid = fused_grid::fused;
    if (is_squeezed(shape, scale_shape(format))) {
      readings += fmt::format("{}{}", readings.empty() ? "" : ", ",
                              codec == scale_codec::blk ? "blk 128x128" : name(codec));
    }
  }
  return readings.empty() ? std::string()
                          : "; the shape alone would also fit " + readings +
                                ", which only an assumption can state";
}

bool is_one_number(std::span<index_t const> shape) {
  return std::all_of(shape.begin(), shape.end(), [](index_t extent) { return extent == 1; });
}

}  // namespace

bool module_resolver::check_global(module_tensors const& module, dialect const& row) {
  for (tensor_part const part : {tensor_part::weight_scale_2, tensor_part::weight_global_scale}) {
    tensor_entry const* const global = module.part(part);
    if (global == nullptr && part == row.global) {
      found_.error(errc::missing_scale, "missing-scale", module.any_name(),
                   "tensor {} of {} has no global scale '{}'", quoted(module.any_name()), row.id,
                   name(part));
      return false;
    }
    if (global == nullptr) continue;
    if (part != row.global) {
      found_.error(errc::invalid_argument, "unexpected-global-scale", global->name,
                   "tensor {} does not belong to {}, whose global scale is '{}'",
                   quoted(global->name), row.id,
                   row.global == tensor_part::unknown ? "none" : name(row.global));
      return false;
    }
    if (global->type != file_dtype::f32 || !is_one_number(global->shape)) {
      found_.error(errc::dtype_mismatch, "bad-scale", global->name,
                   "tensor {} is {} {}, expected one F32 number", quoted(global->name),
                   shape_text(global->shape), name(global->type));
      return false;
    }
  }
  return true;
}

bool module_resolver::check_scale(module_tensors const& module, tensor_entry const& scale,
                                  module_format& format) {
  if (!types_of(format.scales).contains(scale.type)) {
    found_.error(errc::dtype_mismatch, "bad-scale", scale.name,
                 "tensor {} is {}, which {} scales cannot be", quoted(scale.name), name(scale.type),
                 name(format.scales));
    return false;
  }
  if (format.row->scales == format.scales && !format.row->scale_types.contains(scale.type)) {
    found_.warning("unusual-scale-type", scale.name, "tensor {} is {}, which is unusual for {}",
                   quoted(scale.name), name(scale.type), format.row->id);
  }
  if (assumed_.grid) format.grid = *assumed_.grid;
  if (straddles(format) && !assumed_.grid) {
    module_format halves = format;
    halves.grid = fused_grid::halves;
    bool const same = scale_shape(format) == scale_shape(halves);
    if (same || is_squeezed(scale.shape, scale_shape(halves))) {
      found_.error(errc::unsupported, "ambiguous-grid", scale.name,
                   "tensor {} {}: {} gate rows do not fill blocks of {}; candidates: blocks of the "
                   "fused rows (grid=fused{}), blocks of gate and of up (grid=halves)",
                   quoted(scale.name), shape_text(scale.shape), format.rows / 2, format.block_rows,
                   same ? "" : ", which has another shape");
      return false;
    }
  }
  if (format.fused && format.block_rows > 0 && format.gate_up == gate_up_layout::interleaved) {
    found_.error(errc::unsupported, "ambiguous-grid", scale.name,
                 "tensor {}: blocks over interleaved gate and up rows are not supported",
                 quoted(scale.name));
    return false;
  }
  auto const expected = scale_shape(format);
  if (is_squeezed(scale.shape, expected)) return true;
  found_.error(errc::shape_mismatch, "bad-scale", scale.name,
               "tensor {} is {}, expected {} for {} scales of weight {}{}", quoted(scale.name),
               shape_text(scale.shape), shape_text(expected), name(format.scales),
               shape_text(module.values()->shape), other_readings(format, scale.shape));
  return false;
}

}  // namespace moe64::checkpoint
