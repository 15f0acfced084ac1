#pragma once

#include "moe64/cpu.hpp"
#include "moe64/tensor.hpp"
#include "support/buffer.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

/// Tensors of many gigabytes without the gigabytes. Three tricks, all of them true addresses:
///  - an address_range reads as zeros and takes a page of memory only where it is written, so a
///  view
///    with huge strides and few elements costs a few pages;
///  - a memory_file repeated over an address_range gives every address real content, again and
///    again from the same few pages. Where an output is repeated memory, elements that share a
///    place must have the same value, then nobody sees who wrote last;
///  - a window maps other pages into the middle of that: places of which each is looked at by
///    itself.
namespace moe64::test {

/// The machine does not give the addresses: not an error of moe64.
struct machine_refuses : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr index_t page_bytes = 4096;

/// Pages in memory that can be mapped at many addresses. Starts as zeros.
class memory_file {
 public:
  explicit memory_file(index_t bytes);
  ~memory_file();
  memory_file(memory_file const&) = delete;
  memory_file& operator=(memory_file const&) = delete;

  [[nodiscard]] index_t bytes() const { return bytes_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  template <class T = std::byte>
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  index_t bytes_ = 0;
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
};

/// A run of addresses between two pages that must not be touched.
class address_range {
 public:
  explicit address_range(index_t bytes);
  ~address_range();
  address_range(address_range const&) = delete;
  address_range& operator=(address_range const&) = delete;

  [[nodiscard]] index_t bytes() const { return bytes_; }
  [[nodiscard]] workspace as_workspace(index_t bytes) const { return {data_, bytes, {}}; }
  template <class T = std::byte>
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(data_);
  }

  /// Bytes [offset, offset + bytes), whole pages, become those of the file at file_offset.
  void map(index_t offset, index_t bytes, memory_file const& file, index_t file_offset = 0);
  /// The whole range becomes the file again and again: byte i is byte i % file.bytes() of it.
  void repeat(memory_file const& file);
  /// Numbers of the pages that have memory of their own, in order: of a range without mapped files
  /// those that were touched.
  [[nodiscard]] std::vector<index_t> resident_pages() const;
  /// Drop the page tables of mapped files (their content stays in the files), so that repeated
  /// pages do not count as many times as they were seen. Pages without a file are lost.
  void forget_pages() const;

 private:
  index_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

/// Forgets the pages of some ranges ten times a second while it lives. A repeated page counts as
/// resident once for every address that it was seen at: this keeps the count near the truth.
class page_forgetter {
 public:
  explicit page_forgetter(std::vector<address_range const*> ranges);

 private:
  std::jthread thread_;
};

/// A tensor whose elements lie far apart in an address_range: the values of `from`, with this
/// stride (in elements) in one dimension. All other memory is zero.
class spread_tensor {
 public:
  spread_tensor(test_tensor const& from, int dimension, index_t stride);

  [[nodiscard]] tensor_view const& view() const { return view_; }
  /// Empty when all elements have the bits of `expected` and no other byte was written; otherwise
  /// what is wrong.
  [[nodiscard]] std::string difference(test_tensor const& expected) const;

 private:
  tensor_view view_;
  address_range memory_;
};

/// Runs the tasks of a call on two threads, a batch at a time, and looks between the batches:
/// `after` can check what repeated output memory holds before it is written again. A correct result
/// does not depend on the size of the batch.
class batched_executor final : public cpu_executor {
 public:
  batched_executor(index_t tasks_per_batch, std::function<void()> after)
      : tasks_per_batch_(tasks_per_batch), after_(std::move(after)) {}
  [[nodiscard]] index_t concurrency() const noexcept override { return pool_.concurrency(); }
  void run(index_t tasks, void (*task)(void* context, index_t i), void* context) noexcept override;

  [[nodiscard]] cpu_pool& pool() { return pool_; }

 private:
  cpu_pool pool_{2};
  index_t tasks_per_batch_;
  std::function<void()> after_;
};

/// A number that names (a, b): what index-coded data is made of.
[[nodiscard]] constexpr std::uint64_t name_of(index_t a, index_t b) {
  auto z = (static_cast<std::uint64_t>(a) << 32) ^ static_cast<std::uint64_t>(b);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}
/// A bf16 between 2^-7 and 2^1 of either sign that names (a, b).
[[nodiscard]] constexpr std::uint16_t bf16_name_of(index_t a, index_t b) {
  std::uint64_t const bits = name_of(a, b);
  return static_cast<std::uint16_t>((bits & 0x83ffU) + (120U << 7));
}

/// Most memory that this process has ever had at once.
[[nodiscard]] index_t peak_resident_bytes();
/// Resident memory that belongs to no file: pages of the program itself come in as it runs.
[[nodiscard]] index_t anonymous_bytes();

/// The body of a test on huge memory: skipped, loudly, where the machine gives no addresses; failed
/// where it used memory after all.
template <class Body>
void on_huge_memory(Body const& body) {
  constexpr index_t most_resident = index_t{2} << 30;
  try {
    body();
  } catch (machine_refuses const& refusal) {
    std::cerr << "SKIPPED, NOTHING WAS TESTED: " << refusal.what() << "\n";
    GTEST_SKIP() << refusal.what();
  }
  EXPECT_LT(peak_resident_bytes(), most_resident);
}

}  // namespace moe64::test
