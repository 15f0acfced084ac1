#pragma once

#include "moe64/c/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- for bindings that declare the structs themselves -------------------------------------------

/// Counts up when a struct without `struct_size` or the meaning of a function changes.
#define MOE64_ABI_VERSION 2

/// The MOE64_ABI_VERSION that the library was built with.
MOE64_API int32_t moe64_abi_version(void);

/// *bytes = sizeof of the struct with that name ("moe64_tensor") in this library.
/// MOE64_INVALID_ARGUMENT when it has none of that name.
MOE64_API moe64_status moe64_struct_bytes(const char* name, int64_t* bytes);

#ifdef __cplusplus
}
#endif
