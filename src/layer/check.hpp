#pragma once

#include "moe64/layer.hpp"
#include "ops/check.hpp"

#include <initializer_list>
#include <string_view>
#include <utility>

/// What forward, backward and the size queries refuse, before they touch memory.
namespace moe64 {

/// The projections fit each other, the activation, and the expert range.
void check_layer(checker const& check, layer_desc const& layer);

void check_shape(checker const& check, layer_shape const& shape);

/// Every gradient that is asked for exists: no frozen weights, no LoRA or bias that is not there.
void check_gradients_exist(checker const& check, layer_desc const& layer,
                           layer_gradients const& gradients);

/// They have their shapes (the one of x is that of `x`), and no two of them, nor x and dy, overlap.
void check_gradient_outputs(checker const& check, layer_desc const& layer, layer_shape const& shape,
                            layer_gradients const& gradients, tensor_view const& x,
                            tensor_view const& dy);

/// Memory that a call uses for itself does not overlap its operands.
void check_apart(checker const& check, std::string_view memory_name, workspace const& memory,
                 std::initializer_list<std::pair<std::string_view, tensor_view>> operands);

/// A tensor [..., last] of the same extents as x.
void check_like_x(checker const& check, std::string_view argument, tensor_view const& tensor,
                  tensor_view const& x);

}  // namespace moe64
