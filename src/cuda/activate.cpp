#include "cuda/operations.hpp"

namespace moe64::cuda {

implementation_list<activate_args> activate_list() { return {}; }
implementation_list<activate_backward_args> activate_backward_list() { return {}; }

}  // namespace moe64::cuda
