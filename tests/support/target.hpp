#pragma once

#include "moe64/cpu.hpp"
#include "moe64/explain.hpp"
#include "moe64/layer.hpp"
#include "moe64/ops.hpp"
#include "support/mirror.hpp"

#include <gtest/gtest.h>

/// Where the operations under test run. The suites of operations are compiled twice: as they are,
/// for the CPU, and with MOE64_TEST_CUDA for a CUDA device. There target() is a place that takes
/// calls with host memory, moves them to the device and the results back.
namespace moe64::test {

/// A CUDA device seen through host memory.
struct cuda_target {
  stream where;
};

#ifdef MOE64_TEST_CUDA
inline constexpr bool on_cuda = true;
/// The first CUDA device; the suite's environment has made sure that there is one.
[[nodiscard]] cuda_target target();
#else
inline constexpr bool on_cuda = false;
[[nodiscard]] inline stream target() { return cpu_stream(); }
#endif

/// run(args on the device) and back.
template <class Args, class Run>
void run_mirrored(Args const& args, cuda_target where, Run const& run) {
  mirror memory(where.where);
  memory.add(args);
  memory.upload();
  run(memory.moved(args));
  EXPECT_EQ(memory.download(), "");
}

}  // namespace moe64::test

namespace moe64 {

#define MOE64_ON_CUDA(operation)                                                                \
  inline void operation(operation##_args const& args, test::cuda_target where) {                \
    test::run_mirrored(args, where, [&](auto const& moved) { operation(moved, where.where); }); \
  }
MOE64_ON_CUDA(quantize)
MOE64_ON_CUDA(dequantize)
MOE64_ON_CUDA(route)
MOE64_ON_CUDA(route_backward)
MOE64_ON_CUDA(plan)
MOE64_ON_CUDA(gather)
MOE64_ON_CUDA(combine)
MOE64_ON_CUDA(slot_weight_gradient)
MOE64_ON_CUDA(grouped_gemm)
MOE64_ON_CUDA(grouped_gemm_wgrad)
MOE64_ON_CUDA(activate)
MOE64_ON_CUDA(activate_backward)
#undef MOE64_ON_CUDA

inline void forward(layer_desc const& layer, forward_args const& args, test::cuda_target where) {
  test::mirror memory(where.where);
  memory.add(layer);
  memory.add(args);
  memory.upload();
  forward(memory.moved(layer), memory.moved(args), where.where);
  EXPECT_EQ(memory.download(), "");
}

inline void backward(layer_desc const& layer, backward_args const& args, test::cuda_target where) {
  test::mirror memory(where.where);
  memory.add(layer);
  memory.add(args);
  memory.upload();
  backward(memory.moved(layer), memory.moved(args), where.where);
  EXPECT_EQ(memory.download(), "");
}

template <class Args>
[[nodiscard]] std::vector<implementation_report> explain(Args args, test::cuda_target where) {
  for_each_operand(args, [&](operand const& o) { o.tensor.device = where.where.device; });
  return explain(static_cast<Args const&>(args), where.where);
}

[[nodiscard]] inline index_t plan_scratch_bytes(index_t tokens, index_t top_k, index_t experts,
                                                test::cuda_target where) {
  return plan_scratch_bytes(tokens, top_k, experts, where.where.device);
}

}  // namespace moe64
