#include "backend.hpp"

#include "core/fail.hpp"

namespace moe64 {

backend const& backend_of(moe64::device where) {
  if (where.kind == device_kind::cpu) return cpu_backend();
  fail(errc::unsupported, "[device] {}: this build of moe64 has no CUDA backend", to_string(where));
}

}  // namespace moe64
