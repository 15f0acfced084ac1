#include "cuda/operations.hpp"

namespace moe64::cuda {

implementation_list<route_args> route_list() { return {}; }
implementation_list<route_backward_args> route_backward_list() { return {}; }

}  // namespace moe64::cuda
