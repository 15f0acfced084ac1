#pragma once

#include "moe64/cpu.hpp"

#include <string>
#include <vector>

namespace moe64::cli {

/// What this process runs on.
struct machine {
  std::string cpu_model;
  std::vector<std::string> extensions;  ///< instruction set extensions that matter to moe64
  index_t cores = 1;                    ///< that this process may use
  double memory_total = 0.0;      ///< bytes; 0: the system does not say, nor what is available
  double memory_available = 0.0;  ///< bytes
};
[[nodiscard]] machine look_at_machine();

/// Cores that this process may use.
[[nodiscard]] index_t usable_cores();

/// Forget the largest resident size so far, where the system allows it.
void reset_peak_memory();
/// Largest resident size of this process since then, in bytes; 0 when the system does not say.
[[nodiscard]] double peak_memory();

/// The fastest that a device went in simple loops, a CPU on all threads of the executor: what
/// shares of a limit refer to. 0: it has no such instruction, or it was not measured.
struct machine_limits {
  double copy_bytes_per_s = 0.0;       ///< bytes read plus bytes written of a large copy
  double read_bytes_per_s = 0.0;       ///< bytes of a large sum
  double fma_flops_per_s = 0.0;        ///< f32 multiply-adds on registers, two operations each
  double bf16_flops_per_s = 0.0;       ///< bf16 dot products on registers (AVX512_BF16)
  double bf16_tile_flops_per_s = 0.0;  ///< products of bf16 tiles (AMX)
  double int8_ops_per_s = 0.0;         ///< int8 dot products on registers (AVX512_VNNI)
};
[[nodiscard]] machine_limits measure_limits(cpu_executor& executor);
/// Only copying: moe64 has no other loops for CUDA than its operations.
[[nodiscard]] machine_limits measure_cuda_limits(moe64::device where);

}  // namespace moe64::cli
