#include "checkpoint/dialect/module_format.hpp"

#include "checkpoint/findings/quoted.hpp"

namespace moe64::checkpoint {
namespace {

bool is_blocks(scale_codec codec) {
  return codec == scale_codec::blk || codec == scale_codec::blk_pow2 || codec == scale_codec::blk4d;
}

/// A fused tensor holds gate and up rows; `base` is what one of them has.
index_t times_parts(index_t base, projection_kind kind) {
  return kind == projection_kind::gate_up ? checked_mul(base, 2) : base;
}

}  // namespace

module_resolver::module_resolver(model_config const& config, assumptions const& assumed,
                                 findings& found)
    : config_(config), assumed_(assumed), found_(found), chooser_(config, assumed) {
  if (config.geometry.hidden) stated_.hidden = config.geometry.hidden->value;
  if (config.geometry.inter) stated_.inter = config.geometry.inter->value;
  if (assumed.hidden) stated_.hidden = *assumed.hidden;
  if (assumed.inter) stated_.inter = *assumed.inter;
}

std::optional<module_format> module_resolver::resolve(module_tensors const& module) {
  try {
    if (module.values() == nullptr) {
      found_.error(errc::missing_scale, "orphan-scale", module.any_name(),
                   "tensor {} has no weight beside it", quoted(module.any_name()));
      return std::nullopt;
    }
    return is_plain(module.values()->type) ? resolve_plain(module) : resolve_codes(module);
  } catch (error const& refused) {
    found_.error(refused.code(), "bad-shape", module.any_name(), "tensor {}: {}",
                 quoted(module.any_name()), refused.what());
    return std::nullopt;
  }
}

/// The one scale of a module; null, without a finding, when it has none.
tensor_entry const* module_resolver::one_scale(module_tensors const& module, tensor_part& part) {
  tensor_entry const* scale = nullptr;
  for (int i = 0; i < tensor_part_count; ++i) {
    auto const candidate = static_cast<tensor_part>(i);
    tensor_entry const* const tensor = module.part(candidate);
    if (!is_weight_scale(candidate) || tensor == nullptr) continue;
    if (scale != nullptr) {
      found_.error(errc::missing_scale, "duplicate-scale", module.any_name(),
                   "module {} has two scales, {} and {}", quoted(module.module),
                   quoted(scale->name), quoted(tensor->name));
    }
    scale = tensor;
    part = candidate;
  }
  return scale;
}

std::optional<module_format> module_resolver::resolve_plain(module_tensors const& module) {
  tensor_entry const& values = *module.values();
  tensor_part part = tensor_part::unknown;
  if (tensor_entry const* const scale = one_scale(module, part)) {
    found_.error(errc::dtype_mismatch, "scale-without-codes", scale->name,
                 "tensor {} is {}, which needs no scale, but {} is there", quoted(values.name),
                 name(values.type), quoted(scale->name));
    return std::nullopt;
  }
  module_format format;
  format.value_type = values.type;
  if (!read_orientation(module, format) || !read_extents(module, format) ||
      !check_geometry(module, format)) {
    return std::nullopt;
  }
  check_skipped(module, false);
  return format;
}

std::optional<module_format> module_resolver::resolve_codes(module_tensors const& module) {
  tensor_entry const& values = *module.values();
  tensor_part part = tensor_part::unknown;
  index_t const before = found_.count("duplicate-scale");
  tensor_entry const* const scale = one_scale(module, part);
  if (found_.count("duplicate-scale") != before) return std::nullopt;
  if (scale == nullptr) {
    found_.error(errc::missing_scale, "missing-scale", values.name,
                 "tensor {} holds {} codes and has no scale", quoted(values.name),
                 name(values.type));
    return std::nullopt;
  }
  quant_scheme const& scheme = config_.quant.scheme_of(module.module);
  dialect_choice const& choice = chooser_.choose(
      {&scheme, module.schema, module.expert_module, module.packed, values.type, part});
  if (choice.row == nullptr) {
    found_.error(errc::unsupported, "no-dialect", values.name, "tensor {} with scale {}: {}",
                 quoted(values.name), quoted(scale->name), choice.refusal);
    return std::nullopt;
  }
  dialect const& row = *choice.row;
  module_format format;
  format.row = &row;
  format.values = row.values;
  format.value_type = values.type;
  format.scales = assumed_.scale.value_or(row.scales);
  bool const ue8m0 = config_.quant.scale_fmt && config_.quant.scale_fmt->value == "ue8m0";
  if (format.scales == scale_codec::blk && ue8m0) format.scales = scale_codec::blk_pow2;
  format.scale_type = scale->type;
  if (!read_orientation(module, format) || !read_extents(module, format) ||
      !check_geometry(module, format) || !check_global(module, row) ||
      !read_block(module, scheme, format) || !check_scale(module, *scale, format)) {
    return std::nullopt;
  }
  check_skipped(module, true);
  return format;
}

bool module_resolver::read_orientation(module_tensors const& module, module_format& format) {
  if (!module.expert_module) return true;
  format.stacked = is_stacked(module.schema);
  format.fused = module.projection == projection_kind::gate_up;
  if (!format.stacked) return true;
  std::string refusal;
  auto const orientation = orientation_of(module.schema, config_, assumed_, refusal);
  if (!orientation) {
    found_.error(errc::unsupported, "ambiguous-orientation", module.any_name(), "tensor {}: {}",
                 quoted(module.any_name()), refusal);
    return false;
  }
  format.transposed = orientation->transposed;
  format.gate_up = orientation->gate_up;
  return true;
}

bool module_resolver::read_extents(module_tensors const& module, module_format& format) {
  tensor_entry const& values = *module.values();
  std::span<index_t const> shape = values.shape;
  std::size_t const inner = format.values == value_codec::fp4blk ? 3 : 2;
  std::size_t const rank = inner + (format.stacked ? 1 : 0);
  bool good = shape.size() == rank;
  if (good && format.stacked) {
    format.experts = shape[0];
    shape = shape.subspan(1);
  }
  if (good) {
    format.rows = format.transposed ? shape[1] : shape[0];
    format.cols = format.transposed ? shape[0] : shape[1];
    if (format.values == value_codec::fp4x2) format.cols = checked_mul(format.cols, 2);
    if (format.values == value_codec::fp4blk) {
      good = shape[2] == 16;
      format.cols = checked_mul(format.cols, 32);
    }
    if (format.values == value_codec::int4x8) {
      // the last word of a row may be partial; what it holds is stated, not stored in the shape
      bool const down = module.projection == projection_kind::down;
      index_t const stated = down ? stated_.inter : stated_.hidden;
      bool const fits = module.expert_module && stated > 0 && ceil_div(stated, 8) == format.cols;
      format.cols = fits ? stated : checked_mul(format.cols, 8);
    }
    good = good && format.experts > 0 && format.rows > 0 && format.cols > 0 &&
           (!format.fused || format.rows % 2 == 0);
  }
  if (!good) {
    found_.error(errc::shape_mismatch, "bad-shape", values.name,
                 "tensor {} is {} {}, expected {} dimensions{}{}", quoted(values.name),
                 shape_text(values.shape), name(values.type), rank,
                 format.values == value_codec::fp4blk ? ", the last of them 16" : "",
                 format.fused ? ", with as many gate as up rows" : "");
  }
  return good;
}

bool module_resolver::check_geometry(module_tensors const& module, module_format const& format) {
  if (!module.expert_module) return true;
  bool const down = module.projection == projection_kind::down;
  index_t const outputs = down ? stated_.hidden : stated_.inter;
  index_t const inputs = down ? stated_.inter : stated_.hidden;
  index_t const rows = outputs > 0 ? times_parts(outputs, module.projection) : format.rows;
  index_t const cols = inputs > 0 ? inputs : format.cols;
  if (format.rows == rows && format.cols == cols) return true;
  found_.error(errc::shape_mismatch, "geometry", module.any_name(),
               "tensor {} {} holds {} outputs of {} inputs, but the config states {} of {} "
               "(hidden {}, inter {})",
               quoted(module.any_name()), shape_text(module.values()->shape), format.rows,
               format.cols, rows, cols, stated_.hidden, stated_.inter);
  return false;
}

bool module_resolver::read_block(module_tensors const& module, quant_scheme const& scheme,
                                 module_format& format) {
  bool const nv = format.scales == scale_codec::nv16_mul || format.scales == scale_codec::nv16_div;
  if (nv) format.block_cols = 16;
  if (format.scales == scale_codec::mx32) format.block_cols = 32;
  if (format.scales == scale_codec::grp) {
    format.block_cols = assumed_.group.value_or(scheme.group);
  }
  if (is_blocks(format.scales)) {
    format.block_rows = assumed_.block_rows.value_or(scheme.block_rows);
    format.block_cols = assumed_.block_cols.value_or(scheme.block_cols);
  }
  bool const rows_missing = is_blocks(format.scales) && format.block_rows < 1;
  bool const cols_missing =
      (is_blocks(format.scales) || format.scales == scale_codec::grp) && format.block_cols < 1;
  if (rows_missing || cols_missing) {
    found_.error(errc::missing_scale, "missing-block", module.any_name(),
                 "tensor {}: nothing states the {} of its {} scales, and no shape can; state it "
                 "with {}",
                 quoted(module.any_name()), rows_missing ? "block" : "group", name(format.scales),
                 is_blocks(format.scales) ? "block=ROWSxCOLS" : "group=COLS");
    return false;
  }
  return true;
}

void module_resolver::check_skipped(module_tensors const& module, bool quantised) {
  quant_declaration const& quant = config_.quant;
  // once per projection is enough for codes: the rules of real lists do not tell experts apart
  if (!module.expert_module || !quant.declared() || (quantised && module.expert > 0)) return;
  bool const skipped = quant.skipped.covers(module.module);
  if (skipped && quantised) {
    found_.warning("skipped-but-quantised", module.any_name(),
                   "module {} is listed as not quantised, but tensor {} holds {} codes",
                   quoted(module.module), quoted(module.any_name()), name(module.values()->type));
  }
  if (!skipped && !quantised) {
    found_.warning("unquantised", module.any_name(),
                   "tensor {} is {}: '{}' is declared for it and no list excepts it",
                   quoted(module.any_name()), name(module.values()->type),
                   quant.scheme_of(module.module).spelling);
  }
}

}  // namespace moe64::checkpoint
