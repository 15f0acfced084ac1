#include "cuda/runtime/launch.hpp"

#include "core/verbose.hpp"

#include <algorithm>

namespace moe64::cuda {

launcher::launcher(char const* operation, stream where)
    : operation_(operation), where_(where), guard_(operation, where.device) {
  check_stream(operation, where);
  the_runtime().push_range(operation);
}

launcher::~launcher() { the_runtime().pop_range(); }

bool launcher::can_use_pdl() const {
  int major = 0, minor = 0;
  check(the_runtime().capability(where_.device.ordinal, &major, &minor), operation_, where_.device);
  return major >= 9;
}

void launcher::launch(any_kernel const& what, grid const& shape, void const* parameters) {
  if (shape.ctas == 0) return;
  launch_config const config = {.function = what.function,
                                .ctas = narrow<unsigned>(shape.ctas),
                                .threads = narrow<unsigned>(shape.threads),
                                .shared_bytes = narrow<unsigned>(shape.shared_bytes),
                                .stream = where_.handle,
                                .parameters = parameters,
                                .pdl = what.pdl && can_use_pdl()};
  check(the_runtime().launch(config), operation_, where_.device);
  if (verbose_level() >= 2) {
    print_launched(operation_, where_.device, what.name, shape.ctas, shape.threads,
                   shape.shared_bytes);
  }
}

void launcher::fill(void* data, int byte, index_t bytes) {
  if (bytes == 0) return;
  check(the_runtime().fill(data, byte, bytes, where_.handle), operation_, where_.device);
}

index_t launcher::multiprocessors() const {
  int count = 0;
  check(the_runtime().multiprocessors(where_.device.ordinal, &count), operation_, where_.device);
  return count;
}

index_t launcher::shared_bytes() const {
  int bytes = 0;
  check(the_runtime().shared_bytes(where_.device.ordinal, &bytes), operation_, where_.device);
  return bytes;
}

index_t launcher::ctas_for(index_t tasks, index_t ctas_per_sm) const {
  return std::min(tasks, multiprocessors() * ctas_per_sm);
}

}  // namespace moe64::cuda
