#pragma once

#include "moe64/c/checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- adapters into the weights of a checkpoint --------------------------------------------------

typedef uint8_t moe64_merge_target;
enum {
  MOE64_MERGE_BF16 = 0,
  MOE64_MERGE_FP8_BLOCK = 2,
  MOE64_MERGE_FP8_ROW = 3,
  MOE64_MERGE_SAME = 4,  ///< every tensor in the format that it has
};

/// How the factors B of an adapter of stacks of experts count ranks and experts.
typedef uint8_t moe64_adapter_layout;
enum {
  MOE64_ADAPTER_AS_STATED = 0,  ///< what adapter_config.json says
  MOE64_ADAPTER_PEFT = 1,       ///< [out, rank, experts]
  MOE64_ADAPTER_UNSLOTH = 2,    ///< [out, experts, rank]: unsloth before 2026.9.6
};

typedef struct moe64_merge_options {
  uint64_t struct_size;
  moe64_merge_target to;
  moe64_adapter_layout layout;
  uint8_t reserved[6];
  int64_t memory_bytes;  ///< of all buffers together; default 512 MiB
  int64_t shard_bytes;   ///< of tensors in one file; default 5 GB
} moe64_merge_options;

static inline moe64_merge_options moe64_merge_options_init(void) {
  moe64_merge_options options;
  moe64_zero_args(&options, sizeof options);
  options.memory_bytes = (int64_t)512 << 20;
  options.shard_bytes = 5000000000;
  return options;
}

/// An adapter that fits a base.
typedef struct moe64_adapter_fit {
  uint64_t struct_size;
  int64_t pairs;    ///< of factors in the adapter
  int64_t modules;  ///< tensors of the base that they change
  int64_t bytes;    ///< of the adapter's file
} moe64_adapter_fit;

static inline moe64_adapter_fit moe64_adapter_fit_init(void) {
  moe64_adapter_fit fit;
  moe64_zero_args(&fit, sizeof fit);
  return fit;
}

/// Refuses what moe64_merge would refuse of the adapter, and writes nothing. `adapter` is a folder
/// with adapter_config.json and adapter_model.safetensors.
MOE64_API moe64_status moe64_check_adapter(const moe64_checkpoint* base, const char* adapter,
                                           moe64_adapter_layout layout, moe64_adapter_fit* fit);

/// What became of an adapter. Its texts live as long as it does.
typedef struct moe64_merge_report moe64_merge_report;

/// Writes the checkpoint to the folder `out` with the adapter in its weights, as
/// include/moe64/merge.hpp says. `options` must not be NULL: there is no default target. `progress`
/// or NULL. *report is the caller's, for moe64_merge_report_destroy.
MOE64_API moe64_status moe64_merge(const moe64_checkpoint* base, const char* adapter,
                                   const char* out, const moe64_merge_options* options,
                                   moe64_stream stream, moe64_progress progress, void* user_data,
                                   moe64_merge_report** report);

/// NULL does nothing.
MOE64_API void moe64_merge_report_destroy(moe64_merge_report* report);

typedef struct moe64_merge_summary {
  uint64_t struct_size;
  int64_t pairs;
  int64_t modules;
  int64_t merged;     ///< tensors of the result that changed: moe64_merged_tensor_at counts them
  int64_t notes;      ///< texts of moe64_merge_text_at ...
  int64_t warnings;   ///< ... where little of the adapter is left
  int64_t anomalies;  ///< ... that make the result doubtful: level MOE64_FINDING_ERROR
  int64_t shards;
  int64_t shards_kept;  ///< found whole from an earlier run
  int64_t output_bytes;
  int64_t buffer_bytes;
} moe64_merge_summary;

static inline moe64_merge_summary moe64_merge_summary_init(void) {
  moe64_merge_summary summary;
  moe64_zero_args(&summary, sizeof summary);
  return summary;
}

MOE64_API moe64_status moe64_merge_summarize(const moe64_merge_report* report,
                                             moe64_merge_summary* summary);

/// What became of the adapter in one tensor.
typedef struct moe64_merged_tensor {
  uint64_t struct_size;
  const char* tensor;
  double delta;      ///< size of the change, the root of the sum of squares
  double kept;       ///< the share of it that is there after rounding; 1: all of it
  double error;      ///< what rounding did, divided by `delta`
  uint8_t survives;  ///< flag: kept is within 0.1 of 1, and error below 1
  uint8_t reserved[7];
} moe64_merged_tensor;

static inline moe64_merged_tensor moe64_merged_tensor_init(void) {
  moe64_merged_tensor tensor;
  moe64_zero_args(&tensor, sizeof tensor);
  return tensor;
}

MOE64_API moe64_status moe64_merged_tensor_at(const moe64_merge_report* report, int64_t i,
                                              moe64_merged_tensor* tensor);
/// *text = number `i` of the texts of a level, safe to print.
MOE64_API moe64_status moe64_merge_text_at(const moe64_merge_report* report,
                                           moe64_finding_level level, int64_t i, const char** text);

#ifdef __cplusplus
}
#endif
