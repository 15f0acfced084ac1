#pragma once

#include "moe64/cpu.hpp"
#include "moe64/explain.hpp"
#include "moe64/layer.hpp"
#include "moe64/ops.hpp"
#include "support/mirror.hpp"

#include <gtest/gtest.h>

#include <string_view>
#include <type_traits>
#include <vector>

/// Where the operations under test run. The suites of operations are compiled twice: as they are,
/// for the CPU, and with MOE64_TEST_CUDA for a CUDA device. There target() is a place that takes
/// calls with host memory, moves them to the device and the results back, and on the way sees to
/// what every call on a device owes:
///
///  - with host pointers it is refused, by name;
///  - it writes nothing but its outputs;
///  - operations that are specified to the last bit give the bits of the CPU.
namespace moe64::test {

/// A device as queries know it, where desc and operands say that they are on the host.
struct mirrored_device {
  moe64::device where;
};

/// A CUDA device seen through host memory.
struct mirrored_stream {
  stream where;
  mirrored_device device;
};

#ifdef MOE64_TEST_CUDA
inline constexpr bool on_cuda = true;
using target_stream = mirrored_stream;
/// The first CUDA device; the environment of the suite has made sure that there is one.
[[nodiscard]] target_stream target();
#else
inline constexpr bool on_cuda = false;
using target_stream = stream;
[[nodiscard]] inline target_stream target() { return cpu_stream(); }
#endif

/// Whether an operation gives the same bits on every backend, whatever the numbers.
template <class Args>
inline constexpr bool has_one_result =
    !std::is_same_v<Args, grouped_gemm_args> && !std::is_same_v<Args, grouped_gemm_wgrad_args>;

/// What says that it is on the host says that it is on `where`; what does not, says the opposite:
/// an operand in the wrong place stays in the wrong place. Pointers remain.
template <class Args>
[[nodiscard]] Args relabelled(Args args, moe64::device where) {
  for_each_operand(args, [&](operand const& o) {
    bool const on_host = o.tensor.device == device::cpu();
    o.tensor.device = on_host ? where : device::cpu();
  });
  return args;
}

template <class Args>
[[nodiscard]] bool has_memory(Args args) {
  bool any = false;
  for_each_operand(args, [&](operand const& o) { any = any || o.tensor.span() > 0; });
  return any;
}

/// Make a call on a device with pointers to the host. It must be refused because of them; when it
/// is refused for another reason, that is the answer to the call as it was made.
template <class Call>
void expect_host_memory_is_refused(bool any_memory, Call const& call) {
  bool refused = false;
  try {
    call();
  } catch (error const& e) {
    bool const because_of_memory =
        e.code() == errc::device_mismatch &&
        std::string_view(e.what()).find("is host memory") != std::string_view::npos;
    if (!because_of_memory) throw;
    refused = true;
  }
  EXPECT_EQ(refused, any_memory) << "a call with host pointers went through";
}

/// The same call on the CPU, in a copy of the memory that the call will be made in.
template <class Args>
class cpu_twin {
 public:
  explicit cpu_twin(Args const& args) : memory_(cpu_stream()), scratch_(scratch_bytes(args)) {
    memory_.add(args);
    memory_.upload();
    twin_ = memory_.moved(args);
    twin_.implementation = {};
    if constexpr (std::is_same_v<Args, plan_args>) twin_.scratch = scratch_.memory();
  }

  /// `args` after the call was made on the device, and what run() makes of the same memory. Routing
  /// that the CPU refuses is counted elsewhere: there is nothing to compare with.
  template <class Run>
  void expect_same_bits(Args const& args, Run const& run) {
    try {
      run(twin_);
    } catch (error const& e) {
      if (e.code() == errc::invalid_expert || e.code() == errc::invalid_argument) return;
      throw;
    }
    EXPECT_EQ(output_difference(args, twin_), "");
  }

 private:
  static index_t scratch_bytes(Args const& args) {
    if constexpr (std::is_same_v<Args, plan_args>) {
      return plan_scratch_bytes(args.plan.tokens, args.plan.top_k, args.plan.experts,
                                device::cpu());
    } else {
      return 0;
    }
  }

