#include "moe64/c/cuda.h"

#include "capi/convert.hpp"
#include "capi/guarded.hpp"
#include "capi/text_buffer.hpp"
#include "moe64/cuda.hpp"

#include <memory>

struct moe64_cuda_buffer {
  moe64::cuda_buffer memory;
};

using namespace moe64::capi;

extern "C" {

moe64_status moe64_cuda_devices(int64_t* devices, char* reason, int64_t reason_bytes) {
  return guarded([&] {
    argument const at("cuda_devices");
    auto& out = required(devices, at["devices"]);
    text_buffer const text(reason, reason_bytes, at);
    out = moe64::cuda_device_count();
    text.assign(moe64::cuda_support().reason());
  });
}

moe64_status moe64_cuda_buffer_create(int64_t bytes, moe64_device device,
                                      moe64_cuda_buffer** buffer, moe64_workspace* memory) {
  return guarded([&] {
    argument const at("cuda_buffer_create");
    auto& out = required(buffer, at["buffer"]);
    auto& lent = required(memory, at["memory"]);
    auto const where = to_cpp(device, at["device"]);
    auto created =
        std::make_unique<moe64_cuda_buffer>(moe64_cuda_buffer{moe64::cuda_buffer(bytes, where)});
    lent = {};
    lent.data = created->memory.memory().data;
    lent.bytes = bytes;
    lent.device = device;
    out = created.release();
  });
}

void moe64_cuda_buffer_destroy(moe64_cuda_buffer* buffer) { delete buffer; }

moe64_status moe64_cuda_copy(void* to, const void* from, int64_t bytes, moe64_stream stream) {
  return guarded([&] {
    argument const at("cuda_copy");
    if (bytes < 0 || (bytes > 0 && (to == nullptr || from == nullptr))) {
      moe64::fail(moe64::errc::invalid_argument, "{} {} bytes from {} to {}", at.text(), bytes,
                  from, to);
    }
    moe64::cuda_copy(to, from, bytes, to_cpp(stream, at["stream"]));
  });
}

moe64_status moe64_cuda_wait(moe64_stream stream) {
  return guarded([&] {
    argument const at("cuda_wait");
    moe64::cuda_wait(to_cpp(stream, at["stream"]));
  });
}

}  // extern "C"
