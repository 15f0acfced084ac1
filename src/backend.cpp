#include "backend.hpp"

#include "core/fail.hpp"
#include "moe64/cuda.hpp"

namespace moe64 {

backend const& backend_of(moe64::device where) {
  if (where.kind == device_kind::cpu) return cpu_backend();
  support const answer = cuda_support();
  if (!answer) {
    fail(errc::unsupported, "[device] {} cannot be used: {}", to_string(where), answer.reason());
  }
  if (where.ordinal < 0 || where.ordinal >= cuda_device_count()) {
    fail(errc::unsupported, "[device] there is no {}: this machine has {} CUDA devices",
         to_string(where), cuda_device_count());
  }
  return cuda_backend();
}

}  // namespace moe64
