#pragma once

#include "moe64/c/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- checkpoints on disk ------------------------------------------------------------------------

/// A checkpoint, opened and understood: headers validated, index checked, every expert weight
/// matched with its scales. Its files stay open until it is destroyed.
typedef struct moe64_checkpoint moe64_checkpoint;

typedef struct moe64_checkpoint_options {
  uint64_t struct_size;
  uint8_t lenient;       ///< flag: accept unknown fields in safetensors headers
  uint8_t follow_links;  ///< flag: any symbolic link, not only those of a Hub cache
  uint8_t mapped;        ///< flag: mmap instead of pread
  uint8_t reserved[5];
  /// What the files leave open or say wrongly, such as "block=128x128"; NULL when there are none.
  const char* const* assume;
  int64_t assume_count;
} moe64_checkpoint_options;

static inline moe64_checkpoint_options moe64_checkpoint_options_init(void) {
  moe64_checkpoint_options options;
  moe64_zero_args(&options, sizeof options);
  return options;
}

/// Opens a folder, or one safetensors file. `options` or NULL. What is wrong with the meaning of
/// the tensors is a finding; a file that breaks the rules of its format is MOE64_MALFORMED_FILE.
/// *checkpoint is the caller's, for moe64_checkpoint_destroy.
MOE64_API moe64_status moe64_checkpoint_open(const char* path,
                                             const moe64_checkpoint_options* options,
                                             moe64_checkpoint** checkpoint);

/// Closes the files. Layers that were loaded stay. NULL does nothing.
MOE64_API void moe64_checkpoint_destroy(moe64_checkpoint* checkpoint);

typedef uint8_t moe64_finding_level;
enum {
  MOE64_FINDING_NOTE = 0,     ///< worth knowing
  MOE64_FINDING_WARNING = 1,  ///< legal, but often a mistake
  MOE64_FINDING_ERROR = 2,    ///< the checkpoint is not what it says it is
};

/// One thing that was found out. The texts are safe to print and live as long as the checkpoint.
typedef struct moe64_checkpoint_finding {
  uint64_t struct_size;
  const char* rule;    ///< a stable word to filter by: "missing-scale"
  const char* tensor;  ///< the tensor or module that it is about, or ""
  const char* text;    ///< a sentence with the values
  moe64_finding_level level;
  uint8_t reserved[7];
} moe64_checkpoint_finding;

/// Structs that are answers are made with their *_init too: so much as the caller has room for is
/// filled in.
static inline moe64_checkpoint_finding moe64_checkpoint_finding_init(void) {
  moe64_checkpoint_finding finding;
  moe64_zero_args(&finding, sizeof finding);
  return finding;
}

/// *count = how many findings there are.
MOE64_API moe64_status moe64_checkpoint_finding_count(const moe64_checkpoint* checkpoint,
                                                      int64_t* count);
/// *finding = number `i` of them.
MOE64_API moe64_status moe64_checkpoint_finding_at(const moe64_checkpoint* checkpoint, int64_t i,
                                                   moe64_checkpoint_finding* finding);

/// The checkpoint in numbers. Extents that its config does not state are -1; texts live as long as
/// the checkpoint.
typedef struct moe64_checkpoint_summary {
  uint64_t struct_size;
  const char* model_type;    ///< of config.json, or ""
  const char* quant_method;  ///< as declared, or ""
  int64_t hidden;
  int64_t inter;
  int64_t experts;
  int64_t top_k;
  int64_t shards;
  int64_t tensors;
  int64_t tensor_bytes;
  int64_t expert_layers;      ///< that have experts: moe64_checkpoint_layer_at counts them
  int64_t expert_parameters;  ///< of all of them
  int64_t expert_bytes;       ///< in the files
  int64_t weights_found;      ///< quantised weights, experts and others
  int64_t scales_found;       ///< first-level scales of weights
  int64_t matched;            ///< weights whose scale was found and fits
  int64_t errors;             ///< findings of that level
  int64_t warnings;
} moe64_checkpoint_summary;

static inline moe64_checkpoint_summary moe64_checkpoint_summary_init(void) {
  moe64_checkpoint_summary summary;
  moe64_zero_args(&summary, sizeof summary);
  return summary;
}

