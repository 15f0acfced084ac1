#include "capi/convert.hpp"
#include "capi/guarded.hpp"

using namespace moe64::capi;

extern "C" {

moe64_status moe64_contiguous(const void* data, moe64_dtype dtype, uint8_t rank,
                              const int64_t* extents, moe64_device device, moe64_tensor* tensor) {
  return guarded([&] {
    argument const at("contiguous");
    auto const type = to_cpp_dtype(dtype, at);
    auto const where = to_cpp(device, at["device"]);
    int64_t const* e = &required(extents, at["extents"]);
    auto& out = required(tensor, at["tensor"]);
    using moe64::tensor_view;
    switch (rank) {
      case 1:
        out = to_c(tensor_view::contiguous(data, type, {e[0]}, where));
        return;
      case 2:
        out = to_c(tensor_view::contiguous(data, type, {e[0], e[1]}, where));
        return;
      case 3:
        out = to_c(tensor_view::contiguous(data, type, {e[0], e[1], e[2]}, where));
        return;
      default:
        moe64::fail(moe64::errc::invalid_argument, "{} rank is {}, not one of 1 to {}", at.text(),
                    rank, moe64::max_rank);
    }
  });
}

moe64_status moe64_split_gate_up(const moe64_tensor* fused, moe64_gate_up_layout layout,
                                 moe64_tensor* halves) {
  return guarded([&] {
    argument const at("split_gate_up");
    auto const both = to_cpp(required(fused, at["fused"]), at["fused"]);
    auto const how = enumerator(layout, moe64::gate_up_layout::interleaved, at["layout"]);
    moe64_tensor* out = &required(halves, at["halves"]);
    auto const split = moe64::split_gate_up(both, how);
    out[0] = to_c(split[0]);
    out[1] = to_c(split[1]);
  });
}

}  // extern "C"
