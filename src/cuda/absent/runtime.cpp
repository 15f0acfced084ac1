#include "cuda/runtime/runtime.hpp"

/// The CUDA runtime of a build without it: there are no devices, and everything
/// that would need one fails. Nothing but device_count and the two texts is ever reached.
namespace moe64::cuda {
namespace {

constexpr status not_built = -1;

template <class... Operands>
status fail_always(Operands...) {
  return not_built;
}

}  // namespace

runtime const& the_runtime() {
  static constexpr runtime table = {
      .architectures = "",
      .device_count = fail_always<int*>,
      .get_device = fail_always<int*>,
      .set_device = fail_always<int>,
      .properties = fail_always<int, device_properties*>,
      .multiprocessors = fail_always<int, int*>,
      .shared_bytes = fail_always<int, int*>,
      .capability = fail_always<int, int*, int*>,
      .memory_free = fail_always<index_t*>,
      .owner = fail_always<void const*, memory_owner*>,
      .stream_device = fail_always<void*, int*>,
      .encode = [](tensor_box const&, tensor_map*) { return not_built; },
      .launch = [](launch_config const&) { return not_built; },
      .fill = fail_always<void*, int, index_t, void*>,
      .copy = fail_always<void*, void const*, index_t, void*>,
      .allocate = fail_always<void**, index_t>,
      .release = fail_always<void*>,
      .create_stream = fail_always<void**>,
      .destroy_stream = fail_always<void*>,
      .wait = fail_always<void*>,
      .create_event = fail_always<void**>,
      .destroy_event = fail_always<void*>,
      .record = fail_always<void*, void*>,
      .elapsed = fail_always<void*, void*, float*>,
      .begin_capture = fail_always<void*>,
      .end_capture = fail_always<void*, void**>,
      .replay = fail_always<void*, void*>,
      .destroy_graph = fail_always<void*>,
      .take_error = fail_always<>,
      .error_name = [](status) { return "no CUDA"; },
      .error_text = [](status) { return "this build of moe64 has no CUDA backend"; },
      .push_range = [](char const*) {},
      .pop_range = [] {},
  };
  return table;
}

}  // namespace moe64::cuda
