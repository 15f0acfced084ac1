// 200 runs of every operation on four streams at once, next to work that keeps the GPU busy: the
// same bits every time.
#include "cases/problem_case.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace moe64 {
namespace {

constexpr int repeats = 200;
constexpr int streams = 4;

/// Copies and fills of changing sizes on a stream of its own, until the end of its life.
class noise {
 public:
  noise() : worker_([this] { make(); }) {}
  ~noise() {
    stop_ = true;
    worker_.join();
  }
  noise(noise const&) = delete;
  noise& operator=(noise const&) = delete;

 private:
  void make() {
    device const where = device::cuda(0);
    constexpr index_t bytes = index_t{256} << 20;
    cuda_queue const queue(where);
    cuda_buffer const a(bytes, where), b(bytes, where);
    for (index_t i = 0; !stop_; ++i) {
      index_t const size = bytes >> (i * 7 % 20);
      cuda_fill(a.memory().data, 0xff, size, queue.get());
      cuda_copy(b.memory().data, a.memory().data, size, queue.get());
      if (i % 64 == 0) cuda_wait(queue.get());
    }
    cuda_wait(queue.get());
  }

  std::atomic<bool> stop_ = false;
  std::thread worker_;
};

std::uint64_t hash_of(cases::problem_case const& c) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (auto const& [name, t] : c.outputs()) {
    auto const* const bytes = static_cast<std::uint8_t const*>(t.data);
    for (index_t i = 0; i < t.span_bytes(); i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i,
                  static_cast<std::size_t>(std::min<index_t>(8, t.span_bytes() - i)));
      hash = (hash ^ word) * 0x100000001b3U;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

class repeat : public testing::TestWithParam<std::string> {};

TEST_P(repeat, has_one_hash) {
  noise const beside;
  problem p = parse_problem(GetParam());
  p.device = device::cuda(0);
  std::vector<std::unique_ptr<cases::problem_case>> all;
  std::deque<cases::queue> queues;
  for (int i = 0; i < streams; ++i) {
    all.push_back(std::make_unique<cases::problem_case>(p));
    queues.emplace_back(p.device, nullptr);
  }
  std::uint64_t wanted = 0;
  for (int i = 0; i < repeats; ++i) {
    for (std::size_t s = 0; s < all.size(); ++s) {
      all[s]->prepare();
      all[s]->execute(queues[s].get());
    }
    for (std::size_t s = 0; s < all.size(); ++s) {
      all[s]->collect(queues[s].get());
      std::uint64_t const found = hash_of(*all[s]);
      if (i == 0 && s == 0) wanted = found;
      ASSERT_EQ(found, wanted) << "run " << i << " on stream " << s;
    }
  }
  auto const checked = all[0]->verify(queues[0].get(), 1e6);
  EXPECT_TRUE(checked.ok()) << checked.message();
}

std::string const shape = " tokens=300 hidden=264 inter=136 experts=24 top_k=4";
std::string const wide = " tokens=160 hidden=1024 inter=512 experts=8 top_k=2";
// Rows per expert that lead to the smallest and to the largest tiles of sm_90a; in W8A8 150 rows
// and 225 to different ones along hidden.
std::string const few = " tokens=40 hidden=1024 inter=512 experts=8 top_k=2";
std::string const many = " tokens=600 hidden=1024 inter=512 experts=8 top_k=2";
std::string const most = " tokens=900 hidden=1024 inter=512 experts=8 top_k=2";
// To m192n128_tma_store.
std::string const tma_store = " tokens=1300 hidden=1024 inter=512 experts=8 top_k=2";
// To m128n192.
std::string const n192 = " tokens=1300 hidden=768 inter=512 experts=8 top_k=2";
// And to the dynamic schedule of m256n128.
std::string const dynamic = " tokens=600 hidden=2176 inter=2112 experts=3 top_k=1";
// Mixed input: several tiles for each CTA, whose y lies in stages of theirs.
std::string const kept_few = " tokens=360 hidden=256 inter=9000 experts=8 top_k=1 act=silu";
std::string const kept_many = " tokens=600 hidden=256 inter=9000 experts=2 top_k=1 act=silu";

INSTANTIATE_TEST_SUITE_P(
    of, repeat,
    testing::Values(
        "op=layer weight=e4m3 backward=1 bias=1 lora=8 routing=sentinel:0.2" + shape,
        "op=layer weight=bf16 backward=1 routing=zipf" + shape,
        "op=layer weight=mxfp4 backward=1" + wide, "op=layer weight=e4m3 mode=w8a8" + few,
        "op=layer weight=e4m3 mode=w8a8" + wide, "op=layer weight=e4m3 mode=w8a8" + many,
        "op=layer weight=e4m3 mode=w8a8" + most, "op=layer weight=e4m3 mode=w8a16" + few,
        "op=layer weight=e4m3 mode=w8a16" + wide, "op=layer weight=e4m3 mode=w8a16" + many,
        "op=layer weight=bf16" + few, "op=layer weight=bf16" + wide, "op=layer weight=bf16" + many,
        "op=quantize experts=3 hidden=700 inter=300",
        "op=quantize experts=3 hidden=700 inter=300 weight=mxfp4",
        "op=dequantize experts=3 hidden=700 inter=300", "op=route" + shape,
        "op=route backward=1" + shape, "op=plan tokens=60 experts=200 top_k=8",
        "op=plan tokens=9000 experts=200 top_k=8", "op=gather" + shape,
        "op=gather mode=w8a8" + shape, "op=combine" + shape, "op=combine backward=1" + shape,
        "op=activate" + shape, "op=activate backward=1" + shape,
        "op=grouped_gemm weight=e4m3" + wide,
        "op=grouped_gemm weight=int4 scale=group:32 backward=1" + wide,
        "op=grouped_gemm weight=mxfp4" + few, "op=grouped_gemm weight=mxfp4" + wide,
        "op=grouped_gemm weight=mxfp4" + many, "op=grouped_gemm weight=nvfp4" + wide,
        "op=grouped_gemm weight=int4 scale=group:32" + few,
        "op=grouped_gemm_wgrad weight=bf16" + shape,
        "op=grouped_gemm weight=e4m3 mode=w8a8" + dynamic,
        "op=grouped_gemm weight=e4m3 mode=w8a8" + tma_store,
        "op=grouped_gemm weight=e4m3 mode=w8a8" + n192,
        "op=grouped_gemm weight=e4m3 mode=w8a16" + kept_few,
        "op=grouped_gemm weight=e4m3 mode=w8a16" + kept_many,
        "op=grouped_gemm weight=mxfp4" + kept_many),
    [](auto const& given) { return "problem_" + std::to_string(given.index); });

}  // namespace
}  // namespace moe64
