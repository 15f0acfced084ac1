#include "backend.hpp"
#include "core/fail.hpp"

namespace moe64 {

backend const& cuda_backend() {
  fail(errc::internal, "[device] a build without CUDA has found a CUDA device");
}

}  // namespace moe64