MOE64_API moe64_status moe64_checkpoint_summarize(const moe64_checkpoint* checkpoint,
                                                  moe64_checkpoint_summary* summary);

/// How gate, up or down of a layer is stored.
typedef struct moe64_projection_format {
  int64_t rows;              ///< outputs of one expert; 0 when it cannot be read
  int64_t cols;              ///< inputs
  moe64_granularity layout;  ///< as stored
  moe64_dtype dtype;         ///< of the values as moe64_load_layer gives them
  moe64_dtype scale_dtype;
  uint8_t has_global;            ///< flag: a second scale per expert ...
  moe64_scale_direction global;  ///< ... that does this
  uint8_t stacked;               ///< flag: one tensor for all experts
  uint8_t fused;                 ///< flag: gate and up are one tensor
  uint8_t transposed;            ///< flag: stored [in, out]
  moe64_gate_up_layout gate_up;  ///< of a fused one
  uint8_t has_bias;              ///< flag
  uint8_t reserved[7];
} moe64_projection_format;

typedef struct moe64_checkpoint_layer {
  uint64_t struct_size;
  int64_t layer;
  uint8_t mtp;    ///< flag: of multi-token prediction, not of the backbone
  uint8_t sound;  ///< flag: moe64_load_layer takes it
  uint8_t reserved[6];
  const char* problem;  ///< why it is not sound, or ""; it lives as long as the checkpoint
  const char* dialect;  ///< "D8", or "plain"; the same
  int64_t experts;
  int64_t hidden;
  int64_t inter;
  int64_t parameters;            ///< weights and biases of all experts
  int64_t stored_bytes;          ///< values, scales and biases in the files
  int64_t loaded_bytes;          ///< moe64_layer_bytes of all experts; 0 when it is not sound
  moe64_projection_format gate;  ///< the one matrix before down of experts without a gate
  moe64_projection_format up;    ///< rows 0 without a gate
  moe64_projection_format down;
} moe64_checkpoint_layer;

static inline moe64_checkpoint_layer moe64_checkpoint_layer_init(void) {
  moe64_checkpoint_layer layer;
  moe64_zero_args(&layer, sizeof layer);
  return layer;
}

/// *layer = number `i` of the layers that have experts: the backbone in order, then MTP layers.
MOE64_API moe64_status moe64_checkpoint_layer_at(const moe64_checkpoint* checkpoint, int64_t i,
                                                 moe64_checkpoint_layer* layer);

// ---- loading ------------------------------------------------------------------------------------

/// Which experts of which layer.
typedef struct moe64_layer_request {
  uint64_t struct_size;
  int64_t layer;
  uint8_t mtp;  ///< flag
  uint8_t reserved[7];
  int64_t first_expert;
  int64_t experts;  ///< so many from first_expert on; default -1: all that follow
} moe64_layer_request;

static inline moe64_layer_request moe64_layer_request_init(void) {
  moe64_layer_request request;
  moe64_zero_args(&request, sizeof request);
  request.experts = -1;
  return request;
}

/// *bytes = host memory that moe64_load_layer needs, exactly.
MOE64_API moe64_status moe64_layer_bytes(const moe64_checkpoint* checkpoint,
                                         const moe64_layer_request* request, int64_t* bytes);

/// How far a long call is; called from one thread at a time, a few times a second at most. Any
/// answer but 0 stops the call, which then returns MOE64_INTERRUPTED. It may not throw, unwind or
/// longjmp.
typedef int (*moe64_progress)(void* user_data, int64_t done_bytes, int64_t total_bytes);

/// Reads the experts of a layer into *memory and makes a layer of them, with the activation and the
/// place of the slot weight that the config states. `progress` or NULL; user_data is passed to it.
/// A layer that is not sound is refused with what was found. *layer is the caller's, for
/// moe64_layer_destroy; the memory stays the caller's and must outlive it. When the call is refused
/// the content of *memory is unspecified.
MOE64_API moe64_status moe64_load_layer(const moe64_checkpoint* checkpoint,
                                        const moe64_layer_request* request,
                                        const moe64_workspace* memory, moe64_stream stream,
                                        moe64_progress progress, void* user_data,
                                        moe64_layer** layer);

#ifdef __cplusplus
}
#endif
