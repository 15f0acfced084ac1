// The one way to launch: the device of the stream is current while kernels are queued, whatever
// else happens it is put back, and operands in the wrong place are refused before anything runs.
#include "cuda/runtime/launch.hpp"
#include "cuda_host/machine.hpp"

#include <functional>
#include <string>

namespace moe64::test {
namespace {

struct some_parameters {
  int value;
};
void some_kernel(some_parameters) {}
cuda::kernel<some_parameters> const any_kernel{"some_kernel", some_kernel};

class launcher : public on_mock {};

TEST_F(launcher, makes_the_device_of_the_stream_current_and_puts_the_other_back) {
  for (int const before : {0, 3, 5}) {
    make_current(before);
    cuda_queue const queue(device::cuda(5));
    small_gather const call(device::cuda(5));
    {
      cuda::launcher on("gather", call.args, queue.get());
      EXPECT_EQ(machine.current_device(), 5);
      on.launch(any_kernel, {7, 256, 1024}, {42});
    }
    EXPECT_EQ(machine.current_device(), before);
    auto const launches = machine.launches();
    ASSERT_EQ(launches.size(), 1U);
    EXPECT_EQ(launches[0].device, 5);
    EXPECT_EQ(launches[0].range, "gather");
    EXPECT_EQ(launches[0].config.function, reinterpret_cast<void const*>(some_kernel));
    EXPECT_EQ(launches[0].config.ctas, 7U);
    EXPECT_EQ(launches[0].config.threads, 256U);
    EXPECT_EQ(launches[0].config.shared_bytes, 1024U);
    EXPECT_EQ(launches[0].config.stream, queue.get().handle);
    machine.reset();
    machine.make_current(before);
  }
}

TEST_F(launcher, changes_nothing_when_the_device_is_current_already) {
  make_current(4);
  small_gather const call(device::cuda(4));
  machine.reset();
  machine.make_current(4);
  { cuda::launcher const on("gather", call.args, {device::cuda(4), nullptr}); }
  EXPECT_EQ(machine.calls(runtime_call::set_device), 0);
}

TEST_F(launcher, refuses_an_operand_of_another_device_by_its_name_and_both_places) {
  cuda_queue const queue(device::cuda(2));
  small_gather const here(device::cuda(2)), there(device::cuda(6));
  make_current(1);
  auto const refused = [&](auto const& change, std::string const& name) {
    gather_args args = here.args;
    change(args);
    EXPECT_MOE64_ERROR(cuda::launcher("gather", args, queue.get()), errc::device_mismatch,
                       "[gather]", name, "memory of cuda:6", "the stream is on cuda:2");
  };
  refused([&](gather_args& a) { a.x.data = there.args.x.data; }, "x at");
  refused([&](gather_args& a) { a.rows.data = there.args.rows.data; }, "rows at");
  refused([&](gather_args& a) { a.plan.row_to_slot.data = there.args.plan.row_to_slot.data; },
          "plan.row_to_slot at");
  EXPECT_TRUE(machine.launches().empty());
}

TEST_F(launcher, refuses_host_memory) {
  small_gather const call(device::cuda(2));
  float on_stack[64] = {};
  gather_args args = call.args;
  args.x.data = on_stack;
  EXPECT_MOE64_ERROR(cuda::launcher("gather", args, {device::cuda(2), nullptr}),
                     errc::device_mismatch, "[gather] x at", "is host memory",
                     "the stream is on cuda:2");
}

TEST_F(launcher, looks_at_the_memory_and_not_at_what_the_operand_says) {
  small_gather const call(device::cuda(2));
  gather_args args = call.args;
  args.x.device = device::cuda(7);  // for the door to refuse
  cuda::launcher const on("gather", args, {device::cuda(2), nullptr});
}

TEST_F(launcher, empty_operands_need_no_memory) {
  small_gather const call(device::cuda(2));
  gather_args args = call.args;
  args.x.data = nullptr;
  args.x.extent[0] = 0;
  cuda::launcher const on("gather", args, {device::cuda(2), nullptr});
}

TEST_F(launcher, refuses_a_stream_of_another_device) {
  cuda_queue const queue(device::cuda(3));
  small_gather const call(device::cuda(2));
  stream const foreign{device::cuda(2), queue.get().handle};
  EXPECT_MOE64_ERROR(cuda::launcher("gather", call.args, foreign), errc::device_mismatch,
                     "[gather] the stream", "belongs to cuda:3, not to cuda:2");
  EXPECT_EQ(machine.current_device(), 0);
}

TEST_F(launcher, the_default_streams_are_those_of_the_device) {
  for (std::uintptr_t const handle : {0U, 1U, 2U}) {  // legacy, legacy by name, per thread
    small_gather const call(device::cuda(2));
    stream const where{device::cuda(2), reinterpret_cast<void*>(handle)};
    EXPECT_NO_THROW(cuda::launcher("gather", call.args, where));
  }
}

TEST_F(launcher, a_device_that_does_not_exist) {
  small_gather const call(device::cuda(2));
  EXPECT_MOE64_ERROR(cuda::launcher("gather", call.args, {device::cuda(8), nullptr}),
                     errc::device_failure, "[gather] cuda:8", "cudaErrorInvalidDevice");
}

TEST_F(launcher, a_device_that_the_build_has_no_code_for) {
  constexpr cuda::status no_kernel_image = 209;
  cuda_queue const queue(device::cuda(1));
  small_gather const call(device::cuda(1));
  machine.fail(runtime_call::launch, no_kernel_image, 0);
  auto const use = [&] {
    cuda::launcher("gather", call.args, queue.get()).launch(any_kernel, {1, 32}, {1});
  };
  EXPECT_MOE64_ERROR(use(), errc::device_failure, "[gather] cuda:1",
                     "machine code for 70-real 75-real", "MOE64_CUDA_ARCHITECTURES");
}

TEST_F(launcher, puts_the_device_back_whatever_fails) {
  cuda_queue const queue(device::cuda(6));
  small_gather const call(device::cuda(6));
  make_current(2);
  auto const use = [&] {
    cuda::launcher on("gather", call.args, queue.get());
    on.fill(call.memory.memory().data, 0, 16);
    on.launch(any_kernel, {on.ctas_for(1000, 2), 32}, {1});
  };
  int failing = 0;
  for (runtime_call const what : every_call()) {
    machine.reset();
    machine.make_current(2);
    use();
    for (int successes = machine.calls(what); successes-- > 0;) {
      SCOPED_TRACE(name(what) + " after " + std::to_string(successes));
      machine.reset();
      machine.make_current(2);
      machine.fail(what, launch_failure, successes);
      bool const restoring = what == runtime_call::set_device && successes == 1;
      if (restoring) {
        EXPECT_NO_THROW(use());  // there is nobody to tell, and the next call will
        EXPECT_EQ(machine.current_device(), 6);
      } else {
        EXPECT_MOE64_ERROR(use(), errc::device_failure, "[gather] cuda:6",
                           "cudaErrorLaunchFailure");
        EXPECT_EQ(machine.current_device(), 2);
        EXPECT_EQ(machine.last_error(), 0);  // nobody else will report it as theirs
      }
      EXPECT_EQ(machine.open_ranges(), 0);
      ++failing;
    }
  }
  EXPECT_GE(failing, 12);
  machine.make_current(2);
}

TEST_F(launcher, puts_the_device_back_when_somebody_else_throws) {
  small_gather const call(device::cuda(6));
  EXPECT_THROW(
      {
        cuda::launcher const on("gather", call.args, {device::cuda(6), nullptr});
        throw 1;
      },
      int);
}

TEST_F(launcher, launchers_within_launchers) {
  small_gather const outer(device::cuda(6)), inner(device::cuda(1));
  cuda::launcher const a("outer", outer.args, {device::cuda(6), nullptr});
  {
    cuda::launcher b("inner", inner.args, {device::cuda(1), nullptr});
    b.launch(any_kernel, {1, 32}, {1});
    EXPECT_EQ(machine.launches()[0].device, 1);
    EXPECT_EQ(machine.launches()[0].range, "outer/inner");
  }
  EXPECT_EQ(machine.current_device(), 6);
}

TEST_F(launcher, an_error_that_somebody_left_behind_is_not_ours) {
  small_gather const call(device::cuda(0));
  machine.leave_error(invalid_value);
  cuda::launcher on("gather", call.args, {device::cuda(0), nullptr});
  EXPECT_NO_THROW(on.launch(any_kernel, {1, 32}, {1}));
  EXPECT_EQ(machine.last_error(), invalid_value);  // it stays for whom it belongs to
  machine.leave_error(0);
}

TEST_F(launcher, a_failed_launch_is_reported_once) {
  small_gather const call(device::cuda(0));
  cuda::launcher on("gather", call.args, {device::cuda(0), nullptr});
  EXPECT_MOE64_ERROR(on.launch(any_kernel, {1, 2048}, {1}), errc::device_failure,
                     "cudaErrorInvalidConfiguration");
  EXPECT_NO_THROW(on.launch(any_kernel, {1, 32}, {1}));
}

TEST_F(launcher, a_fault_of_a_kernel_is_named_by_every_call_that_meets_it) {
  small_gather const call(device::cuda(0));
  machine.fail_for_good(illegal_address);
  for (int i = 0; i < 2; ++i) {
    EXPECT_MOE64_ERROR(cuda::launcher("gather", call.args, {device::cuda(0), nullptr}),
                       errc::device_failure, "[gather] cuda:0", "cudaErrorIllegalAddress");
  }
  machine.reset();
}

// ---- programmatic dependent launch -------------------------------------------------------------

TEST_F(launcher, pdl_where_the_kernel_says_so_and_the_device_can) {
  cuda::kernel<some_parameters> const pdl_kernel{"some_kernel", some_kernel, true};
  small_gather const call(device::cuda(3));
  struct wanted {
    int major;
    bool pdl;
  };
  for (auto const& [major, pdl] : {wanted{8, false}, wanted{9, true}, wanted{10, true}}) {
    machine.reset();
    machine.make_capability(major);
    cuda::launcher on("gather", call.args, {device::cuda(3), nullptr});
    on.launch(any_kernel, {1, 32}, {1});
    on.launch(pdl_kernel, {1, 32}, {1});
    auto const launches = machine.launches();
    ASSERT_EQ(launches.size(), 2U);
    EXPECT_FALSE(launches[0].config.pdl);
    EXPECT_EQ(launches[1].config.pdl, pdl) << major;
  }
}

// ---- grids --------------------------------------------------------------------------------------

TEST_F(launcher, no_ctas_is_nothing_to_do) {
  small_gather const call(device::cuda(0));
  cuda::launcher on("gather", call.args, {device::cuda(0), nullptr});
  on.launch(any_kernel, {0, 256}, {1});
  on.fill(nullptr, 0, 0);
  EXPECT_TRUE(machine.launches().empty());
  EXPECT_EQ(machine.calls(runtime_call::fill), 0);
}

TEST_F(launcher, grids_stay_within_the_limits_whatever_the_number_of_tasks) {
  small_gather const call(device::cuda(0));
  cuda::launcher on("gather", call.args, {device::cuda(0), nullptr});
  index_t const all = index_t{mock_cuda::multiprocessors} * 8;
  EXPECT_EQ(on.ctas_for(0, 8), 0);
  EXPECT_EQ(on.ctas_for(1, 8), 1);
  EXPECT_EQ(on.ctas_for(all, 8), all);
  for (index_t const tasks : {all + 1, index_t{65536}, index_t{1} << 31, index_t{1} << 62}) {
    EXPECT_EQ(on.ctas_for(tasks, 8), all);
    EXPECT_NO_THROW(on.launch(any_kernel, {on.ctas_for(tasks, 8), 256}, {1}));
  }
  EXPECT_NO_THROW(on.launch(any_kernel, {0x7fffffff, 32}, {1}));
  EXPECT_MOE64_ERROR(on.launch(any_kernel, {index_t{1} << 31, 32}, {1}), errc::device_failure,
                     "cudaErrorInvalidConfiguration");
  EXPECT_ANY_THROW(on.launch(any_kernel, {index_t{1} << 32, 32}, {1}));  // never wraps around
}

}  // namespace
}  // namespace moe64::test
