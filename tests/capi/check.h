#pragma once

#include "moe64/moe64.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/// For programs of one file each: CHECK counts what is false and says where; main returns
/// failures().

static int check_failures = 0;

static inline int failures(void) { return check_failures == 0 ? 0 : 1; }

static inline void check_report(const char* file, int line, const char* what) {
  fprintf(stderr, "%s:%d: %s (last error: %s)\n", file, line, what, moe64_last_error());
  ++check_failures;
}

#define CHECK(condition) ((condition) ? (void)0 : check_report(__FILE__, __LINE__, #condition))

/// For what later lines cannot do without.
#define REQUIRE(condition) \
  ((condition) ? (void)0 : (check_report(__FILE__, __LINE__, #condition), exit(1)))

static inline moe64_device on_cpu(void) {
  moe64_device device;
  memset(&device, 0, sizeof device);
  return device;
}

static inline moe64_tensor tensor(const void* data, moe64_dtype dtype, uint8_t rank,
                                  const int64_t* extents) {
  moe64_tensor result;
  REQUIRE(moe64_contiguous(data, dtype, rank, extents, on_cpu(), &result) == MOE64_OK);
  return result;
}

static inline moe64_tensor tensor1(const void* data, moe64_dtype dtype, int64_t n) {
  return tensor(data, dtype, 1, &n);
}

static inline moe64_tensor tensor2(const void* data, moe64_dtype dtype, int64_t rows,
                                   int64_t cols) {
  const int64_t extents[2] = {rows, cols};
  return tensor(data, dtype, 2, extents);
}

static inline moe64_tensor tensor3(const void* data, moe64_dtype dtype, int64_t experts,
                                   int64_t rows, int64_t cols) {
  const int64_t extents[3] = {experts, rows, cols};
  return tensor(data, dtype, 3, extents);
}

static inline moe64_quantized plain(moe64_tensor values) {
  moe64_quantized q;
  memset(&q, 0, sizeof q);
  q.values = values;
  return q;
}

static inline moe64_quantized scaled(moe64_tensor values, moe64_tensor scales,
                                     moe64_scale_kind kind, int64_t block_rows,
                                     int64_t block_cols) {
  moe64_quantized q = plain(values);
  q.scales = scales;
  q.layout.kind = kind;
  q.layout.block_rows = block_rows;
  q.layout.block_cols = block_cols;
  return q;
}

/// Memory as the queries ask for it, every byte 0x5a; free(result.data).
static inline moe64_workspace lend(int64_t bytes) {
  moe64_workspace memory;
  memset(&memory, 0, sizeof memory);
  memory.bytes = bytes;
  memory.data = aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
  REQUIRE(memory.data != NULL);
  memset(memory.data, 0x5a, (size_t)bytes);
  return memory;
}

/// The e4m3 code of a whole number from -4 to 4.
static inline uint8_t e4m3(int value) {
  static const uint8_t codes[5] = {0x00, 0x38, 0x40, 0x44, 0x48};
  return value < 0 ? (uint8_t)(0x80 | codes[-value]) : codes[value];
}
