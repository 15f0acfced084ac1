#pragma once

#include "moe64/c/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- where --------------------------------------------------------------------------------------

typedef uint8_t moe64_device_kind;
enum { MOE64_DEVICE_CPU = 0, MOE64_DEVICE_CUDA = 1 };

/// Where memory lives. All zero is the CPU.
typedef struct moe64_device {
  moe64_device_kind kind;
  uint8_t reserved;
  int16_t ordinal;  ///< cuda: which one; cpu: 0
} moe64_device;

/// Where and in which order work runs. cpu: `handle` is a moe64_executor* (see handles.h), NULL
/// means the calling thread alone; the call returns when the work is done. cuda: `handle` is a
/// cudaStream_t of that device; the call returns when the work is queued. All zero is the calling
/// thread.
typedef struct moe64_stream {
  moe64_device device;
  uint32_t reserved;
  void* handle;
} moe64_stream;

// ---- tensors ------------------------------------------------------------------------------------

typedef uint8_t moe64_dtype;
enum {
  MOE64_DTYPE_F32 = 0,
  MOE64_DTYPE_BF16 = 1,
  MOE64_DTYPE_F16 = 2,
  MOE64_DTYPE_E4M3 = 3,  ///< OCP FP8 e4m3fn: no infinity, NaN 0x7f and 0xff, largest 448
  MOE64_DTYPE_E5M2 = 4,  ///< OCP FP8 e5m2: infinity 0x7c, largest 57344
  MOE64_DTYPE_E8M0 = 5,  ///< a power of two, 2^(code - 127); 0xff is NaN; only for scales
  MOE64_DTYPE_INT8 = 6,
  MOE64_DTYPE_INT4 = 7,  ///< two per byte, the lower nibble first
  MOE64_DTYPE_FP4 = 8,   ///< e2m1, two per byte, the lower nibble first
  MOE64_DTYPE_INT32 = 9,
  MOE64_DTYPE_INT64 = 10,
  MOE64_DTYPE_UINT8 = 11,
};

/// A borrowed, strided, typed array on a device. Rank 0 means "absent", and then nothing else is
/// looked at: a zeroed tensor is an optional operand that was not given. An array with zero
/// elements is present and may have NULL data. Strides count elements, are never negative, and may
/// be 0 for operands that are only read. `data` of operands that are only read is never written
/// through.
typedef struct moe64_tensor {
  void* data;
  moe64_dtype dtype;
  uint8_t rank;  ///< 0 to 3
  moe64_device device;
  uint16_t reserved;
  int64_t extent[3];
  int64_t stride[3];
} moe64_tensor;

/// Fills *tensor with a row-major array without gaps over `data` (NULL allowed when it has no
/// elements). extents [rank] with rank 1 to 3; packed types round the innermost extent up to whole
/// bytes. Nothing is allocated. MOE64_SIZE_OVERFLOW when its byte size does not fit,
/// MOE64_INVALID_ARGUMENT for a rank or extent out of range.
MOE64_API moe64_status moe64_contiguous(const void* data, moe64_dtype dtype, uint8_t rank,
                                        const int64_t* extents, moe64_device device,
                                        moe64_tensor* tensor);

typedef uint8_t moe64_gate_up_layout;
enum {
  MOE64_CONCATENATED = 0,  ///< all gate rows, then all up rows
  MOE64_INTERLEAVED = 1,   ///< gate row 0, up row 0, gate row 1, ...
};

/// Splits dimension 1 of a fused tensor (weights [experts, 2 * inter, hidden], scales, or biases
/// [experts, 2 * inter]) into halves[0], the gate, and halves[1], the up part. halves has room for
/// two; they share the memory of `fused`.
MOE64_API moe64_status moe64_split_gate_up(const moe64_tensor* fused, moe64_gate_up_layout layout,
                                           moe64_tensor* halves);

/// Memory that the caller lends to a call: at least the bytes that the matching query answered,
/// starting at a multiple of 64 bytes. All zero is "none".
typedef struct moe64_workspace {
  void* data;
  int64_t bytes;
  moe64_device device;
  uint32_t reserved;
} moe64_workspace;

// ---- quantised matrices -------------------------------------------------------------------------

typedef uint8_t moe64_scale_kind;
enum {
  MOE64_SCALE_NONE = 0,    ///< plain values
  MOE64_SCALE_TENSOR = 1,  ///< one per matrix
  MOE64_SCALE_ROW = 2,
  MOE64_SCALE_BLOCK = 3,  ///< block_rows x block_cols; the last ones may be partial
  MOE64_SCALE_GROUP = 4,  ///< runs of block_cols along a row; the last one may be partial
};

