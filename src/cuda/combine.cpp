#include "cuda/operations.hpp"

namespace moe64::cuda {

implementation_list<combine_args> combine_list() { return {}; }
implementation_list<slot_weight_gradient_args> slot_weight_gradient_list() { return {}; }

}  // namespace moe64::cuda
