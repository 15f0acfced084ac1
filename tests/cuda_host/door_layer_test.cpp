// Every operation and whole layers with their real launchers on the mock: what they queue, where,
// and what is left when a launch fails. Kernels do not run, so nothing is compared.
#include "backend.hpp"
#include "cases/problem_case.hpp"
#include "cuda_host/machine.hpp"

#include <set>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

std::string const shape = " tokens=70 hidden=136 inter=72 experts=6 top_k=3 device=cuda:5";

std::vector<std::string> lines() {
  std::vector<std::string> all;
  for (std::string const op : {"op=layer weight=e4m3 backward=1 bias=1 lora=4",
                               "op=layer weight=bf16 backward=1",
                               "op=layer weight=f32 io=f32 backward=1",
                               "op=layer weight=e4m3 mode=w8a8",
                               "op=layer weight=mxfp4 routing=sentinel:1",
                               "op=quantize",
                               "op=quantize weight=nvfp4",
                               "op=dequantize",
                               "op=dequantize weight=int4",
                               "op=route",
                               "op=route backward=1",
                               "op=plan",
                               "op=gather",
                               "op=gather mode=w8a8",
                               "op=combine",
                               "op=combine backward=1",
                               "op=grouped_gemm",
                               "op=grouped_gemm mode=w8a8",
                               "op=grouped_gemm backward=1",
                               "op=grouped_gemm_wgrad weight=bf16 bias=1",
                               "op=activate",
                               "op=activate backward=1"}) {
    all.push_back(op + shape);
  }
  return all;
}

class door_layer : public on_mock {};

TEST_F(door_layer, everything_is_queued_on_the_stream_and_nothing_else_happens) {
  make_current(2);
  for (std::string const& line : lines()) {
    SCOPED_TRACE(line);
    cases::problem_case const c(parse_problem(line));
    cases::queue const queue(device::cuda(5), nullptr);
    machine.reset();
    machine.make_current(2);
    c.execute(queue.get());
    EXPECT_FALSE(machine.launches().empty());
    for (mock_cuda::launched const& launch : machine.launches()) {
      EXPECT_EQ(launch.device, 5);
      EXPECT_EQ(launch.config.stream, queue.get().handle);
      EXPECT_FALSE(launch.range.empty());
      EXPECT_GE(launch.config.ctas, 1U);
    }
    for (runtime_call const what :
         {runtime_call::allocate, runtime_call::release, runtime_call::wait, runtime_call::copy,
          runtime_call::create_stream, runtime_call::create_event, runtime_call::properties,
          runtime_call::memory_free}) {
      EXPECT_EQ(machine.calls(what), 0) << name(what);
    }
    EXPECT_EQ(machine.current_device(), 2);
    EXPECT_EQ(machine.open_ranges(), 0);
  }
}

TEST_F(door_layer, a_failure_anywhere_is_reported_and_puts_the_device_back) {
  for (std::string const& line : lines()) {
    SCOPED_TRACE(line);
    cases::problem_case const c(parse_problem(line));
    cases::queue const queue(device::cuda(5), nullptr);
    for (runtime_call const what :
         {runtime_call::launch, runtime_call::fill, runtime_call::owner, runtime_call::get_device,
          runtime_call::multiprocessors, runtime_call::stream_device}) {
      machine.reset();
      c.execute(queue.get());
      int const calls = machine.calls(what);
      for (int successes = 0; successes < calls; successes += 1 + calls / 20) {
        machine.reset();
        machine.make_current(2);
        machine.fail(what, launch_failure, successes);
        EXPECT_MOE64_ERROR(c.execute(queue.get()), errc::device_failure, "cuda:5",
                           "cudaErrorLaunchFailure")
            << name(what) << " after " << successes;
        EXPECT_EQ(machine.current_device(), 2);
        EXPECT_EQ(machine.open_ranges(), 0);
        EXPECT_EQ(machine.last_error(), 0);
      }
    }
    machine.reset();
  }
}

/// The kernels of a layer by their ranges, in order; whether they use PDL is up to the device.
std::vector<std::string> kernels_of(mock_cuda& machine, std::string const& sizes, int major) {
  cases::problem_case const c(parse_problem(
      "op=layer mode=w8a8 hidden=256 inter=128 experts=6 top_k=3 device=cuda:5 " + sizes));
  cases::queue const queue(device::cuda(5), nullptr);
  machine.reset();
  machine.make_capability(major);
  c.execute(queue.get());
  std::vector<std::string> ranges;
  for (mock_cuda::launched const& launch : machine.launches()) {
    ranges.push_back(launch.range);
    // Builds without the headers of CUTLASS have another grouped_gemm.
    if (launch.range == "grouped_gemm") continue;
    EXPECT_EQ(launch.config.pdl, major >= 9) << launch.range;
  }
  machine.reset();
  return ranges;
}

std::vector<std::string> const one_by_one = {"plan",     "gather",       "grouped_gemm",
                                             "activate", "grouped_gemm", "combine"};

TEST_F(door_layer, kernels_of_few_tokens_use_pdl) {
  for (int const major : {8, 9}) EXPECT_EQ(kernels_of(machine, "tokens=20", major), one_by_one);
}

TEST_F(door_layer, very_few_tokens_are_two_launches_on_hopper) {
  EXPECT_EQ(kernels_of(machine, "tokens=4", 8), one_by_one);
  EXPECT_EQ(kernels_of(machine, "tokens=4 impl=reference", 9), one_by_one);
  std::vector<std::string> const fused = {"layer", "layer"};
  bool const has_kernels = !backend_of(device::cuda(5)).layer.empty();
  EXPECT_EQ(kernels_of(machine, "tokens=4", 9), has_kernels ? fused : one_by_one);
}

/// The calls that a layer makes, by their ranges.
TEST_F(door_layer, ranges_are_named_after_operations) {
  cases::problem_case const c(parse_problem(lines()[0]));
  cases::queue const queue(device::cuda(5), nullptr);
  c.execute(queue.get());
  std::set<std::string> ranges;
  for (mock_cuda::launched const& launch : machine.launches()) ranges.insert(launch.range);
  EXPECT_EQ(ranges, (std::set<std::string>{"plan", "gather", "grouped_gemm", "activate", "combine",
                                           "slot_weight_gradient", "activate_backward",
                                           "grouped_gemm_wgrad"}));
}

}  // namespace
}  // namespace moe64::test
