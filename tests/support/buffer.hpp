#pragma once

#include "moe64/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moe64::test {

/// The code of `type` that stands for `value` after rounding it as the oracle does; found by
/// searching the oracle's decoder, so it shares nothing with the codecs of the library.
[[nodiscard]] std::uint64_t code_of(double value, dtype type);

/// What lies around the memory of an array.
enum class fence {
  canaries,  ///< NaN of the array's type on both sides, which must still be there at the end
  behind,    ///< its last byte is the last of a page; touching the next one ends the program
  in_front,  ///< its first byte is the first of a page that follows such a page
};

/// Gives back memory of an array: mapped, or from operator new.
struct release_memory {
  index_t mapped_bytes = 0;
  void operator()(std::uint8_t* memory) const;
};

/// An array that owns its memory: filled with NaN (integers: 0x5a bytes), with NaN before and
/// behind it (in types that have none: other codes). Whatever lies around and between the elements
/// of a strided array must survive. This is checked by intact(), and by the destructor, which fails
/// the running test.
class test_tensor {
 public:
  test_tensor() = default;  ///< absent
  test_tensor(dtype type, std::vector<index_t> const& extents, fence around = fence::canaries);
  /// Strides in elements.
  test_tensor(dtype type, std::vector<index_t> const& extents, std::vector<index_t> const& strides,
              fence around = fence::canaries);
  ~test_tensor();
  test_tensor(test_tensor&&) noexcept = default;
  test_tensor& operator=(test_tensor&&) noexcept = default;

  [[nodiscard]] tensor_view const& view() const { return view_; }
  operator tensor_view const&() const { return view_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] workspace as_workspace() const { return {view_.data, bytes_, view_.device}; }

  void poison();
  /// Elements are rounded to the type; indices past the rank are 0.
  test_tensor& fill(std::function<double(index_t i, index_t j, index_t k)> const& value);
  /// Random integers of [low, high].
  test_tensor& fill_integers(std::uint64_t seed, index_t low, index_t high);
  test_tensor& fill_uniform(std::uint64_t seed, double low = -1.0, double high = 1.0);
  void set(double value, index_t i, index_t j = 0, index_t k = 0);
  void set_code(std::uint64_t code, index_t i, index_t j = 0, index_t k = 0);
  /// Bits of one element.
  [[nodiscard]] std::uint64_t code(index_t i, index_t j = 0, index_t k = 0) const;
  [[nodiscard]] double get(index_t i, index_t j = 0, index_t k = 0) const;
  /// All elements in row-major order, as numbers or as bits.
  [[nodiscard]] std::vector<double> numbers() const;
  [[nodiscard]] std::vector<std::uint64_t> codes() const;
  /// Everything in memory, gaps included.
  [[nodiscard]] std::vector<std::uint8_t> bytes() const;

  /// True when no byte behind or between the elements has changed.
  [[nodiscard]] bool intact() const;

 private:
  void allocate(fence around);
  [[nodiscard]] std::uint8_t around_byte(index_t place) const;
  template <class Visit>
  void each(Visit const& visit) const;
  [[nodiscard]] std::uint8_t poison_byte() const;

  tensor_view view_;
  index_t bytes_ = 0;
  std::unique_ptr<std::uint8_t[], release_memory> memory_;  // with what lies around
  std::uint8_t* first_ = nullptr;                           // where the array begins
  index_t front_bytes_ = 0, back_bytes_ = 0;                // around it, to be left alone
};

/// Memory for bind_plan and other workspaces.
[[nodiscard]] test_tensor make_workspace(index_t bytes, fence around = fence::canaries);

/// Positions where two lists differ bit by bit (any NaN equals any NaN), in words; empty if none.
[[nodiscard]] std::string difference(std::vector<double> const& actual,
                                     std::vector<double> const& expected);
/// The same with |actual - expected| <= bound[i]; NaN must meet NaN.
[[nodiscard]] std::string difference(std::vector<double> const& actual,
                                     std::vector<double> const& expected,
                                     std::vector<double> const& bound);

}  // namespace moe64::test
