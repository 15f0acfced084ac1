#pragma once

#include "moe64/c/types.h"

#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/// For the *_init functions: zeroes a struct of `size` bytes and sets the struct_size that it
/// starts with.
static inline void moe64_zero_args(void* args, size_t size) {
  const uint64_t struct_size = size;
  memset(args, 0, size);
  memcpy(args, &struct_size, sizeof struct_size);
}

// ---- executors: what runs the tasks of CPU operations -------------------------------------------

/// Goes into moe64_stream.handle of a CPU stream. In C++ it is a moe64::cpu_executor*. Results
/// never depend on it.
typedef struct moe64_executor moe64_executor;

/// A pool of `threads` in [1, 4096]: the calling thread and threads - 1 others, which sleep when
/// there has been nothing to do for some 30 microseconds. When two threads call at once, the second
/// runs its tasks on itself.
/// MOE64_OUT_OF_MEMORY if the system refuses a thread. *executor is the caller's, for
/// moe64_executor_destroy.
MOE64_API moe64_status moe64_cpu_pool_create(int64_t threads, moe64_executor** executor);

/// One CPU operation's task: call it with the context that came with it. It never unwinds.
typedef void (*moe64_task)(void* context, int64_t i);

/// How the host program runs tasks on its own threads. Neither function may throw, unwind or
/// longjmp.
typedef struct moe64_executor_vtable {
  uint64_t struct_size;
  void* user_data;  ///< passed to both; it and the functions must live as long as the executor
  /// How many tasks may run at once; less than 1 counts as 1.
  int64_t (*concurrency)(void* user_data);
  /// Call task(context, i) once for every i in [0, tasks), in any order, on any threads; return
  /// when all are done. May be called from several threads at once. A task needs up to 300 KiB of
  /// stack.
  void (*run)(void* user_data, int64_t tasks, moe64_task task, void* context);
} moe64_executor_vtable;

static inline moe64_executor_vtable moe64_executor_vtable_init(void) {
  moe64_executor_vtable vtable;
  moe64_zero_args(&vtable, sizeof vtable);
  return vtable;
}

/// An executor that calls the host program; *vtable is copied. *executor is the caller's, for
/// moe64_executor_destroy.
MOE64_API moe64_status moe64_executor_create(const moe64_executor_vtable* vtable,
                                             moe64_executor** executor);

/// Ends the executor, joining the threads that moe64 started for it. No call may be using it. NULL
/// does nothing.
MOE64_API void moe64_executor_destroy(moe64_executor* executor);

/// The CPU as a stream: `executor` or, with NULL, the calling thread.
static inline moe64_stream moe64_cpu_stream(moe64_executor* executor) {
  moe64_stream stream;
  memset(&stream, 0, sizeof stream);
  stream.handle = executor;
  return stream;
}

// ---- weight stacks ------------------------------------------------------------------------------

/// The weights of one projection of all experts, checked when it is made: a quantised stack without
/// its scale cannot exist. It holds views; the memory of values and scales stays the caller's and
/// must outlive the handle and every layer made from it.
typedef struct moe64_weights moe64_weights;

/// One matrix [experts, out, in] per expert. MOE64_MISSING_SCALE, MOE64_SHAPE_MISMATCH,
/// MOE64_DTYPE_MISMATCH or MOE64_DEVICE_MISMATCH with the values. *weights is the caller's, for
/// moe64_weights_destroy.
MOE64_API moe64_status moe64_weights_single(const moe64_quantized* matrix, moe64_weights** weights);

/// Gate and up, each [experts, inter, in], of one type and granularity, each with its own scale
/// grid. Errors and ownership as for moe64_weights_single.
MOE64_API moe64_status moe64_weights_gate_up(const moe64_quantized* gate, const moe64_quantized* up,
                                             moe64_weights** weights);

/// The same with matrices at places. MOE64_DTYPE_MISMATCH, MOE64_SHAPE_MISMATCH or
/// MOE64_DEVICE_MISMATCH when a table does not fit its stack.
MOE64_API moe64_status moe64_weights_single_placed(const moe64_quantized* matrix,
                                                   const moe64_expert_places* places,
                                                   moe64_weights** weights);
MOE64_API moe64_status moe64_weights_gate_up_placed(const moe64_quantized* gate,
                                                    const moe64_expert_places* gate_places,
                                                    const moe64_quantized* up,
                                                    const moe64_expert_places* up_places,
                                                    moe64_weights** weights);

/// Frees the handle, not the memory it looks at. NULL does nothing.
MOE64_API void moe64_weights_destroy(moe64_weights* weights);

#ifdef __cplusplus
}
#endif
