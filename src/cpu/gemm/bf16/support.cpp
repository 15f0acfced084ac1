#include "core/fail.hpp"
#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"

namespace moe64::cpu::bf16 {
namespace {

/// Why an operand is not a matrix of bf16 with adjacent columns, or nothing.
support adjacent_bf16(char const* label, tensor_view const& tensor) {
  if (tensor.type != dtype::bf16) {
    return support::no(std::string(label) + " is " + std::string(name(tensor.type)) + ", not bf16");
  }
  if (tensor.stride[tensor.rank - 1] != 1) {
    return support::no(std::string("columns of ") + label + " are " +
                       std::to_string(tensor.stride[tensor.rank - 1]) + " apart, not adjacent");
  }
  return support::yes();
}

}  // namespace

support takes(grouped_gemm_args const& args) {
  if (!args.x.is_plain()) return support::no("x is quantised");
  if (support const x = adjacent_bf16("x", args.x.values()); !x) return x;
  if (args.weights.is_plain() && args.weights.type() != dtype::bf16) {
    return support::no("weights are " + std::string(name(args.weights.type())) +
                       ", which bf16 does not hold");
  }
  if (!args.low_rank.u.present()) return support::yes();
  if (support const u = adjacent_bf16("low_rank.u", args.low_rank.u); !u) return u;
  if (args.low_rank.weights.type() != dtype::bf16) {
    return support::no("low_rank.weights are " + std::string(name(args.low_rank.weights.type())) +
                       ", not bf16");
  }
  return support::yes();
}

support takes_gradient(grouped_gemm_wgrad_args const& args) {
  if (!args.x.present()) return support::no("only the bias is asked for");
  if (support const x = adjacent_bf16("x", args.x); !x) return x;
  return adjacent_bf16("dy", args.dy);
}

}  // namespace moe64::cpu::bf16
