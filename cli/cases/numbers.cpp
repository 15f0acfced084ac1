#include "cases/numbers.hpp"

#include "cases/arena.hpp"
#include "cases/parallel.hpp"
#include "oracle/oracle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

namespace moe64::cases {
namespace {

constexpr int table_bits = 14;
constexpr std::size_t table_size = std::size_t{1} << table_bits;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

std::uint64_t key_of(std::uint64_t seed, tensor_id tensor) {
  return mix(seed * 0x9e3779b97f4a7c15U + mix(static_cast<std::uint64_t>(tensor) + 1));
}

std::uint64_t bits_of(std::uint64_t key, index_t element) {
  return mix(key + static_cast<std::uint64_t>(element) * 0x9e3779b97f4a7c15U);
}

/// Finds the code of the number that is nearest to a value: by looking through all numbers of the
/// type, as the oracle reads them.
class code_book {
 public:
  explicit code_book(dtype type) : type_(type) {
    if (type == dtype::f32) return;
    std::uint32_t const count = 1U << bits(type);
    for (std::uint32_t code = 0; code < count; ++code) {
      double const number = oracle::load(&code, type, 0);  // little-endian, the lower nibble first
      if (std::isfinite(number)) entries_.push_back({number, code});
    }
    std::stable_sort(entries_.begin(), entries_.end(), [](entry const& left, entry const& right) {
      return left.number < right.number;
    });
  }

  [[nodiscard]] std::uint32_t nearest(double value) const {
    if (type_ == dtype::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    auto const above =
        std::lower_bound(entries_.begin(), entries_.end(), value,
                         [](entry const& e, double wanted) { return e.number < wanted; });
    if (above == entries_.begin()) return above->code;
    if (above == entries_.end()) return entries_.back().code;
    auto const below = above - 1;
    return value - below->number < above->number - value ? below->code : above->code;
  }

 private:
  struct entry {
    double number;
    std::uint32_t code;
  };
  dtype type_;
  std::vector<entry> entries_;
};

/// The x with that probability below it, for a probability of at most one half.
double normal_quantile(double probability) {
  // Newton's method from the logistic distribution of the same deviation, whose tail is the longer
  // one.
  double x = 0.551328895 * std::log(probability / (1.0 - probability));
  for (int i = 0; i < 8; ++i) {
    double const below = 0.5 * std::erfc(-x * 0.7071067811865476);
    double const density = 0.3989422804014327 * std::exp(-0.5 * x * x);
    x -= (below - probability) / std::max(density, 0.2 * probability);
  }
  return x;
}

/// Calls store(i, code) for count elements; four 16-bit draws come from one hash.
template <class Store>
void draw(std::vector<std::uint32_t> const& codes, std::uint64_t key, index_t first, index_t count,
          Store&& store) {
  std::uint64_t hash = bits_of(key, first / 4) >> (16 * (first % 4));
  for (index_t i = 0; i < count; ++i) {
    if ((first + i) % 4 == 0) hash = bits_of(key, (first + i) / 4);
    store(i, codes[hash & (table_size - 1)]);
    hash >>= 16U;
  }
}

}  // namespace

std::uint64_t random_bits(std::uint64_t seed, tensor_id tensor, index_t element) {
  return bits_of(key_of(seed, tensor), element);
}

number_source::number_source(dtype type, std::vector<double> const& numbers) : type_(type) {
  code_book const book(type);
  codes_.reserve(numbers.size());
  for (double const number : numbers) codes_.push_back(book.nearest(number));
}

number_source number_source::normal(dtype type, double deviation) {
  std::vector<double> numbers(table_size);
  for (std::size_t i = 0; i < table_size / 2; ++i) {
    double const quantile =
        normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(table_size));
    numbers[i] = deviation * quantile;
    numbers[table_size - 1 - i] = -deviation * quantile;
  }
  return {type, numbers};
}

number_source number_source::spread(dtype type, double low, double high) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < table_size; ++i) {
    double const p = (static_cast<double>(i) + 0.5) / static_cast<double>(table_size);
    numbers.push_back(low * std::pow(high / low, p));
  }
  return {type, numbers};
}

number_source number_source::one_of(dtype type, std::vector<double> const& values) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < table_size; ++i) numbers.push_back(values[i % values.size()]);
  return {type, numbers};
}

number_source number_source::sparse_signs(dtype type, double density) {
  double const pairs = density * static_cast<double>(table_size) / 2.0;
  auto const signs = static_cast<std::size_t>(
      std::clamp(std::round(pairs), 1.0, static_cast<double>(table_size) / 2.0));
  std::vector<double> numbers(table_size, 0.0);
  std::fill_n(numbers.begin(), signs, 1.0);
  std::fill_n(numbers.rbegin(), signs, -1.0);
  return {type, numbers};
}

void number_source::fill_row(tensor_view const& tensor, index_t offset, index_t first_element,
                             index_t count, std::uint64_t key) const {
  auto* const bytes = static_cast<unsigned char*>(tensor.data) + offset * bits(type_) / 8;
  switch (bits(type_)) {
    case 4:
      draw(codes_, key, first_element, count, [&](index_t i, std::uint32_t code) {
        unsigned char& byte = bytes[i / 2];
        // A half that no element owns stays poisoned.
        byte =
            static_cast<unsigned char>(i % 2 == 0 ? code | 0xf0U : (byte & 0x0fU) | (code << 4U));
      });
      break;
    case 8:
      draw(codes_, key, first_element, count,
           [&](index_t i, std::uint32_t code) { bytes[i] = static_cast<unsigned char>(code); });
      break;
    default: {
      index_t const width = bits(type_) / 8;
      draw(codes_, key, first_element, count, [&](index_t i, std::uint32_t code) {
        std::memcpy(bytes + i * width, &code, static_cast<std::size_t>(width));
      });
    }
  }
}

void number_source::fill(tensor_view const& tensor, std::uint64_t seed, tensor_id id, index_t begin,
                         index_t end, cpu_executor* executor) const {
  std::uint64_t const key = key_of(seed, id);
  if (tensor.rank == 1) {
    fill_row(tensor, begin, begin, end - begin, key);
    return;
  }
  index_t const rows = tensor.rank == 3 ? tensor.extent[1] : 1;
  index_t const cols = tensor.extent[tensor.rank - 1];
  parallel_for(executor, (end - begin) * rows, [&](index_t i) {
    index_t const outer = begin + i / rows;
    index_t const row = i % rows;
    index_t const offset =
        outer * tensor.stride[0] + (tensor.rank == 3 ? row * tensor.stride[1] : 0);
    fill_row(tensor, offset, (outer * rows + row) * cols, cols, key);
  });
}

void poison(tensor_view const& tensor, index_t begin, index_t end) {
  if (begin >= end) return;
  index_t const width = bits(tensor.type);
  auto* const bytes = static_cast<unsigned char*>(tensor.data);
  std::memset(bytes + begin * tensor.stride[0] * width / 8, poison_byte,
              static_cast<std::size_t>((end - begin) * tensor.stride[0] * width / 8));
}

}  // namespace moe64::cases
