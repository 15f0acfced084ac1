#pragma once

// Everything moe64 says in C++. For C and other languages see moe64.h.
#include "moe64/checkpoint.hpp"
#include "moe64/convert.hpp"
#include "moe64/cpu.hpp"
#include "moe64/device.hpp"
#include "moe64/diff.hpp"
#include "moe64/dtype.hpp"
#include "moe64/error.hpp"
#include "moe64/explain.hpp"
#include "moe64/index.hpp"
#include "moe64/layer.hpp"
#include "moe64/ops.hpp"
#include "moe64/problem.hpp"
#include "moe64/quant.hpp"
#include "moe64/routing.hpp"
#include "moe64/tensor.hpp"
#include "moe64/version.hpp"