  mirror memory_;
  cpu_buffer scratch_;
  Args twin_;
};

/// run(args on the device, stream) and back; run(args, stream) is also what the CPU does.
template <class Args, class Run>
void run_mirrored(Args const& args, mirrored_stream target, Run const& run) {
  stream const where = target.where;
  Args const claimed = relabelled(args, where.device);
  expect_host_memory_is_refused(has_memory(claimed), [&] { run(claimed, where); });
  mirror memory(where);
  memory.add(args);
  memory.upload();
  if constexpr (has_one_result<Args>) {
    cpu_twin<Args> twin(args);
    run(memory.moved(args), where);
    EXPECT_EQ(memory.download(), "");
    twin.expect_same_bits(args, [&](Args const& call) { run(call, cpu_stream()); });
  } else {
    run(memory.moved(args), where);
    EXPECT_EQ(memory.download(), "");
  }
}

template <class Args, class Run>
void run_layer_mirrored(layer_desc const& layer, Args const& args, mirrored_stream target,
                        Run const& run) {
  stream const where = target.where;
  layer_desc const there = relabelled(layer, where.device);
  Args const claimed = relabelled(args, where.device);
  expect_host_memory_is_refused(has_memory(claimed), [&] { run(there, claimed, where); });
  mirror memory(where);
  memory.add(layer);
  memory.add(args);
  memory.upload();
  run(memory.moved(layer), memory.moved(args), where);
  EXPECT_EQ(memory.download(), "");
}

}  // namespace moe64::test

namespace moe64 {

#define MOE64_MIRRORED(operation)                                                         \
  inline void operation(operation##_args const& args, test::mirrored_stream target) {     \
    test::run_mirrored(args, target,                                                      \
                       [](auto const& moved, stream where) { operation(moved, where); }); \
  }
MOE64_MIRRORED(quantize)
MOE64_MIRRORED(dequantize)
MOE64_MIRRORED(route)
MOE64_MIRRORED(route_backward)
MOE64_MIRRORED(plan)
MOE64_MIRRORED(gather)
MOE64_MIRRORED(combine)
MOE64_MIRRORED(slot_weight_gradient)
MOE64_MIRRORED(grouped_gemm)
MOE64_MIRRORED(grouped_gemm_wgrad)
MOE64_MIRRORED(activate)
MOE64_MIRRORED(activate_backward)
#undef MOE64_MIRRORED

inline void forward(layer_desc const& layer, forward_args const& args,
                    test::mirrored_stream target) {
  test::run_layer_mirrored(layer, args, target, [](auto const& l, auto const& a, stream where) {
    forward(l, a, where);
  });
}

inline void backward(layer_desc const& layer, backward_args const& args,
                     test::mirrored_stream target) {
  test::run_layer_mirrored(layer, args, target, [](auto const& l, auto const& a, stream where) {
    backward(l, a, where);
  });
}

template <class Args>
[[nodiscard]] std::vector<implementation_report> explain(Args const& args,
                                                         test::mirrored_stream target) {
  Args const there = test::relabelled(args, target.where.device);
  return explain(there, target.where);
}

[[nodiscard]] inline index_t plan_scratch_bytes(index_t tokens, index_t top_k, index_t experts,
                                                test::mirrored_device target) {
  return plan_scratch_bytes(tokens, top_k, experts, target.where);
}
[[nodiscard]] inline mode_choice resolve_mode(layer_desc const& layer, dtype io,
                                              test::mirrored_device target) {
  return resolve_mode(test::relabelled(layer, target.where), io, target.where);
}
[[nodiscard]] inline index_t saved_bytes(layer_desc const& layer, layer_shape const& shape,
                                         test::mirrored_device target) {
  return saved_bytes(test::relabelled(layer, target.where), shape, target.where);
}
[[nodiscard]] inline index_t forward_bytes(layer_desc const& layer, layer_shape const& shape,
                                           bool keeps_saved, test::mirrored_device target) {
  return forward_bytes(test::relabelled(layer, target.where), shape, keeps_saved, target.where);
}
[[nodiscard]] inline index_t backward_bytes(layer_desc const& layer, layer_shape const& shape,
                                            layer_gradients const& gradients,
                                            test::mirrored_device target) {
  backward_args args;
  args.gradients = gradients;
  return backward_bytes(test::relabelled(layer, target.where), shape,
                        test::relabelled(args, target.where).gradients, target.where);
}

}  // namespace moe64
