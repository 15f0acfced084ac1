#include "ops/capability.hpp"

#include "backend.hpp"

namespace moe64 {

support multiplies_float8(moe64::device where) { return backend_of(where).multiplies_float8(); }

}  // namespace moe64
