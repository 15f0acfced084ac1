#pragma once

#include "moe64/c/layer.h"
#include "moe64/layer.hpp"

#include <string>

/// Never moved: desc.implementation looks at the string beside it.
struct moe64_layer {
  moe64::layer_desc desc;
  std::string implementation;
};
