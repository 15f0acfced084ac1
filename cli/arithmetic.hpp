#pragma once

#include "machine.hpp"

namespace moe64::cli {

/// Fills the arithmetic limits: multiply-adds on registers, on all threads of the executor. A kind
/// of instruction that the processor does not have stays 0.
void measure_arithmetic(cpu_executor& executor, machine_limits& limits);

}  // namespace moe64::cli
