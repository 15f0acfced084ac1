#include "core/arena.hpp"
#include "core/fail.hpp"
#include "ops/check.hpp"
#include "ops/dispatch.hpp"

namespace moe64 {
namespace {

void check_expert_begin(checker const& check, tensor_view const& expert_begin, index_t experts) {
  check.shape("expert_begin", expert_begin,
              {experts == any_extent ? any_extent : checked_add(experts, 1)});
  check.type("expert_begin", expert_begin, {dtype::int64});
  check.at_least("length of expert_begin", expert_begin.extent[0], 1);
}

/// Codes are scaled and added per run of columns, so x must have its scales along its rows.
void check_quantized_x(checker const& check, grouped_gemm_args const& args) {
  if (args.transpose) {
    fail(errc::unsupported, "[grouped_gemm] quantised x ({}) by transposed weights",
         name(args.x.type()));
  }
  scale_kind const kind = args.x.layout().kind;
  check.require(kind == scale_kind::row || kind == scale_kind::group,
                fmt::format("x has scale {}: expected row or group", to_string(args.x.layout())));
}

void check_low_rank(checker const& check, grouped_gemm_args const& args, index_t capacity) {
  low_rank_term const& low = args.low_rank;
  if (!low.u.present() && !low.weights.present()) return;
  check.number("low_rank.u", low.u, {capacity, any_extent});
  check.weights("low_rank.weights", low.weights);
  if (!low.weights.is_plain()) {
    fail(errc::dtype_mismatch, "[grouped_gemm] low_rank.weights are {}: expected f32, bf16 or f16",
         name(low.weights.type()));
  }
  for (int part = 0; part < low.weights.parts(); ++part) {
    check.in_order("low_rank.weights", low.weights.part(part));
  }
  check.equal("experts of low_rank.weights", low.weights.experts(), "experts of weights",
              args.weights.experts());
  index_t const rank = low.u.extent[1];
  if (args.transpose) {
    check.equal("rows of low_rank.weights", low.weights.rows(), "cols of low_rank.u", rank);
    check.equal("cols of low_rank.weights", low.weights.cols(), "cols of weights",
                args.weights.cols());
  } else {
    check.equal("parts of low_rank.weights", low.weights.parts(), "parts of weights",
                args.weights.parts());
    check.equal("rows of low_rank.weights", low.weights.rows(), "rows of weights",
                args.weights.rows());
    check.equal("cols of low_rank.weights", low.weights.cols(), "cols of low_rank.u", rank);
  }
}

void check_apart(checker const& check, char const* written, tensor_view const& memory,
                 std::string_view label, weight_stack const& stack) {
  for (int part = 0; part < stack.parts(); ++part) {
    quantized_view const& matrix = stack.part(part);
    check.no_overlap(written, memory, label, matrix.values(), matrix.places().values);
    check.no_overlap(written, memory, label, matrix.scales(), matrix.places().scales);
    check.no_overlap(written, memory, label, matrix.global().values);
  }
}

/// What is written from all that is read.
void check_apart(checker const& check, char const* written, tensor_view const& memory,
                 grouped_gemm_args const& args) {
  check.no_overlap(written, memory, "x", args.x.values());
  check.no_overlap(written, memory, "x scales", args.x.scales());
  check.no_overlap(written, memory, "low_rank.u", args.low_rank.u);
  check.no_overlap(written, memory, "expert_begin", args.expert_begin);
  check_apart(check, written, memory, "weights", args.weights);
  check_apart(check, written, memory, "low_rank.weights", args.low_rank.weights);
  for (tensor_view const& bias : args.bias) check.no_overlap(written, memory, "bias", bias);
}

void check_scratch(checker const& check, grouped_gemm_args const& args, moe64::device where) {
  if (args.scratch.bytes == 0) return;
  check_workspace("grouped_gemm", "scratch", args.scratch, args.scratch.bytes, where);
  tensor_view const scratch = bytes_of(args.scratch);
  check.no_overlap("scratch", scratch, "y", args.y);
  check_apart(check, "scratch", scratch, args);
}

}  // namespace

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  checker const check("grouped_gemm", where.device);
  check.weights("weights", args.weights);
  check.quantized("x", args.x);
  check.in_order("x", args.x);
  check.equal("matrices in x", args.x.experts(), "one", 1);
  check_expert_begin(check, args.expert_begin, args.weights.experts());
  index_t const capacity = args.x.rows();
  if (args.transpose) {
    check.equal("cols of x", args.x.cols(), "rows of weights", args.weights.rows());
  } else {
    check.equal("cols of x", args.x.cols(), "cols of weights", args.weights.cols());
  }
  check.number("y", args.y, {capacity, args.transpose ? args.weights.cols() : args.weights.rows()});
  if (!args.x.is_plain()) check_quantized_x(check, args);
  for (int part = 0; part < 2; ++part) {
    tensor_view const& bias = args.bias[static_cast<std::size_t>(part)];
    if (!bias.present()) continue;
    check.require(!args.transpose && part < args.weights.parts(),
                  fmt::format("bias of part {} with transpose={} and {} parts", part,
                              args.transpose, args.weights.parts()));
    check.number("bias", bias, {args.weights.experts(), args.weights.part_rows()});
  }
  check_low_rank(check, args, capacity);
  check.no_self_overlap("y", args.y);
  check_apart(check, "y", args.y, args);
  check_scratch(check, args, where.device);
  dispatch(args, where);
}

void grouped_gemm_wgrad(grouped_gemm_wgrad_args const& args, stream where) {
  checker const check("grouped_gemm_wgrad", where.device);
  check.require(args.parts == 1 || args.parts == 2, fmt::format("parts is {}", args.parts));
  check.number("dy", args.dy, {any_extent, any_extent});
  check.require(
      args.dy.extent[1] % args.parts == 0,
      fmt::format("cols of dy ({}) do not split into {} parts", args.dy.extent[1], args.parts));
  check_expert_begin(check, args.expert_begin, any_extent);
  index_t const experts = args.expert_begin.extent[0] - 1;
  index_t const part_rows = args.dy.extent[1] / args.parts;
  if (args.x.present()) check.number("x", args.x, {args.dy.extent[0], any_extent});
  for (int part = 0; part < 2; ++part) {
    auto const i = static_cast<std::size_t>(part);
    tensor_view const& weights = args.d_weights[i];
    tensor_view const& bias = args.d_bias[i];
    check.require(part < args.parts || (!weights.present() && !bias.present()),
                  fmt::format("a gradient of part {} is asked for, parts is {}", part, args.parts));
    if (weights.present()) {
      check.require(args.x.present(), "d_weights is asked for, but x is absent");
      check.number("d_weights", weights, {experts, part_rows, args.x.extent[1]});
    }
    if (bias.present()) check.number("d_bias", bias, {experts, part_rows});
    for (tensor_view const* output : {&weights, &bias}) {
      if (!output->present()) continue;
      check.no_self_overlap("gradient", *output);
      check.no_overlap("gradient", *output, "dy", args.dy);
      check.no_overlap("gradient", *output, "x", args.x);
      check.no_overlap("gradient", *output, "expert_begin", args.expert_begin);
    }
  }
  check.no_overlap("d_weights[0]", args.d_weights[0], "d_weights[1]", args.d_weights[1]);
  check.no_overlap("d_bias[0]", args.d_bias[0], "d_bias[1]", args.d_bias[1]);
  for (tensor_view const& weights : args.d_weights) {
    for (tensor_view const& bias : args.d_bias) {
      check.no_overlap("d_weights", weights, "d_bias", bias);
    }
  }
  dispatch(args, where);
}

}  // namespace moe64
