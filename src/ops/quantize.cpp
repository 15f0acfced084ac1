#include "core/fail.hpp"
#include "ops/check.hpp"
#include "ops/dispatch.hpp"

namespace moe64 {

void quantize(quantize_args const& args, stream where) {
  checker const check("quantize", where.device);
  index_t const rows = args.x.extent[args.x.rank == 3 ? 1 : 0];
  index_t const cols = args.x.extent[args.x.rank == 3 ? 2 : 1];
  if (args.x.rank == 3) {
    check.number("x", args.x, {any_extent, any_extent, any_extent});
    check.shape("values", args.values, {args.x.extent[0], rows, cols});
  } else {
    check.number("x", args.x, {any_extent, any_extent});
    check.shape("values", args.values, {rows, cols});
  }
  // The constructor owns the rules that tie values, scales and granularity together.
  quantized_view const result =
      quantized_view::scaled(args.values, args.scales, args.layout, args.global);
  check.quantized("values", result);
  check.no_self_overlap("values", args.values);
  check.no_self_overlap("scales", args.scales);
  check.no_overlap("values", args.values, "x", args.x);
  check.no_overlap("scales", args.scales, "x", args.x);
  check.no_overlap("values", args.values, "scales", args.scales);
  for (auto const& [label, operand] : {std::pair{"x", args.x}, std::pair{"values", args.values},
                                       std::pair{"scales", args.scales}}) {
    check.no_overlap("global", args.global.values, label, operand);
  }
  check.live_rows(args.live_rows);
  check.no_overlap("values", args.values, "live_rows", args.live_rows);
  check.no_overlap("scales", args.scales, "live_rows", args.live_rows);
  bool const per_row = args.layout.kind == scale_kind::row || args.layout.kind == scale_kind::group;
  check.require(
      !args.live_rows.present() || (args.x.rank == 2 && per_row),
      fmt::format("live_rows needs a matrix with scale row or group, not {} with scale {}",
                  to_string(args.x), to_string(args.layout)));
  dispatch(args, where);
}

void dequantize(dequantize_args const& args, stream where) {
  checker const check("dequantize", where.device);
  check.quantized("q", args.q);
  if (args.out.rank == 2 && args.q.experts() == 1) {
    check.number("out", args.out, {args.q.rows(), args.q.cols()});
  } else {
    check.number("out", args.out, {args.q.experts(), args.q.rows(), args.q.cols()});
  }
  check.no_self_overlap("out", args.out);
  check.no_overlap("out", args.out, "values", args.q.values(), args.q.places().values);
  check.no_overlap("out", args.out, "scales", args.q.scales(), args.q.places().scales);
  check.no_overlap("out", args.out, "global scale", args.q.global().values);
  dispatch(args, where);
}

}  // namespace moe64
