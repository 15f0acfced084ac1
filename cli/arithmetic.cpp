#include "arithmetic.hpp"

#include "timing.hpp"

#include <algorithm>
#include <cstdint>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moe64::cli {
namespace {

constexpr index_t rounds = index_t{1} << 21;
constexpr index_t tile_rounds = index_t{1} << 17;
constexpr index_t accumulators = 12;  // enough to hide the latency of a multiply-add

/// Multiply-adds on registers of four floats, in C++ alone.
void portable_loop() {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  constexpr bool fused = true;
#else
  constexpr bool fused = false;
#endif
  float sums[accumulators][4] = {};
  for (index_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) {
      for (float& lane : sum) {
        lane = fused ? __builtin_fmaf(lane, 0.999F, 0.001F) : lane * 0.999F + 0.001F;
      }
    }
  }
  float total = 0.0F;
  for (auto const& sum : sums) {
    for (float const lane : sum) total += lane;
  }
  [[maybe_unused]] volatile float const sink = total;  // or the work would be left out
}

#if defined(__x86_64__)
// Rounds of one instruction on twelve registers, as text: compilers keep the sums of a C++ loop in
// memory as they please, and the rate of the stores is not what shall be measured. The numbers are
// zeros, which changes nothing about the speed.
// clang-format off
#define MOE64_LOOP(NAME, INSTRUCTION, R)                                                      \
  void NAME() {                                                                               \
    index_t left = rounds;                                                                    \
    asm volatile(                                                                             \
        "vzeroall\n"                                                                          \
        "1:\n\t"                                                                              \
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n\t"                                    \
        INSTRUCTION " %%" R "mm15, %%" R "mm15, %%" R "mm\\n\n\t"                             \
        ".endr\n\t"                                                                           \
        "dec %0\n\t"                                                                          \
        "jnz 1b\n\t"                                                                          \
        "vzeroupper"                                                                          \
        : "+r"(left)                                                                          \
        :                                                                                     \
        : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",       \
          "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                      \
  }
MOE64_LOOP(fma_256_loop, "vfmadd231ps", "y")
MOE64_LOOP(fma_512_loop, "vfmadd231ps", "z")
MOE64_LOOP(bf16_dot_loop, "vdpbf16ps", "z")
MOE64_LOOP(int8_dot_loop, "vpdpbusd", "z")
// clang-format on
#undef MOE64_LOOP
#endif

#if defined(__x86_64__) && defined(__linux__)
struct alignas(64) tile_config {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// The system lends tiles to a process that asks.
bool may_use_tiles() {
  auto const has = look_at_machine().extensions;
  if (std::find(has.begin(), has.end(), "amx_bf16") == has.end()) return false;
  constexpr long request_permission = 0x1023;
  constexpr long tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

/// Products of [16, 32] by [32, 16] into four tiles.
void bf16_tile_loop() {
  tile_config const config;
  index_t left = tile_rounds;
  asm volatile(
      "ldtilecfg %1\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
      "tilezero %%tmm4\n\ttilezero %%tmm5\n"
      "1:\n\t"
      "tdpbf16ps %%tmm5, %%tmm4, %%tmm0\n\ttdpbf16ps %%tmm5, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm5, %%tmm4, %%tmm2\n\ttdpbf16ps %%tmm5, %%tmm4, %%tmm3\n\t"
      "dec %0\n\t"
      "jnz 1b\n\t"
      "tilerelease"
      : "+r"(left)
      : "m"(config)
      : "cc");
}
#endif

/// Operations per second of a loop of so many multiply-adds, two operations each.
double rate_of(cpu_executor& executor, void (*loop)(), index_t products) {
  double const seconds = fastest_of_three(executor, [&](index_t) { loop(); });
  return 2.0 * static_cast<double>(products * executor.concurrency()) / seconds;
}

}  // namespace

void measure_arithmetic(cpu_executor& executor, machine_limits& limits) {
  constexpr index_t steps = rounds * accumulators;
  double& fma = limits.fma_flops_per_s;  // the widest loop is not always the fastest
#if defined(__x86_64__)
  bool const wide = __builtin_cpu_supports("avx512f") != 0;
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    fma = rate_of(executor, fma_256_loop, 8 * steps);
  }
  if (wide) fma = std::max(fma, rate_of(executor, fma_512_loop, 16 * steps));
  if (wide && __builtin_cpu_supports("avx512bf16") != 0) {
    limits.bf16_flops_per_s = rate_of(executor, bf16_dot_loop, 32 * steps);
  }
  if (wide && __builtin_cpu_supports("avx512vnni") != 0) {
    limits.int8_ops_per_s = rate_of(executor, int8_dot_loop, 64 * steps);
  }
#endif
#if defined(__x86_64__) && defined(__linux__)
  if (may_use_tiles()) {
    limits.bf16_tile_flops_per_s =
        rate_of(executor, bf16_tile_loop, tile_rounds * 4 * 16 * 16 * 32);
  }
#endif
  if (fma == 0.0) fma = rate_of(executor, portable_loop, 4 * steps);
}

}  // namespace moe64::cli
