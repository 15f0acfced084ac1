#include "capi/convert.hpp"
#include "capi/guarded.hpp"

#include <span>

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

moe64_status moe64_place_matrices(const void* const* matrices, int64_t count,
                                  const moe64_tensor* like, int64_t step, int64_t* table,
                                  moe64_tensor* stack) {
  return guarded([&] {
    argument const at("place_matrices");
    if (count < 0) {
      moe64::fail(moe64::errc::invalid_argument, "{} count is {}", at.text(), count);
    }
    auto const each = to_cpp(required(like, at["like"]), at["like"]);
    auto& out = required(stack, at["stack"]);
    auto const entries = static_cast<std::size_t>(count);
    std::span<void const* const> given;
    std::span<moe64::index_t> places;
    if (count > 0) {
      given = {&required(matrices, at["matrices"]), entries};
      places = {&required(table, at["table"]), entries};
    }
    out = to_c(moe64::place_matrices(given, each, step, places));
  });
}

}  // extern "C"
