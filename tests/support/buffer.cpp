#include "support/buffer.hpp"

#include "oracle/oracle.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace moe64::test {
namespace {

// AddressSanitizer has better canaries: without a fence memory is then as long as the array.
#if defined(__SANITIZE_ADDRESS__)
constexpr index_t canary_bytes = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr index_t canary_bytes = 0;
#else
constexpr index_t canary_bytes = 256;
#endif
#else
constexpr index_t canary_bytes = 256;
#endif
constexpr std::align_val_t alignment{workspace_alignment};

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

/// A key that orders all numbers, -0 before 0, and gives every NaN one place.
std::uint64_t key_of(double value) {
  return std::isnan(value) ? 0x7ff8000000000000U : std::bit_cast<std::uint64_t>(value);
}

std::map<std::uint64_t, std::uint64_t> codes_by_number(dtype type) {
  std::map<std::uint64_t, std::uint64_t> result;
  std::uint64_t const count = std::uint64_t{1} << bits(type);
  for (std::uint64_t code = 0; code < count; ++code) {
    // emplace keeps the first: NaN gets its lowest code.
    result.emplace(key_of(oracle::load(&code, type, 0)), code);
  }
  return result;
}

}  // namespace

std::uint64_t code_of(double value, dtype type) {
  if (type == dtype::f32) {
    return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
  if (type == dtype::bf16 && !std::isnan(value)) {
    return std::bit_cast<std::uint32_t>(static_cast<float>(oracle::round_to(value, type))) >> 16;
  }
  if (type == dtype::int64) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  if (type == dtype::int32) return static_cast<std::uint32_t>(static_cast<std::int32_t>(value));
  if (type == dtype::uint8) return static_cast<std::uint8_t>(value);
  static std::mutex guard;
  static std::map<dtype, std::map<std::uint64_t, std::uint64_t>> known;
  std::lock_guard const lock(guard);
  auto& table = known[type];
  if (table.empty()) table = codes_by_number(type);
  double rounded = oracle::round_to(value, type);
  // Types without -0 spell it 0.
  if (rounded == 0.0 && !table.contains(key_of(rounded))) rounded = 0.0;
  return table.at(key_of(rounded));
}

void release_memory::operator()(std::uint8_t* memory) const {
  if (mapped_bytes == 0) {
    ::operator delete[](memory, alignment);
  } else {
    ::munmap(memory, place(mapped_bytes));
  }
}

test_tensor::test_tensor(dtype type, std::vector<index_t> const& extents, fence around) {
  view_.type = type;
  view_.rank = static_cast<std::uint8_t>(extents.size());
  index_t step = 1;
  for (std::size_t d = extents.size(); d-- > 0;) {
    view_.extent[d] = extents[d];
    view_.stride[d] = step;
    step *= std::max<index_t>(extents[d], 1);
    if (d + 1 == extents.size() && bits(type) == 4) step += step % 2;
  }
  allocate(around);
}

test_tensor::test_tensor(dtype type, std::vector<index_t> const& extents,
                         std::vector<index_t> const& strides, fence around) {
  view_.type = type;
  view_.rank = static_cast<std::uint8_t>(extents.size());
  std::copy(extents.begin(), extents.end(), view_.extent);
  std::copy(strides.begin(), strides.end(), view_.stride);
  allocate(around);
}

void test_tensor::allocate(fence around) {
  index_t span = 1;
  for (int d = 0; d < view_.rank; ++d) span += (view_.extent[d] - 1) * view_.stride[d];
  for (int d = 0; d < view_.rank; ++d) {
    if (view_.extent[d] == 0) span = 0;
  }
  bytes_ = (span * bits(view_.type) + 7) / 8;
  if (around == fence::canaries) {
    front_bytes_ = back_bytes_ = canary_bytes;
    memory_.reset(
        static_cast<std::uint8_t*>(::operator new[](place(bytes_ + 2 * canary_bytes), alignment)));
    first_ = memory_.get() + front_bytes_;
  } else {
    index_t const page = ::sysconf(_SC_PAGESIZE);
    index_t const inner = (bytes_ + page - 1) / page * page;
    index_t const all = inner + 2 * page;
    void* const mapped = ::mmap(nullptr, place(all), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    memory_ = {static_cast<std::uint8_t*>(mapped), release_memory{all}};
    if (::mprotect(memory_.get() + page, place(inner), PROT_READ | PROT_WRITE) != 0) {
      throw std::bad_alloc();
    }
    // Workspaces, the arrays of bytes, are lent at multiples of their alignment.
    index_t const step = view_.type == dtype::uint8 ? workspace_alignment : 1;
    index_t const gap = around == fence::behind ? (inner - bytes_) / step * step : 0;
    front_bytes_ = gap;
    back_bytes_ = inner - bytes_ - gap;
    first_ = memory_.get() + page + gap;
  }
  for (index_t i = -front_bytes_; i < 0; ++i) first_[i] = around_byte(i);
  for (index_t i = bytes_; i < bytes_ + back_bytes_; ++i) first_[i] = around_byte(i);
  view_.data = first_;
  poison();
}

std::uint8_t test_tensor::around_byte(index_t i) const {
  bool const odd = i % 2 != 0;
  switch (view_.type) {
    case dtype::f32:
    case dtype::bf16:
    case dtype::f16:
      return odd ? 0xff : 0xc5;  // not the NaN that poison is
    case dtype::e4m3:
    case dtype::e5m2:
      return odd ? 0xff : 0x7f;
    case dtype::e8m0:
      return 0xff;
    default:
      return 0xc5;
  }
}

test_tensor::~test_tensor() {
  if (memory_ != nullptr) {
    EXPECT_TRUE(intact()) << "written outside of " << to_string(view_);
  }
}

std::uint8_t test_tensor::poison_byte() const {
  bool const integer =
      view_.type == dtype::int32 || view_.type == dtype::int64 || view_.type == dtype::uint8;
  return integer ? 0x5a : 0xff;
}

void test_tensor::poison() {
  if (bytes_ > 0) std::memset(first_, poison_byte(), place(bytes_));
}

template <class Visit>
void test_tensor::each(Visit const& visit) const {
  index_t const rows = view_.rank > 1 ? view_.extent[1] : 1;
  index_t const cols = view_.rank > 2 ? view_.extent[2] : 1;
  for (index_t i = 0; i < view_.extent[0]; ++i) {
    for (index_t j = 0; j < rows; ++j) {
      for (index_t k = 0; k < cols; ++k) visit(i, j, k);
    }
  }
}

test_tensor& test_tensor::fill(
    std::function<double(index_t i, index_t j, index_t k)> const& value) {
  each([&](index_t i, index_t j, index_t k) { set(value(i, j, k), i, j, k); });
  return *this;
}

test_tensor& test_tensor::fill_integers(std::uint64_t seed, index_t low, index_t high) {
  random_source const random(seed);
  index_t n = 0;
  each([&](index_t i, index_t j, index_t k) {
    set(static_cast<double>(random.between(n++, low, high)), i, j, k);
  });
  return *this;
}

test_tensor& test_tensor::fill_uniform(std::uint64_t seed, double low, double high) {
  random_source const random(seed);
  index_t n = 0;
  each([&](index_t i, index_t j, index_t k) { set(random.uniform(n++, low, high), i, j, k); });
  return *this;
}

void test_tensor::set(double value, index_t i, index_t j, index_t k) {
  set_code(code_of(value, view_.type), i, j, k);
}

void test_tensor::set_code(std::uint64_t code, index_t i, index_t j, index_t k) {
  index_t const offset = i * view_.stride[0] + j * view_.stride[1] + k * view_.stride[2];
  index_t const width = bits(view_.type);
  if (width == 4) {
    std::uint8_t& byte = first_[offset / 2];
    std::uint64_t const other = byte & (offset % 2 == 0 ? 0xf0U : 0x0fU);
    byte = static_cast<std::uint8_t>(other | (code << (offset % 2 == 0 ? 0 : 4)));
    return;
  }
  std::memcpy(first_ + offset * width / 8, &code, place(width / 8));
}

std::uint64_t test_tensor::code(index_t i, index_t j, index_t k) const {
  index_t const offset = i * view_.stride[0] + j * view_.stride[1] + k * view_.stride[2];
  index_t const width = bits(view_.type);
  if (width == 4) {
    std::uint64_t const byte = first_[offset / 2];
    return offset % 2 == 0 ? byte & 0xfU : byte >> 4;
  }
  std::uint64_t result = 0;
  std::memcpy(&result, first_ + offset * width / 8, place(width / 8));
  return result;
}

double test_tensor::get(index_t i, index_t j, index_t k) const {
  return oracle::at(view_, i, j, k);
}

std::vector<double> test_tensor::numbers() const {
  std::vector<double> result;
  each([&](index_t i, index_t j, index_t k) { result.push_back(get(i, j, k)); });
  return result;
}

std::vector<std::uint64_t> test_tensor::codes() const {
  std::vector<std::uint64_t> result;
  each([&](index_t i, index_t j, index_t k) { result.push_back(code(i, j, k)); });
  return result;
}

std::vector<std::uint8_t> test_tensor::bytes() const { return {first_, first_ + bytes_}; }

bool test_tensor::intact() const {
  if (memory_ == nullptr) return true;
  for (index_t i = -front_bytes_; i < 0; ++i) {
    if (first_[i] != around_byte(i)) return false;
  }
  for (index_t i = bytes_; i < bytes_ + back_bytes_; ++i) {
    if (first_[i] != around_byte(i)) return false;
  }
  // What no element covers must still be poison.
  index_t const width = bits(view_.type);
  if (view_.is_contiguous() && width >= 8) return true;  // there is nothing between elements
  std::vector<std::uint8_t> covered(place(bytes_ * 2), 0);
  each([&](index_t i, index_t j, index_t k) {
    index_t const offset = i * view_.stride[0] + j * view_.stride[1] + k * view_.stride[2];
    for (index_t n = 0; n < width / 4; ++n) covered[place(offset * width / 4 + n)] = 1;
    // The nibble behind a packed row of odd length belongs to it.
    if (width == 4 && view_.stride[view_.rank - 1] == 1) covered[place(offset | 1)] = 1;
  });
  for (index_t n = 0; n < bytes_ * 2; ++n) {
    int const shift = n % 2 == 0 ? 0 : 4;
    if (covered[place(n)] != 0) continue;
    if (((first_[n / 2] ^ poison_byte()) >> shift & 0xf) != 0) return false;
  }
  return true;
}

test_tensor make_workspace(index_t bytes, fence around) {
  return {dtype::uint8, std::vector<index_t>{bytes}, around};
}

std::string difference(std::vector<double> const& actual, std::vector<double> const& expected) {
  return difference(actual, expected, std::vector<double>(expected.size(), 0.0));
}

std::string difference(std::vector<double> const& actual, std::vector<double> const& expected,
                       std::vector<double> const& bound) {
  if (actual.size() != expected.size() || bound.size() != expected.size()) {
    return "lengths " + std::to_string(actual.size()) + ", " + std::to_string(expected.size());
  }
  std::string result;
  int found = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    double const a = actual[i];
    double const e = expected[i];
    bool equal = (std::isnan(a) && std::isnan(e)) || a == e;
    if (bound[i] == 0.0) equal = equal && std::signbit(a) == std::signbit(e);
    if (bound[i] == 0.0 && std::isnan(a) && std::isnan(e)) equal = true;
    if (equal || (bound[i] > 0.0 && std::abs(a - e) <= bound[i])) continue;
    if (++found <= 5) {
      result += " [" + std::to_string(i) + "] " + std::to_string(a) + " expected " +
                std::to_string(e) + (bound[i] > 0.0 ? " +- " + std::to_string(bound[i]) : "");
    }
  }
  return found == 0 ? "" : std::to_string(found) + " differ:" + result;
}

}  // namespace moe64::test
