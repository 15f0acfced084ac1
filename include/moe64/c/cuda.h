#pragma once

#include "moe64/c/types.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- CUDA ---------------------------------------------------------------------------------------
// Every operation takes pointers to memory of a CUDA device and any cudaStream_t of that device:
// set `device` of the tensors, workspaces and the stream. A call returns when its work is queued,
// and leaves the current device of the thread as it was. Pointers to the host or to another device
// are MOE64_DEVICE_MISMATCH with the name of the argument. What goes wrong on the device later,
// MOE64_DEVICE_FAILURE with the name of CUDA's error, is reported by a call that comes after it.

static inline moe64_device moe64_cuda_device(int16_t ordinal) {
  moe64_device device;
  memset(&device, 0, sizeof device);
  device.kind = MOE64_DEVICE_CUDA;
  device.ordinal = ordinal;
  return device;
}

/// `handle` is a cudaStream_t of that device, or NULL: its default stream.
static inline moe64_stream moe64_cuda_stream(int16_t ordinal, void* handle) {
  moe64_stream stream;
  memset(&stream, 0, sizeof stream);
  stream.device = moe64_cuda_device(ordinal);
  stream.handle = handle;
  return stream;
}

/// *devices = how many CUDA devices moe64 can use. When there are none `reason` says why (a build
/// without CUDA, no driver, no device): at most reason_bytes including the final NUL, cut where it
/// is longer; NULL when reason_bytes is 0.
MOE64_API moe64_status moe64_cuda_devices(int64_t* devices, char* reason, int64_t reason_bytes);

// For programs that do not use CUDA's own functions.

/// Device memory, aligned for every workspace, not initialised.
typedef struct moe64_cuda_buffer moe64_cuda_buffer;

/// MOE64_OUT_OF_MEMORY when the device has not that much. *buffer is the caller's, for
/// moe64_cuda_buffer_destroy; *memory is what it holds.
MOE64_API moe64_status moe64_cuda_buffer_create(int64_t bytes, moe64_device device,
                                                moe64_cuda_buffer** buffer,
                                                moe64_workspace* memory);
/// Frees the memory, when all work on it is done. NULL does nothing.
MOE64_API void moe64_cuda_buffer_destroy(moe64_cuda_buffer* buffer);

/// Queue a copy of `bytes` bytes between any two places. Host memory must stay as it is until the
/// stream has reached the copy.
MOE64_API moe64_status moe64_cuda_copy(void* to, const void* from, int64_t bytes,
                                       moe64_stream stream);
/// Return when everything queued so far is done; MOE64_DEVICE_FAILURE when some of it failed.
MOE64_API moe64_status moe64_cuda_wait(moe64_stream stream);

#ifdef __cplusplus
}
#endif
