#include "cuda/gemm/sm90/operands.hpp"

#include "core/fail.hpp"
#include "cuda/runtime/device.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace moe64::cuda::sm90 {
namespace {

constexpr index_t block = 128;
/// Kernels count rows, outputs, k, experts and places with ints, up to one tile past the end.
constexpr index_t most_extent = std::numeric_limits<int>::max() - 1024;

int blocks_in(index_t per, index_t extent) {
  index_t const blocks =
      per >= extent ? ceil_div(std::max<index_t>(extent, 1), block) : per / block;
  return static_cast<int>(blocks);  // narrow-ok: extents are ints
}

support has_hopper(moe64::device where) {
  int major = 0, minor = 0;
  if (the_runtime().capability(where.ordinal, &major, &minor) != 0) {
    (void)the_runtime().take_error();  // or the next launch would report it as its own
    return support::no(fmt::format("{} does not tell its compute capability", to_string(where)));
  }
  if (major == 9 && minor == 0) return support::yes();
  return support::no(
      fmt::format("{} has compute capability {}.{}, not 9.0", to_string(where), major, minor));
}

/// Contiguous rows that TMA can address.
support takes_rows(char const* argument, tensor_view const& values) {
  index_t const size = bits(values.type);
  constexpr index_t most_bits = index_t{8} << 40;
  auto const aligned = [&](index_t stride) {
    return stride >= 0 && stride < most_bits / size && stride * size % 128 == 0;
  };
  bool const data = reinterpret_cast<std::uintptr_t>(values.data) % 16 == 0;
  if (!data || values.stride[2] != 1 || !aligned(values.stride[1]) || !aligned(values.stride[0])) {
    return support::no(
        fmt::format("{} {} does not begin contiguous rows at multiples of 16 bytes below 2^40",
                    argument, to_string(values)));
  }
  if (std::max({values.extent[0], values.extent[1], values.extent[2]}) > most_extent) {
    return support::no(
        fmt::format("{} {} has an extent past {}", argument, to_string(values), most_extent));
  }
  return support::yes();
}

}  // namespace

support takes_call(grouped_gemm_args const& args) {
  if (args.x.cols() == 0 || args.x.rows() == 0 || args.y.extent[1] == 0 ||
      args.weights.experts() == 0) {
    return support::no("there is nothing to multiply");
  }
  if (support const x = takes_rows("x", args.x.values()); !x) return x;
  if (index_t const experts = args.weights.experts(); experts > most_extent) {
    return support::no(fmt::format("weights have {} experts, more than {}", experts, most_extent));
  }
  for (int part = 0; part < args.weights.parts(); ++part) {
    quantized_view const& q = args.weights.part(part);
    if (support const rows = takes_rows("weights", q.values()); !rows) return rows;
    if (q.scales().extent[0] > most_extent) {
      return support::no(
          fmt::format("scales {} have more than {} places", to_string(q.scales()), most_extent));
    }
  }
  if (args.y.type == dtype::f32 || args.y.stride[1] != 1) {
    return support::no(fmt::format("y {} is not of contiguous rows in 16 bits", to_string(args.y)));
  }
  return has_hopper(args.y.device);
}

index_t rows_per_expert(grouped_gemm_args const& args) {
  return ceil_div(args.x.rows(), std::max<index_t>(args.weights.experts(), 1));
}

bool whole_blocks(index_t per, index_t extent) { return per % block == 0 || per >= extent; }

bool one_per_row(quantized_view const& q) {
  return q.layout().rows_per_scale(q.rows()) == 1 &&
         q.layout().cols_per_scale(q.cols()) >= q.cols();
}

support takes_scale_type(quantized_view const& q) {
  dtype const type = q.scales().type;
  if (type == dtype::f32 || type == dtype::bf16 || type == dtype::e8m0) return support::yes();
  return support::no(fmt::format("scales are {}, not f32, bf16 or e8m0", name(type)));
}

support takes_weight_scales(quantized_view const& weights) {
  if (weights.global().values.present()) return support::no("weights have a global scale");
  if (support const type = takes_scale_type(weights); !type) return type;
  bool const blocks =
      whole_blocks(weights.layout().rows_per_scale(weights.rows()), weights.rows()) &&
      whole_blocks(weights.layout().cols_per_scale(weights.cols()), weights.cols());
  if (blocks || one_per_row(weights)) return support::yes();
  return support::no(fmt::format("weights have scale {}: neither rows nor whole blocks of {}",
                                 to_string(weights.layout()), block));
}

block_scales scales_of(quantized_view const& q) {
  tensor_view const& scales = q.scales();
  bool const one_along_k = q.layout().cols_per_scale(q.cols()) >= q.cols();
  return {.data = scales.data,
          .type = scales.type,
          .expert = scales.stride[0],
          .n = scales.stride[1],
          .k = one_along_k ? 0 : scales.stride[2],
          .n_blocks = blocks_in(q.layout().rows_per_scale(q.rows()), q.rows()),
          .k_blocks = one_along_k ? 1 : blocks_in(q.layout().cols_per_scale(q.cols()), q.cols())};
}

bool has_vec8(tensor_view const& y, index_t n_part) {
  return reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.stride[0] % 8 == 0 &&
         n_part % 8 == 0;
}

tensor_map encoder::operator()(tensor_box const& box) const {
  tensor_map map;
  if (status const code = the_runtime().encode(box, &map); code != 0) {
    fail(errc::device_failure,
         "[grouped_gemm] {}: TMA takes no boxes {} of {} elements of {} bytes in "
         "strides of {} bytes: {}",
         to_string(where_.device), fmt::join(box.box, box.box + box.rank, " x "),
         fmt::join(box.extent, box.extent + box.rank, " x "), box.element_bytes,
         fmt::join(box.stride_bytes, box.stride_bytes + box.rank - 1, ", "),
         the_runtime().error_name(code));
  }
  return map;
}

tensor_map map_of_y(tensor_view const& y, int parts, index_t n_part, int rows,
                    encoder const& encode) {
  return encode({.data = y.data,
                 .element_bytes = 2,
                 .rank = 3,
                 .extent = {n_part, parts, y.extent[0]},
                 .stride_bytes = {n_part * 2, y.stride[0] * 2},
                 .box = {y_box_outs, 1, rows}});
}

}  // namespace moe64::cuda::sm90
