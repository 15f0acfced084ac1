#include "cpu/runtime/features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moe64::cpu {

#if defined(__x86_64__)

namespace {

/// Linux hands out the tile registers on request only, once per process.
bool tiles_granted() {
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

struct registers {
  unsigned a, b, c, d;
};

/// All zero where the processor does not know the leaf.
registers cpuid(unsigned leaf) {
  registers r = {};
  if (__get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d) == 0) r = {};
  return r;
}

bool bit(unsigned word, int place) { return (word >> place & 1U) != 0; }

support find_amx_bf16() {
  registers const extended = cpuid(7);
  bool const bf16 = bit(extended.d, 22);
  bool const tile = bit(extended.d, 24);
  if (!bf16 || !tile) return support::no("this CPU has no AMX-BF16");
  if (!tiles_granted()) return support::no("the operating system refuses AMX tiles");
  return support::yes();
}

}  // namespace

support has_avx2() {
  static bool const found = __builtin_cpu_supports("avx2") != 0 &&
                            __builtin_cpu_supports("fma") != 0 &&
                            bit(cpuid(1).c, 29) &&  // F16C, which not every compiler can ask for

                            __builtin_cpu_supports("bmi2") != 0;
  return found ? support::yes() : support::no("this CPU has no AVX2 with FMA, F16C and BMI2");
}

support has_avx512() {
  static bool const found =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0;
  return found ? has_avx2() : support::no("this CPU has no AVX-512 (F, BW, CD, DQ, VL)");
}

support has_avx512_vbmi() {
  static bool const found = __builtin_cpu_supports("avx512vbmi") != 0;
  return found ? has_avx512() : support::no("this CPU has no AVX512_VBMI");
}

support has_avx512_vnni() {
  static bool const found = __builtin_cpu_supports("avx512vnni") != 0;
  return found ? has_avx512_vbmi() : support::no("this CPU has no AVX512_VNNI");
}

support has_avx512_bf16() {
  static bool const found = __builtin_cpu_supports("avx512bf16") != 0;
  return found ? has_avx512_vbmi() : support::no("this CPU has no AVX512_BF16");
}

support has_amx_bf16() {
  static support const found = find_amx_bf16();
  return found ? has_avx512_bf16() : found;
}

#else

// The x86 implementations are not compiled for other processors.
support has_avx2() { return support::no("not an x86 CPU"); }
support has_avx512() { return has_avx2(); }
support has_avx512_vbmi() { return has_avx2(); }
support has_avx512_vnni() { return has_avx2(); }
support has_avx512_bf16() { return has_avx2(); }
support has_amx_bf16() { return has_avx2(); }

#endif

}  // namespace moe64::cpu
