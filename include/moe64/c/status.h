#pragma once

#include "moe64/export.hpp"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// What every function answers. New codes may be added: treat any other than MOE64_OK as a refusal.
typedef int32_t moe64_status;
enum {
  MOE64_OK = 0,
  MOE64_INVALID_ARGUMENT =
      1,  ///< a value that no problem can have (NULL, negative extent, unknown enumerator)
  MOE64_SHAPE_MISMATCH = 2,       ///< two extents that must agree do not
  MOE64_DTYPE_MISMATCH = 3,       ///< an operand has a type that this place does not take
  MOE64_DEVICE_MISMATCH = 4,      ///< an operand is not on the device of the stream
  MOE64_MISSING_SCALE = 5,        ///< quantised values without the scale that gives them meaning
  MOE64_INVALID_EXPERT = 6,       ///< a routing id that is neither an expert nor a sentinel
  MOE64_SIZE_OVERFLOW = 7,        ///< a count or byte size that does not fit 63 bits
  MOE64_WORKSPACE_TOO_SMALL = 8,  ///< less (or less aligned) memory than the size query asked for
  MOE64_UNSUPPORTED = 9,          ///< a legal request that this build or this device cannot serve
  MOE64_OUT_OF_MEMORY = 10,       ///< the system gave no memory or no thread
  MOE64_INTERNAL = 11,            ///< a broken promise of moe64 itself; please report it
  MOE64_MALFORMED_FILE = 12,      ///< a file that breaks a rule of its format
  MOE64_IO_FAILURE = 13,      ///< a file that could not be read or written, or changed meanwhile
  MOE64_INTERRUPTED = 14,     ///< the caller's own progress report asked to stop
  MOE64_DEVICE_FAILURE = 15,  ///< a GPU or its driver reported an error
};

/// The stable name of a status, "ok" or such as "shape_mismatch"; "unknown" for a number that is
/// none. Never NULL; valid for as long as the library is loaded.
MOE64_API const char* moe64_status_name(moe64_status status);

/// Why the last refused call on this thread was refused: "[operation] argument and values". Empty
/// before the first refusal; a successful call does not clear it. Never NULL. The text belongs to
/// moe64 and is valid, on this thread, until the next refused call on it; it is cut after 2047
/// bytes.
MOE64_API const char* moe64_last_error(void);

/// "0.1.0". Valid for as long as the library is loaded.
MOE64_API const char* moe64_version(void);

#ifdef __cplusplus
}
#endif
