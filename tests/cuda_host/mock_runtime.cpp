#include "cuda_host/mock_runtime.hpp"

#include <cstdio>
#include <cstring>

namespace moe64::test {
namespace {

thread_local int current = 0;
thread_local cuda::status last = 0;
thread_local std::vector<std::string> ranges;

char const* error_name_of(cuda::status code) {
  switch (code) {
    case 0:
      return "cudaSuccess";
    case invalid_value:
      return "cudaErrorInvalidValue";
    case out_of_memory:
      return "cudaErrorMemoryAllocation";
    case invalid_configuration:
      return "cudaErrorInvalidConfiguration";
    case no_device:
      return "cudaErrorNoDevice";
    case invalid_device:
      return "cudaErrorInvalidDevice";
    case invalid_handle:
      return "cudaErrorInvalidResourceHandle";
    case illegal_address:
      return "cudaErrorIllegalAddress";
    case launch_failure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorUnknown";
  }
}

}  // namespace

std::vector<runtime_call> every_call() {
  std::vector<runtime_call> all;
  for (int i = 0; i <= static_cast<int>(runtime_call::destroy_graph); ++i) {
    all.push_back(static_cast<runtime_call>(i));
  }
  return all;
}

std::string name(runtime_call call) {
  constexpr char const* names[] = {
      "device_count",  "get_device",    "set_device",     "properties",    "multiprocessors",
      "shared_bytes",  "capability",    "memory_free",    "owner",         "stream_device",
      "encode",        "launch",        "fill",           "copy",          "allocate",
      "release",       "create_stream", "destroy_stream", "wait",          "create_event",
      "destroy_event", "record",        "elapsed",        "begin_capture", "end_capture",
      "replay",        "destroy_graph"};
  return names[static_cast<int>(call)];
}

mock_cuda& mock_cuda::machine() {
  static mock_cuda only;
  return only;
}

void mock_cuda::reset() {
  std::lock_guard const lock(mutex_);
  launches_.clear();
  calls_.clear();
  failures_.clear();
  sticky_ = 0;
  has_devices_ = true;
  count_error_ = 0;
  major_ = 9;
  shared_bytes_ = 227 << 10;
  current = 0;
  last = 0;
  ranges.clear();
}

std::vector<mock_cuda::launched> mock_cuda::launches() const {
  std::lock_guard const lock(mutex_);
  return launches_;
}

int mock_cuda::calls(runtime_call call) const {
  std::lock_guard const lock(mutex_);
  auto const found = calls_.find(call);
  return found == calls_.end() ? 0 : found->second;
}

int mock_cuda::current_device() const { return current; }
void mock_cuda::make_current(int device) { current = device; }
int mock_cuda::open_ranges() const { return static_cast<int>(ranges.size()); }
cuda::status mock_cuda::last_error() const { return last; }
void mock_cuda::leave_error(cuda::status code) { last = code; }

index_t mock_cuda::live_allocations() const {
  std::lock_guard const lock(mutex_);
  return static_cast<index_t>(memory_.size());
}
index_t mock_cuda::live_handles() const {
  std::lock_guard const lock(mutex_);
  return static_cast<index_t>(handles_.size());
}

void mock_cuda::fail(runtime_call call, cuda::status code, int successes) {
  std::lock_guard const lock(mutex_);
  failures_[call] = {code, successes};
}
void mock_cuda::make_capability(int major) {
  std::lock_guard const lock(mutex_);
  major_ = major;
}
void mock_cuda::make_shared_bytes(int bytes) {
  std::lock_guard const lock(mutex_);
  shared_bytes_ = bytes;
}
void mock_cuda::fail_for_good(cuda::status code) {
  std::lock_guard const lock(mutex_);
  sticky_ = code;
}
void mock_cuda::remove_devices(cuda::status code) {
  std::lock_guard const lock(mutex_);
  has_devices_ = false;
  count_error_ = code;
}

template <class Work>
cuda::status mock_cuda::call(runtime_call what, Work const& work) {
  std::lock_guard const lock(mutex_);
  ++calls_[what];
  cuda::status code = sticky_;
  auto const found = failures_.find(what);
  if (code == 0 && found != failures_.end()) {
    if (found->second.successes-- == 0) {
      code = found->second.code;
      failures_.erase(found);
    }
  }
  // What gives something back has done so when it reports an error of earlier work.
  bool const gives_back = what == runtime_call::release || what == runtime_call::destroy_stream ||
                          what == runtime_call::destroy_event ||
                          what == runtime_call::destroy_graph;
  if (code == 0 || gives_back) {
    cuda::status const done = work();
    if (code == 0) code = done;
  }
  if (code != 0) last = code;
  return code;
}

/// The functions of the table, which have no state of their own.
struct mock_table {
  static mock_cuda& m() { return mock_cuda::machine(); }
  static bool exists(int device) { return device >= 0 && device < mock_cuda::devices; }

