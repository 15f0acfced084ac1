#pragma once

#include "moe64/index.hpp"

#include <cstdint>

/// The few functions of the CUDA runtime that moe64 uses, as a table of plain C++: everything of
/// this room but the kernels compiles without CUDA's headers, and tests put a machine of eight
/// devices in its place.
namespace moe64::cuda {

/// A cudaError_t; 0 is success.
using status = int;

/// Who owns the memory that a pointer points to.
struct memory_owner {
  enum class kind { host, device, managed };
  kind where = kind::host;
  int device = -1;
};

struct device_properties {
  char name[256] = {};
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  index_t memory_bytes = 0;
};

/// One kernel launch. Every kernel of moe64 takes one struct by value and a grid of one dimension.
struct launch_config {
  void const* function = nullptr;
  unsigned ctas = 0;
  unsigned threads = 0;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  void const* parameters = nullptr;
  bool pdl = false;  ///< programmatic dependent launch; from sm_90 on
};

/// A tensor of rank 2 or 3 in device memory that TMA loads boxes of, or stores them to. Its
/// innermost dimension is contiguous; what a loaded box has past an extent is zero.
struct tensor_box {
  void const* data = nullptr;
  int element_bytes = 1;  ///< 1 or 2
  int rank = 2;
  index_t extent[3] = {};        ///< innermost first, below 2^32
  index_t stride_bytes[2] = {};  ///< of dimensions 1 and 2; multiples of 16, below 2^40
  int box[3] = {};               ///< at most 256 each; box[0] fills swizzle_bytes
  int swizzle_bytes = 128;       ///< 32, 64 or 128
};
/// Its TMA descriptor: a CUtensorMap.
struct alignas(64) tensor_map {
  std::uint64_t words[16] = {};
};

struct runtime {
  char const* architectures;  ///< what there is machine code for, as CMAKE_CUDA_ARCHITECTURES
  status (*device_count)(int* count);
  status (*get_device)(int* device);
  status (*set_device)(int device);
  status (*properties)(int device, device_properties* properties);  ///< slow: a millisecond
  status (*multiprocessors)(int device, int* count);
  status (*shared_bytes)(int device, int* bytes);  ///< that one CTA may ask for
  status (*capability)(int device, int* major, int* minor);
  status (*memory_free)(index_t* bytes);  ///< of the current device

  status (*owner)(void const* pointer, memory_owner* owner);
  status (*stream_device)(void* stream, int* device);

  status (*encode)(tensor_box const& box, tensor_map* map);  ///< nothing happens on a device
  status (*launch)(launch_config const& config);
  status (*fill)(void* data, int byte, index_t bytes, void* stream);
  status (*copy)(void* to, void const* from, index_t bytes, void* stream);  ///< any direction

  status (*allocate)(void** data, index_t bytes);  ///< on the current device
  status (*release)(void* data);
  status (*create_stream)(
      void** stream);  ///< on the current device; does not wait for the default stream
  status (*destroy_stream)(void* stream);
  status (*wait)(void* stream);
  status (*create_event)(void** event);
  status (*destroy_event)(void* event);
  status (*record)(void* event, void* stream);
  status (*elapsed)(void* begin, void* end, float* milliseconds);  ///< waits for `end`

  status (*begin_capture)(void* stream);              ///< what follows is recorded, not run
  status (*end_capture)(void* stream, void** graph);  ///< ready to be replayed
  status (*replay)(void* graph, void* stream);
  status (*destroy_graph)(void* graph);

  status (*take_error)();  ///< the last error of this thread, which is then forgotten
  char const* (*error_name)(status code);
  char const* (*error_text)(status code);
  void (*push_range)(char const* name);  ///< NVTX
  void (*pop_range)();
};

/// The CUDA runtime; in a build without it every function reports an error.
[[nodiscard]] runtime const& the_runtime();

}  // namespace moe64::cuda
