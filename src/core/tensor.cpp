#include "moe64/tensor.hpp"

#include "core/fail.hpp"
#include "core/view.hpp"

namespace moe64 {
namespace {

void check_dimension(tensor_view const& tensor, int dimension, char const* operation) {
  if (dimension < 0 || dimension >= tensor.rank) {
    fail(errc::invalid_argument, "[{}] dimension {} of {}", operation, dimension,
         to_string(tensor));
  }
}

/// The same view, starting `offset` elements later.
tensor_view moved(tensor_view tensor, index_t offset, char const* operation) {
  index_t const shift = checked_mul(offset, bits(tensor.type));
  if (shift % 8 != 0) {
    fail(errc::invalid_argument, "[{}] element {} of {} is not at a whole byte", operation, offset,
         to_string(tensor));
  }
  if (tensor.data != nullptr) tensor.data = static_cast<char*>(tensor.data) + shift / 8;
  return tensor;
}

/// Elements that dimension d takes in a row-major array: packed rows are whole bytes.
index_t padded_extent(tensor_view const& tensor, int d) {
  bool const packed_row = bits(tensor.type) == 4 && d == tensor.rank - 1;
  return packed_row ? align_up(tensor.extent[d], 2) : tensor.extent[d];
}

}  // namespace

tensor_view tensor_view::contiguous(void const* data, dtype type,
                                    std::initializer_list<index_t> extents, moe64::device where) {
  if (extents.size() < 1 || extents.size() > max_rank) {
    fail(errc::invalid_argument, "[tensor] rank {} is not 1..{}", extents.size(), max_rank);
  }
  tensor_view tensor;
  // Views carry inputs and outputs alike; operations never write through an input.
  tensor.data = const_cast<void*>(data);
  tensor.type = type;
  tensor.device = where;
  for (index_t const extent : extents) {
    if (extent < 0) fail(errc::invalid_argument, "[tensor] extent {} is negative", extent);
    tensor.extent[tensor.rank++] = extent;
  }
  index_t stride = 1;
  for (int d = tensor.rank - 1; d >= 0; --d) {
    tensor.stride[d] = stride;
    index_t const step = padded_extent(tensor, d);
    stride = checked_mul(stride, step > 0 ? step : 1);
  }
  static_cast<void>(tensor.span_bytes());
  return tensor;
}

index_t tensor_view::size() const {
  index_t count = rank == 0 ? 0 : 1;
  for (int d = 0; d < rank; ++d) count = checked_mul(count, extent[d]);
  return count;
}

index_t tensor_view::span() const {
  index_t last = 0;
  for (int d = 0; d < rank; ++d) {
    if (extent[d] == 0) return 0;
    last = checked_add(last, checked_mul(extent[d] - 1, stride[d]));
  }
  return rank == 0 ? 0 : checked_add(last, 1);
}

index_t tensor_view::span_bytes() const {
  // Bytes of bits, not bits of elements: the largest size that fits must not overflow on the way.
  return bits(type) < 8 ? ceil_div(span(), 8 / bits(type)) : checked_mul(span(), bits(type) / 8);
}

bool tensor_view::is_contiguous() const {
  if (size() == 0) return true;
  index_t expected = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (extent[d] != 1 && stride[d] != expected) return false;
    expected = checked_mul(expected, padded_extent(*this, d));
  }
  return true;
}

tensor_view tensor_view::slice(int dimension, index_t begin, index_t end) const {
  check_dimension(*this, dimension, "slice");
  if (begin < 0 || end < begin || end > extent[dimension]) {
    fail(errc::invalid_argument, "[slice] [{}, {}) of dimension {} of {}", begin, end, dimension,
         to_string(*this));
  }
  tensor_view result = moved(*this, checked_mul(begin, stride[dimension]), "slice");
  result.extent[dimension] = end - begin;
  return result;
}

tensor_view tensor_view::every(int dimension, index_t begin, index_t step) const {
  check_dimension(*this, dimension, "every");
  if (begin < 0 || step < 1 || begin > extent[dimension]) {
    fail(errc::invalid_argument, "[every] element {} step {} of dimension {} of {}", begin, step,
         dimension, to_string(*this));
  }
  tensor_view result = moved(*this, checked_mul(begin, stride[dimension]), "every");
  result.extent[dimension] = ceil_div(extent[dimension] - begin, step);
  result.stride[dimension] = checked_mul(stride[dimension], step);
  return result;
}

tensor_view tensor_view::transposed() const {
  check_dimension(*this, 1, "transposed");
  tensor_view result = *this;
  int const last = rank - 1;
  result.extent[last] = extent[last - 1];
  result.stride[last] = stride[last - 1];
  result.extent[last - 1] = extent[last];
  result.stride[last - 1] = stride[last];
  return result;
}

tensor_view tensor_view::as_matrix() const {
  if (rank == 2) return *this;
  check_dimension(*this, 0, "as_matrix");
  tensor_view result = *this;
  result.rank = 2;
  result.extent[2] = result.stride[2] = 0;
  if (rank == 1) {
    result.extent[0] = 1;
    result.stride[0] = span();
    result.extent[1] = extent[0];
    result.stride[1] = stride[0];
    return result;
  }
  bool const folds =
      extent[0] <= 1 || extent[1] == 0 || stride[0] == checked_mul(extent[1], stride[1]);
  if (!folds) {
    fail(errc::shape_mismatch, "[as_matrix] leading dimensions of {} do not fold into one",
         to_string(*this));
  }
  result.extent[0] = checked_mul(extent[0], extent[1]);
  result.stride[0] = stride[1];
  result.extent[1] = extent[2];
  result.stride[1] = stride[2];
  return result;
}

tensor_view tensor_view::as_stack() const {
  if (rank == 3) return *this;
  if (rank != 2) fail(errc::shape_mismatch, "[as_stack] {} is not a matrix", to_string(*this));
  tensor_view result = *this;
  result.rank = 3;
  result.extent[0] = 1;
  result.stride[0] = 0;
  for (int d = 0; d < 2; ++d) {
    result.extent[d + 1] = extent[d];
    result.stride[d + 1] = stride[d];
  }
  return result;
}

std::string to_string(moe64::device where) {
  return where.kind == device_kind::cpu ? std::string("cpu")
                                        : fmt::format("cuda:{}", where.ordinal);
}

std::string to_string(tensor_view const& tensor) {
  if (!tensor.present()) return "(absent)";
  std::string text = "[";
  for (int d = 0; d < tensor.rank; ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ", ", tensor.extent[d]);
  }
  text += fmt::format("] {} {}", name(tensor.type), to_string(tensor.device));
  index_t expected = 1;
  bool usual = true;
  for (int d = tensor.rank - 1; d >= 0; --d) {
    usual = usual && (tensor.extent[d] <= 1 || tensor.stride[d] == expected);
    // Messages are made of any extents, also of those that do not fit: nothing here may throw.
    index_t step = tensor.extent[d] == 0 ? 1 : tensor.extent[d];
    bool const odd_row = bits(tensor.type) == 4 && d == tensor.rank - 1 && step % 2 != 0;
    if (__builtin_add_overflow(step, odd_row ? 1 : 0, &step)) break;
    if (__builtin_mul_overflow(expected, step, &expected)) break;
  }
  if (!usual) {
    text += " strides";
    for (int d = 0; d < tensor.rank; ++d) text += fmt::format(" {}", tensor.stride[d]);
  }
  return text;
}

}  // namespace moe64
