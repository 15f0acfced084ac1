#include "cuda/runtime/runtime.hpp"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <iterator>

namespace moe64::cuda {
namespace {

cudaStream_t as_stream(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t as_event(void* handle) { return static_cast<cudaEvent_t>(handle); }
std::size_t as_size(index_t bytes) { return static_cast<std::size_t>(bytes); }

status get_properties(int device, device_properties* properties) {
  cudaDeviceProp all;
  status const code = cudaGetDeviceProperties(&all, device);
  if (code != cudaSuccess) return code;
  static_assert(sizeof(all.name) == sizeof(properties->name));
  std::copy(std::begin(all.name), std::end(all.name), properties->name);
  properties->major = all.major;
  properties->minor = all.minor;
  properties->multiprocessors = all.multiProcessorCount;
  properties->memory_bytes = static_cast<index_t>(all.totalGlobalMem);
  return cudaSuccess;
}

status get_owner(void const* pointer, memory_owner* owner) {
  cudaPointerAttributes attributes = {};
  status const code = cudaPointerGetAttributes(&attributes, pointer);
  if (code != cudaSuccess) return code;
  owner->device = attributes.device;
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
      owner->where = memory_owner::kind::device;
      break;
    case cudaMemoryTypeManaged:
      owner->where = memory_owner::kind::managed;
      break;
    default:
      owner->where = memory_owner::kind::host;
  }
  return cudaSuccess;
}

/// The device of a stream cannot be queried while it is captured: that would end the capture. The
/// current device is returned instead; a launch fails by itself when the stream is of another.
status get_stream_device(cudaStream_t stream, int* device) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  status const code = cudaStreamIsCapturing(stream, &capture);
  if (code != cudaSuccess) return code;
  if (capture != cudaStreamCaptureStatusNone) return cudaGetDevice(device);
  return cudaStreamGetDevice(stream, device);
}

status launch_kernel(launch_config const& config) {
  // What a kernel may have without asking; more must be granted to the function first.
  constexpr unsigned shared_without_asking = 48U << 10;
  if (config.shared_bytes > shared_without_asking) {
    status const code =
        cudaFuncSetAttribute(config.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(config.shared_bytes));  // narrow-ok: under 256 KiB
    if (code != cudaSuccess) return code;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(config.ctas);
  launch.blockDim = dim3(config.threads);
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = as_stream(config.stream);
  cudaLaunchAttribute pdl = {};
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  launch.attrs = &pdl;
  launch.numAttrs = config.pdl ? 1 : 0;
  void* arguments[] = {const_cast<void*>(config.parameters)};
  return cudaLaunchKernelExC(&launch, config.function, arguments);
}

using encode_function = decltype(&cuTensorMapEncodeTiled);

/// The driver is asked for its function when it is first needed: the library loads without one.
encode_function find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t const code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                            12000, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<encode_function>(function);
}

CUtensorMapSwizzle swizzle_of(int bytes) {
  return bytes == 32   ? CU_TENSOR_MAP_SWIZZLE_32B
         : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : CU_TENSOR_MAP_SWIZZLE_128B;
}

status encode_map(tensor_box const& box, tensor_map* map) {
  static encode_function const encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint64_t extent[3], stride[2];
  cuuint32_t sides[3];
  constexpr cuuint32_t steps[3] = {1, 1, 1};
  for (int i = 0; i < box.rank; ++i) {
    extent[i] = static_cast<cuuint64_t>(box.extent[i]);
    sides[i] = static_cast<cuuint32_t>(box.box[i]);
    if (i > 0) stride[i - 1] = static_cast<cuuint64_t>(box.stride_bytes[i - 1]);
  }
  static_assert(sizeof(tensor_map) == sizeof(CUtensorMap));
  CUtensorMap encoded;
  CUresult const code = encode(
      &encoded,
      box.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
      static_cast<cuuint32_t>(box.rank), const_cast<void*>(box.data), extent, stride, sides, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(box.swizzle_bytes),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) return cudaErrorInvalidValue;
  std::memcpy(map->words, &encoded, sizeof(encoded));
  return cudaSuccess;
}

status end_capture(void* stream, void** graph) {
  cudaGraph_t recorded = nullptr;
  status code = cudaStreamEndCapture(as_stream(stream), &recorded);
  if (code != cudaSuccess) return code;
  code = cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(graph), recorded, 0);
  (void)cudaGraphDestroy(recorded);
  return code;
}

}  // namespace

runtime const& the_runtime() {
  static constexpr runtime table = {
      .architectures = MOE64_CUDA_ARCHITECTURES,
      .device_count = [](int* count) -> status { return cudaGetDeviceCount(count); },
      .get_device = [](int* device) -> status { return cudaGetDevice(device); },
      .set_device = [](int device) -> status { return cudaSetDevice(device); },
      .properties = get_properties,
      .multiprocessors = [](int device, int* count) -> status {
        return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
      },
      .shared_bytes = [](int device, int* bytes) -> status {
        return cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      },
      .capability = [](int device, int* major, int* minor) -> status {
        status const code =
            cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
        if (code != cudaSuccess) return code;
        return cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device);
      },
      .memory_free = [](index_t* bytes) -> status {
        std::size_t available = 0, total = 0;
        status const code = cudaMemGetInfo(&available, &total);
        *bytes = static_cast<index_t>(available);
        return code;
      },
      .owner = get_owner,
      .stream_device = [](void* stream, int* device) -> status {
        return get_stream_device(as_stream(stream), device);
      },
      .encode = encode_map,
      .launch = launch_kernel,
      .fill = [](void* data, int byte, index_t bytes, void* stream) -> status {
        return cudaMemsetAsync(data, byte, as_size(bytes), as_stream(stream));
      },
      .copy = [](void* to, void const* from, index_t bytes, void* stream) -> status {
        return cudaMemcpyAsync(to, from, as_size(bytes), cudaMemcpyDefault, as_stream(stream));
      },
      .allocate = [](void** data, index_t bytes) -> status {
        return cudaMalloc(data, as_size(bytes));
      },
      .release = [](void* data) -> status { return cudaFree(data); },
      .create_stream = [](void** stream) -> status {
        return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream),
                                         cudaStreamNonBlocking);
      },
      .destroy_stream = [](void* stream) -> status { return cudaStreamDestroy(as_stream(stream)); },
      .wait = [](void* stream) -> status { return cudaStreamSynchronize(as_stream(stream)); },
      .create_event = [](void** event) -> status {
        return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event));
      },
      .destroy_event = [](void* event) -> status { return cudaEventDestroy(as_event(event)); },
      .record = [](void* event, void* stream) -> status {
        return cudaEventRecord(as_event(event), as_stream(stream));
      },
      .elapsed = [](void* begin, void* end, float* milliseconds) -> status {
        status const code = cudaEventSynchronize(as_event(end));
        if (code != cudaSuccess) return code;
        return cudaEventElapsedTime(milliseconds, as_event(begin), as_event(end));
      },
      .begin_capture = [](void* stream) -> status {
        return cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal);
      },
      .end_capture = end_capture,
      .replay = [](void* graph, void* stream) -> status {
        return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), as_stream(stream));
      },
      .destroy_graph = [](void* graph) -> status {
        return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
      },
      .take_error = []() -> status { return cudaGetLastError(); },
      .error_name = [](status code) { return cudaGetErrorName(static_cast<cudaError_t>(code)); },
      .error_text = [](status code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); },
      .push_range = [](char const* name) { nvtxRangePushA(name); },
      .pop_range = [] { nvtxRangePop(); },
  };
  return table;
}

}  // namespace moe64::cuda