  static cuda::status device_count(int* count) {
    return m().call(runtime_call::device_count, [&] {
      *count = m().has_devices_ ? mock_cuda::devices : 0;
      return m().count_error_;
    });
  }
  static cuda::status get_device(int* device) {
    return m().call(runtime_call::get_device, [&] {
      *device = current;
      return 0;
    });
  }
  static cuda::status set_device(int device) {
    return m().call(runtime_call::set_device, [&] {
      if (!exists(device)) return invalid_device;
      current = device;
      return 0;
    });
  }
  static cuda::status properties(int device, cuda::device_properties* properties) {
    return m().call(runtime_call::properties, [&] {
      if (!exists(device)) return invalid_device;
      std::snprintf(properties->name, sizeof(properties->name), "mock %d", device);
      properties->major = 9;
      properties->multiprocessors = mock_cuda::multiprocessors;
      properties->memory_bytes = index_t{80} << 30;
      return 0;
    });
  }
  static cuda::status multiprocessors(int device, int* count) {
    return m().call(runtime_call::multiprocessors, [&] {
      *count = mock_cuda::multiprocessors;
      return exists(device) ? 0 : invalid_device;
    });
  }
  static cuda::status capability(int device, int* major, int* minor) {
    return m().call(runtime_call::capability, [&] {
      *major = m().major_;
      *minor = 0;
      return exists(device) ? 0 : invalid_device;
    });
  }
  static cuda::status encode(cuda::tensor_box const& box, cuda::tensor_map* map) {
    return m().call(runtime_call::encode, [&] {
      *map = {};
      bool legal_box = reinterpret_cast<std::uintptr_t>(box.data) % 16 == 0;
      for (int i = 0; i < box.rank; ++i) {
        legal_box &= box.extent[i] > 0 && box.extent[i] <= index_t{1} << 32;
        legal_box &= box.box[i] > 0 && box.box[i] <= 256;
        if (i > 0) legal_box &= box.stride_bytes[i - 1] % 16 == 0;
      }
      return legal_box ? 0 : invalid_value;
    });
  }
  static cuda::status shared_bytes(int device, int* bytes) {
    return m().call(runtime_call::shared_bytes, [&] {
      *bytes = m().shared_bytes_;
      return exists(device) ? 0 : invalid_device;
    });
  }
  static cuda::status memory_free(index_t* bytes) {
    return m().call(runtime_call::memory_free, [&] {
      *bytes = index_t{79} << 30;
      return 0;
    });
  }
  static cuda::status owner(void const* pointer, cuda::memory_owner* owner) {
    return m().call(runtime_call::owner, [&] {
      *owner = {};
      auto const* const byte = static_cast<unsigned char const*>(pointer);
      auto next = m().memory_.upper_bound(byte);
      if (next == m().memory_.begin()) return 0;
      auto const& [begin, memory] = *--next;
      if (byte < begin + memory.bytes) {
        *owner = {cuda::memory_owner::kind::device, memory.device};
      }
      return 0;
    });
  }
  /// The device of a stream: the default streams are those of the current device.
  static cuda::status device_of(void const* stream, int* device) {
    if (stream == nullptr) {
      *device = current;
      return 0;
    }
    auto const found = m().handles_.find(stream);
    if (found == m().handles_.end()) return invalid_handle;
    *device = found->second;
    return 0;
  }
  static cuda::status stream_device(void* stream, int* device) {
    return m().call(runtime_call::stream_device, [&] { return device_of(stream, device); });
  }
  /// Work may be queued on streams of the current device only.
  static cuda::status queue(void const* stream) {
    int device = -1;
    cuda::status const code = device_of(stream, &device);
    if (code != 0) return code;
    return device == current ? 0 : invalid_handle;
  }
  static cuda::status launch(cuda::launch_config const& config) {
    return m().call(runtime_call::launch, [&] {
      bool const possible = config.ctas >= 1 && config.ctas <= 0x7fffffffU && config.threads >= 1 &&
                            config.threads <= 1024 &&
                            config.shared_bytes <= static_cast<unsigned>(m().shared_bytes_);
      if (!possible) return invalid_configuration;
      if (config.function == nullptr || config.parameters == nullptr) return invalid_value;
      cuda::status const code = queue(config.stream);
      if (code != 0) return code;
      std::string path;
      for (std::string const& range : ranges) path += (path.empty() ? "" : "/") + range;
      m().launches_.push_back({config, current, std::this_thread::get_id(), path});
      return 0;
    });
  }
  static cuda::status fill(void* data, int byte, index_t bytes, void* stream) {
    return m().call(runtime_call::fill, [&] {
      cuda::status const code = queue(stream);
      if (code == 0) std::memset(data, byte, static_cast<std::size_t>(bytes));
      return code;
    });
  }
  static cuda::status copy(void* to, void const* from, index_t bytes, void* stream) {
    return m().call(runtime_call::copy, [&] {
      cuda::status const code = queue(stream);
      if (code == 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
      return code;
    });
  }
  static cuda::status allocate(void** data, index_t bytes) {
    return m().call(runtime_call::allocate, [&] {
      if (bytes > index_t{80} << 30) return out_of_memory;
      // Aligned as cudaMalloc aligns.
      constexpr std::size_t alignment = 256;
      auto memory = std::make_unique<unsigned char[]>(static_cast<std::size_t>(bytes) + alignment);
      auto const place = reinterpret_cast<std::uintptr_t>(memory.get());
      unsigned char* const begin = memory.get() + (alignment - place % alignment);
      *data = begin;
      m().memory_[begin] = {bytes, current, std::move(memory)};
      return 0;
    });
  }
  static cuda::status release(void* data) {
    return m().call(runtime_call::release, [&] {
      return m().memory_.erase(static_cast<unsigned char*>(data)) == 1 ? 0 : invalid_value;
    });
  }
  static cuda::status create(runtime_call what, void** handle) {
    return m().call(what, [&] {
      *handle = reinterpret_cast<void*>(m().next_handle_ += 0x10);
      m().handles_[*handle] = current;
      return 0;
    });
  }
  static cuda::status destroy(runtime_call what, void* handle) {
    return m().call(what, [&] { return m().handles_.erase(handle) == 1 ? 0 : invalid_handle; });
  }
  static cuda::status create_stream(void** stream) {
    return create(runtime_call::create_stream, stream);
  }
  static cuda::status destroy_stream(void* stream) {
    return destroy(runtime_call::destroy_stream, stream);
  }
  static cuda::status create_event(void** event) {
    return create(runtime_call::create_event, event);
  }
  static cuda::status destroy_event(void* event) {
    return destroy(runtime_call::destroy_event, event);
  }
  static cuda::status wait(void* stream) {
    return m().call(runtime_call::wait, [&] {
      int device = -1;
      return device_of(stream, &device);
    });
  }
  static cuda::status record(void* event, void* stream) {
    return m().call(runtime_call::record, [&] {
      int event_device = -1, stream_device = -1;
      if (device_of(event, &event_device) != 0) return invalid_handle;
      if (device_of(stream, &stream_device) != 0) return invalid_handle;
      return event_device == stream_device ? 0 : invalid_handle;
    });
  }
  static cuda::status elapsed(void* begin, void* end, float* milliseconds) {
    return m().call(runtime_call::elapsed, [&] {
      *milliseconds = 1.5F;
      return m().handles_.contains(begin) && m().handles_.contains(end) ? 0 : invalid_handle;
    });
  }
  static cuda::status begin_capture(void* stream) {
    return m().call(runtime_call::begin_capture,
                    [&] { return stream == nullptr ? invalid_value : queue(stream); });
  }
  static cuda::status end_capture(void* stream, void** graph) {
    cuda::status const code = create(runtime_call::end_capture, graph);
    return code == 0 ? queue(stream) : code;
  }
  static cuda::status replay(void* graph, void* stream) {
    return m().call(runtime_call::replay,
                    [&] { return m().handles_.contains(graph) ? queue(stream) : invalid_handle; });
  }
  static cuda::status destroy_graph(void* graph) {
    return destroy(runtime_call::destroy_graph, graph);
  }
  static cuda::status take_error() {
    std::lock_guard const lock(m().mutex_);
    cuda::status const code = m().sticky_ != 0 ? m().sticky_ : last;
    last = 0;
    return code;
  }
};

}  // namespace moe64::test

namespace moe64::cuda {

runtime const& the_runtime() {
  using test::mock_table;
  static constexpr runtime table = {
      .architectures = "70-real 75-real",
      .device_count = mock_table::device_count,
      .get_device = mock_table::get_device,
      .set_device = mock_table::set_device,
      .properties = mock_table::properties,
      .multiprocessors = mock_table::multiprocessors,
      .shared_bytes = mock_table::shared_bytes,
      .capability = mock_table::capability,
      .memory_free = mock_table::memory_free,
      .owner = mock_table::owner,
      .stream_device = mock_table::stream_device,
      .encode = mock_table::encode,
      .launch = mock_table::launch,
      .fill = mock_table::fill,
      .copy = mock_table::copy,
      .allocate = mock_table::allocate,
      .release = mock_table::release,
      .create_stream = mock_table::create_stream,
      .destroy_stream = mock_table::destroy_stream,
      .wait = mock_table::wait,
      .create_event = mock_table::create_event,
      .destroy_event = mock_table::destroy_event,
      .record = mock_table::record,
      .elapsed = mock_table::elapsed,
      .begin_capture = mock_table::begin_capture,
      .end_capture = mock_table::end_capture,
      .replay = mock_table::replay,
      .destroy_graph = mock_table::destroy_graph,
      .take_error = mock_table::take_error,
      .error_name = test::error_name_of,
      .error_text = [](status) { return "as the mock says"; },
      .push_range = [](char const* name) { test::ranges.emplace_back(name); },
      .pop_range = [] { test::ranges.pop_back(); },
  };
  return table;
}

}  // namespace moe64::cuda
