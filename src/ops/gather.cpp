#include "core/fail.hpp"
#include "ops/check.hpp"
#include "ops/dispatch.hpp"

namespace moe64 {
namespace {

/// Rows of packed types are copied as bytes.
void check_packed(checker const& check, std::string_view argument, tensor_view const& tensor) {
  if (bits(tensor.type) >= 8) return;
  check.require((tensor.stride[1] == 1 || tensor.extent[1] <= 1) && tensor.stride[0] % 2 == 0,
                fmt::format("{} is {}: packed rows must be contiguous and start at whole bytes",
                            argument, to_string(tensor)));
}

/// Rows of x's type, with their scales where x has some.
void check_copied(checker const& check, gather_args const& args) {
  check.type("rows", args.rows, {args.x.type});
  check_packed(check, "x", args.x);
  check_packed(check, "rows", args.rows);
  check.require(args.scales.present() == args.row_scales.present(),
                fmt::format("scales {} and row_scales {}: give both or none",
                            to_string(args.scales), to_string(args.row_scales)));
  if (is_quantized(args.x.type) && !args.scales.present()) {
    fail(errc::missing_scale, "[gather] x is {}: its scales must move along", to_string(args.x));
  }
  if (!args.scales.present()) return;
  check.shape("scales", args.scales, {args.plan.tokens, any_extent});
  check.type("scales", args.scales,
             {dtype::f32, dtype::bf16, dtype::f16, dtype::e8m0, dtype::e4m3});
  check.shape("row_scales", args.row_scales, {args.plan.slots(), args.scales.extent[1]});
  check.type("row_scales", args.row_scales, {args.scales.type});
  check.no_overlap("row_scales", args.row_scales, "scales", args.scales);
  check.no_overlap("rows", args.rows, "scales", args.scales);
}

/// Rows that are quantised on the way.
void check_quantized(checker const& check, gather_args const& args) {
  check.number("x of a gather that quantises", args.x);
  check.require(!args.scales.present(),
                fmt::format("scales is {}: a gather that quantises makes its own",
                            to_string(args.scales)));
  check.quantized_rows("rows", args.rows, args.row_scales, args.quantized);
}

}  // namespace

void gather(gather_args const& args, stream where) {
  checker const check("gather", where.device);
  check.plan(args.plan);
  check.shape("x", args.x, {args.plan.tokens, any_extent});
  check.shape("rows", args.rows, {args.plan.slots(), args.x.extent[1]});
  if (args.weighted) check.number("x of a weighted gather", args.x);
  if (args.quantized.kind == scale_kind::none) {
    check_copied(check, args);
  } else {
    check_quantized(check, args);
  }
  if (args.row_scales.present()) {
    check.no_self_overlap("row_scales", args.row_scales);
    check.no_overlap("row_scales", args.row_scales, "x", args.x);
    check.no_overlap("rows", args.rows, "row_scales", args.row_scales);
    check.no_overlap("row_scales", args.row_scales, args.plan);
  }
  check.no_self_overlap("rows", args.rows);
  check.no_overlap("rows", args.rows, "x", args.x);
  check.no_overlap("rows", args.rows, args.plan);
  dispatch(args, where);
}

}  // namespace moe64
