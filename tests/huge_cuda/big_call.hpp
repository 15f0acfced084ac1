#pragma once

#include "cases/arena.hpp"
#include "cases/parallel.hpp"
#include "moe64/cpu.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace moe64::test {

/// Operands of gigabytes: filled by all cores, run on the first CUDA device and on the CPU, and
/// compared byte by byte.
class big_call {
 public:
  big_call()
      : pool(static_cast<index_t>(std::max(1U, std::thread::hardware_concurrency()))),
        memory(device::cuda(0)),
        queue_(device::cuda(0)) {}

  /// Why this machine cannot hold a call with operands of so many bytes; empty when it can.
  [[nodiscard]] static std::string lacks(index_t bytes) { return lacks(bytes, bytes); }
  [[nodiscard]] static std::string lacks(index_t device_bytes, index_t host_bytes) {
    index_t const on_device = cuda_info(device::cuda(0)).memory_free;
    index_t const on_host = cases::available_memory();
    constexpr index_t spare = index_t{2} << 30;
    if (device_bytes + spare <= on_device && host_bytes + spare <= on_host) return {};
    return "needs " + std::to_string(device_bytes >> 30) + " GiB and " +
           std::to_string(host_bytes >> 30) + " on the host, the device has " +
           std::to_string(on_device >> 30) + ", the host " + std::to_string(on_host >> 30);
  }

  /// value(i) in every 64-bit word i of a tensor, in parallel.
  template <class Value>
  void fill(tensor_view const& tensor, Value const& value) {
    index_t const words = tensor.span_bytes() / 8;
    auto* const data = static_cast<std::uint64_t*>(tensor.data);
    constexpr index_t piece = index_t{1} << 20;
    cases::parallel_for(&pool, ceil_div(words, piece), [&](index_t p) {
      for (index_t i = p * piece; i < std::min(words, (p + 1) * piece); ++i) data[i] = value(i);
    });
  }
  /// Any bits, but for those of `without`.
  void fill_bits(tensor_view const& tensor, std::uint64_t without) {
    fill(tensor, [&](index_t i) { return hash(i) & ~without; });
  }
  static std::uint64_t hash(index_t i) {
    std::uint64_t z = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15U + 0x1234567;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    return z ^ (z >> 27);
  }

  /// run(args, stream) on the device, from NaN in its outputs. `args` says cuda:0 and points to
  /// host memory of `memory`; what ran there is returned.
  template <class Args, class Run>
  Args run_on_device(Args const& args, Run const& run) {
    memory.upload();
    Args there = memory.there(args);
    for (operand const& output : outputs_of(there)) {
      cuda_fill(output.tensor.data, 0xff, output.tensor.span_bytes(), queue_.get());
    }
    run(there, queue_.get());
    cuda_wait(queue_.get());
    return there;
  }
  /// The same call for the CPU, on the memory of the host.
  template <class Args>
  [[nodiscard]] static Args on_cpu(Args args) {
    for_each_operand(args, [](operand const& o) { o.tensor.device = device::cpu(); });
    args.implementation = {};
    return args;
  }
  /// run(args, stream) on both; the outputs have the same bytes.
  template <class Args, class Run>
  void expect_the_bits_of_the_cpu(Args const& args, Run const& run) {
    Args there = run_on_device(args, run);
    Args here = on_cpu(args);
    run(here, cpu_stream(&pool));
    auto const found = outputs_of(there), wanted = outputs_of(here);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(first_difference(found[i].tensor, wanted[i].tensor), -1) << found[i].argument;
    }
  }

  cpu_pool pool;
  cases::arena memory;

 private:
  /// The first byte that differs, or -1.
  index_t first_difference(tensor_view const& device_copy, tensor_view const& host) {
    index_t const bytes = host.span_bytes();
    constexpr index_t piece = index_t{256} << 20;
    std::vector<std::uint8_t> staged(static_cast<std::size_t>(std::min(bytes, piece)));
    auto const* const from = static_cast<std::uint8_t const*>(device_copy.data);
    auto const* const wanted = static_cast<std::uint8_t const*>(host.data);
    for (index_t begin = 0; begin < bytes; begin += piece) {
      index_t const count = std::min(piece, bytes - begin);
      cuda_copy(staged.data(), from + begin, count, queue_.get());
      cuda_wait(queue_.get());
      if (std::memcmp(staged.data(), wanted + begin, static_cast<std::size_t>(count)) == 0) {
        continue;
      }
      auto const end = staged.begin() + count;
      return begin + (std::mismatch(staged.begin(), end, wanted + begin).first - staged.begin());
    }
    return -1;
  }

  cuda_queue queue_;
};

/// A test that the machine cannot hold is skipped, and says what it needs.
#define MOE64_NEEDS(...)                                                            \
  if (std::string const lacking = big_call::lacks(__VA_ARGS__); !lacking.empty()) { \
    GTEST_SKIP() << lacking;                                                        \
  }

}  // namespace moe64::test
