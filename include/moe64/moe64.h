#pragma once

/// The C ABI of moe64: every operation and the expert layer, for C11, C++ and everything that can
/// call C. The C++ headers next to it (ops.hpp, layer.hpp, ...) say what each operation computes;
/// what is said here is how it is called. Rules that hold for every function:
///  - It returns a moe64_status: MOE64_OK, or why the call was refused. When a call is refused no
///    output that its arguments point to has been written (scratch memory aside), and
///    moe64_last_error() names the operation, the argument and the values.
///  - Memory stays the caller's. Tensors and workspaces are borrowed until the call returns (cuda:
///    until the stream has passed it). A handle also borrows the memory of the tensors it was made
///    from: keep that alive as long as the handle. Handles are independent of each other:
///    destroying one never invalidates another.
///  - It may be called from any number of threads at once, on the same handles too, as long as no
///    two calls write the same memory and no handle is destroyed while it is used.
///  - A pointer that is not marked "or NULL" must not be NULL; NULL is MOE64_INVALID_ARGUMENT
///    naming the argument.
///  - Enumerations and flags are checked: a value that has no name here is MOE64_INVALID_ARGUMENT.
///    `reserved` fields must be 0, so that they can be given a meaning later.
///  - A struct that starts with `struct_size` may grow at its end in a later version. The caller
///    sets it to the sizeof that it was compiled with; what a smaller struct does not have is read
///    as 0, which will always mean "as before"; a larger one is refused unless the bytes that this
///    library does not know are 0. The *_init functions set the size and every default that is not
///    0. Structs without `struct_size` never change.
///
/// A fused gate_up projection, in short: moe64_split_gate_up -> moe64_weights_gate_up ->
/// moe64_layer_create -> moe64_forward_bytes -> moe64_forward. A layer of a checkpoint:
/// moe64_checkpoint_open -> moe64_layer_bytes -> moe64_load_layer -> moe64_forward.
#include "moe64/c/abi.h"
#include "moe64/c/checkpoint.h"
#include "moe64/c/cuda.h"
#include "moe64/c/handles.h"
#include "moe64/c/layer.h"
#include "moe64/c/merge.h"
#include "moe64/c/ops.h"
#include "moe64/c/status.h"
#include "moe64/c/types.h"