/// How many values share one scale. Always stated, never inferred from a shape.
typedef struct moe64_granularity {
  moe64_scale_kind kind;
  uint8_t reserved[7];
  int64_t block_rows;  ///< block only
  int64_t block_cols;  ///< block and group
} moe64_granularity;

typedef uint8_t moe64_scale_direction;
enum { MOE64_MULTIPLY = 0, MOE64_DIVIDE = 1 };

/// The second-level scale of NVFP4: it multiplies (ModelOpt) or divides (compressed-tensors) the
/// block scale.
typedef struct moe64_global_scale {
  moe64_tensor values;  ///< [experts] f32, or absent
  moe64_scale_direction applied;
  uint8_t reserved[7];
} moe64_global_scale;

/// A stack of matrices with everything that gives its codes meaning; it is checked by each call
/// that takes it. Plain values: layout.kind MOE64_SCALE_NONE and no scales. Absent values: the
/// operand was not given.
typedef struct moe64_quantized {
  moe64_tensor values;  ///< [experts, rows, cols] or [rows, cols] f32 bf16 f16; scaled: e4m3 e5m2
                        ///< int8 int4 fp4
  moe64_tensor
      scales;  ///< [experts, grid_rows, grid_cols] or [grid_rows, grid_cols] f32 bf16 f16 e8m0 e4m3
  moe64_global_scale global;
  moe64_granularity layout;
} moe64_quantized;

/// Where the matrices of experts are in a stack that does not hold one for each expert in order.
/// The first extents of its values and scales are then their numbers of places, which may be closer
/// together than matrices are long. The tables live on the device of the weights and must outlive
/// them. On the CPU an entry that is no place is MOE64_INVALID_ARGUMENT when the weights are used;
/// on CUDA it leads to nothing outside of the stack, and what is computed with such an expert is
/// NaN.
typedef struct moe64_expert_places {
  moe64_tensor values;  ///< [experts] int64, or absent: that of expert e is number e
  moe64_tensor scales;  ///< the same for the scales
} moe64_expert_places;

/// Matrices that lie anywhere as one stack: `like` [rows, cols] says what each of the `count`
/// matrices is, its data is not looked at. *stack [places, rows, cols] begins with the lowest
/// matrix and has a place every `step` elements; table [count], in host memory, gets the place of
/// each. MOE64_INVALID_ARGUMENT when a matrix is NULL or not at a whole step, MOE64_SIZE_OVERFLOW
/// when the stack does not fit. For fast GPU kernels a step is whole 16 bytes, and there are at
/// most 2^31 - 1024 places.
MOE64_API moe64_status moe64_place_matrices(const void* const* matrices, int64_t count,
                                            const moe64_tensor* like, int64_t step, int64_t* table,
                                            moe64_tensor* stack);

// ---- routing plan -------------------------------------------------------------------------------

/// Which token goes to which expert, in expert order: the output of moe64_plan. Views into the
/// caller's memory, made by moe64_bind_plan or moe64_saved_plan.
typedef struct moe64_routing_plan {
  int64_t tokens;
  int64_t top_k;
  int64_t experts;  ///< experts served by this plan: a sub-range under expert parallelism
  moe64_tensor
      expert_begin;          ///< [experts + 1] int64; rows of expert e are [begin[e], begin[e + 1])
  moe64_tensor row_to_slot;  ///< [tokens * top_k] int64; entries past the last row are unspecified
  moe64_tensor slot_to_row;  ///< [tokens * top_k] int64; -1: this slot has no row
  moe64_tensor slot_weight;  ///< [tokens * top_k] f32; 0 for a slot without a row
  moe64_tensor status;       ///< [MOE64_PLAN_STATUS_COUNT] int64
} moe64_routing_plan;

/// What each entry of `status` counts.
enum {
  MOE64_PLAN_KEPT = 0,           ///< slots that have a row
  MOE64_PLAN_SKIPPED = 1,        ///< sentinels: -1 or experts_total
  MOE64_PLAN_ELSEWHERE = 2,      ///< legal experts outside this plan's sub-range
  MOE64_PLAN_DROPPED = 3,        ///< slots beyond an expert's capacity
  MOE64_PLAN_INVALID = 4,        ///< ids that are none of the above (always 0 on the CPU: an error)
  MOE64_PLAN_FIRST_INVALID = 5,  ///< the first such slot, or -1
  MOE64_PLAN_STATUS_COUNT = 6,
};

#ifdef __cplusplus
}
#endif
