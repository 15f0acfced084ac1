// gather and combine on a CUDA device: what the kernels for side-by-side rows may get wrong, and
// arrays past 2^31 elements.
#include "core/float8.hpp"
#include "moe64/cpu.hpp"
#include "moe64/cuda.hpp"
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::difference;
using test::make_plan;
using test::random_ids;
using test::random_weights;
using test::test_plan;
using test::test_tensor;

constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};

test_plan plan_of(index_t tokens, index_t top_k, std::uint64_t seed, double sentinels = 0.2) {
  return make_plan({.tokens = tokens,
                    .top_k = top_k,
                    .experts = 7,
                    .ids = random_ids(seed, tokens * top_k, 7, sentinels),
                    .weights = random_weights(seed + 1, tokens * top_k)});
}

/// run(args of the operation that writes to `output`, where) on both, and the same bits.
template <class Args, class Make, class Run>
void expect_as_on_cpu(Make const& make, dtype type, std::vector<index_t> const& extents,
                      Run const& run) {
  test_tensor const wanted(type, extents), found(type, extents);
  run(make(wanted), cpu_stream());
  Args const args = make(found);
  test::for_each_implementation(
      args,
      [&](Args const& call) {
        run(call, test::target());
        ASSERT_EQ(difference(found.numbers(), wanted.numbers()), "");
      },
      test::target());
}

TEST(cuda_gather, widths_and_choices) {
  for (index_t const top_k : {1, 3, 8, 33}) {
    test_plan const p = plan_of(19, top_k, 3);
    for (dtype const type : float_types) {
      for (index_t const hidden : {1, 8, 15, 264, 1032}) {
        if (hidden * top_k > 8448) continue;
        for (bool const weighted : {false, true}) {
          SCOPED_TRACE(std::string(name(type)) + " hidden " + std::to_string(hidden) + " top_k " +
                       std::to_string(top_k) + (weighted ? " weighted" : ""));
          test_tensor x(type, {19, hidden});
          x.fill_uniform(2);
          expect_as_on_cpu<gather_args>(
              [&](tensor_view const& rows) {
                return gather_args{x, {}, p.plan, weighted, rows, {}};
              },
              type, {19 * top_k, hidden},
              [](gather_args const& args, auto where) { gather(args, where); });
        }
      }
    }
  }
}

TEST(cuda_gather, codes_with_their_scales) {
  test_plan const p = plan_of(33, 4, 5);
  for (dtype const type : {dtype::e4m3, dtype::int8, dtype::fp4}) {
    for (index_t const hidden : {16, 448, 1000}) {
      index_t const scales_each = ceil_div(hidden, 128);
      test_tensor x(type, {33, hidden}), scales(dtype::f32, {33, scales_each});
      x.fill_integers(7, -4, 4);
      scales.fill_uniform(1);
      test_tensor const wanted(dtype::f32, {132, scales_each}),
          found(dtype::f32, {132, scales_each});
      expect_as_on_cpu<gather_args>(
          [&](tensor_view const& rows) {
            return gather_args{x, scales, p.plan, false, rows, found};
          },
          type, {132, hidden}, [](gather_args const& args, auto where) { gather(args, where); });
      test_tensor const rows(type, {132, hidden});
      gather({x, scales, p.plan, false, rows, wanted}, cpu_stream());
      ASSERT_EQ(difference(found.numbers(), wanted.numbers()), "");
    }
  }
}

TEST(cuda_combine, widths_and_choices) {
  for (index_t const top_k : {1, 3, 4, 5, 8, 9, 33}) {
    test_plan const p = plan_of(17, top_k, 11);
    for (dtype const type : float_types) {
      for (index_t const hidden : {1, 8, 15, 264, 1032}) {
        if (hidden * top_k > 5160) continue;
        for (bool const weighted : {false, true}) {
          SCOPED_TRACE(std::string(name(type)) + " hidden " + std::to_string(hidden) + " top_k " +
                       std::to_string(top_k) + (weighted ? " weighted" : ""));
          test_tensor rows(type, {17 * top_k, hidden});  // poison past the last row
          test::random_source const random(13);
          for (index_t row = 0; row < p.live(); ++row) {
            for (index_t c = 0; c < hidden; ++c) {
              rows.set(random.uniform(row * hidden + c, -3.0, 3.0), row, c);
            }
          }
          expect_as_on_cpu<combine_args>(
              [&](tensor_view const& y) {
                return combine_args{quantized_view::plain(rows), p.plan, weighted, y};
              },
              type, {17, hidden},
              [](combine_args const& args, auto where) { combine(args, where); });
        }
      }
    }
  }
}

TEST(cuda_combine, numbers_at_the_ends_of_their_range) {
  test_plan const p = plan_of(64, 8, 17, 0.1);
  for (dtype const type : float_types) {
    test_tensor rows(type, {512, 64});
    test::random_source const random(19);
    std::uint64_t const mask = (std::uint64_t{1} << bits(type)) - 1;
    for (index_t i = 0; i < 512; ++i) {
      for (index_t c = 0; c < 64; ++c) rows.set_code(random.bits(i * 64 + c) & mask, i, c);
    }
    for (bool const weighted : {false, true}) {
      expect_as_on_cpu<combine_args>(
          [&](tensor_view const& y) {
            return combine_args{quantized_view::plain(rows), p.plan, weighted, y};
          },
          type, {64, 64}, [](combine_args const& args, auto where) { combine(args, where); });
    }
  }
}

TEST(cuda_slot_weight_gradient, lengths) {
  test_plan const p = plan_of(29, 3, 23);
  for (dtype const type : float_types) {
    for (index_t const n : {0, 1, 15, 16, 17, 100, 512, 2049}) {
      test_tensor left(type, {87, n}), right(type, {87, n});
      test_tensor bias_rows(type, {87, 9}), bias(type, {7, 9});
      left.fill_uniform(1);
      right.fill_uniform(2);
      bias_rows.fill_uniform(3);
      bias.fill_uniform(4);
      for (bool const biased : {false, true}) {
        expect_as_on_cpu<slot_weight_gradient_args>(
            [&](tensor_view const& d_weights) {
              slot_weight_gradient_args args;
              args.left = left;
              args.right = right;
              if (biased) args.bias_rows = bias_rows;
              if (biased) args.bias = bias;
              args.plan = p.plan;
              args.d_weights = d_weights;
              return args;
            },
            dtype::f32, {29, 3},
            [](slot_weight_gradient_args const& args, auto where) {
              slot_weight_gradient(args, where);
            });
      }
    }
  }
}

// ---- the report of sentinels that were sorted to the front --------------------------------------

/// Ids to rows and back on the device, against plain loops: rows are the tokens of valid slots in
/// stable order, and combine gives each token once per valid slot.
void expect_moved(std::vector<index_t> const& ids, index_t top_k, index_t experts, dtype id_type) {
  auto const slots = static_cast<index_t>(ids.size());
  index_t const tokens = slots / top_k;
  constexpr index_t hidden = 16;
  test_tensor id_tensor(id_type, {tokens, top_k}), x(dtype::bf16, {tokens, hidden});
  id_tensor.fill([&](index_t i, index_t j, index_t) {
    return static_cast<double>(ids[static_cast<std::size_t>(i * top_k + j)]);
  });
  // Elements that bf16 holds up to the sum of all choices.
  x.fill(
      [](index_t i, index_t j, index_t) { return static_cast<double>(j < 8 ? i % 32 : i / 32); });
  test_tensor const memory = test::make_workspace(plan_bytes(tokens, top_k, experts));
  test_tensor const scratch =
      test::make_workspace(plan_scratch_bytes(tokens, top_k, experts, test::target().device));
  test_tensor const rows(dtype::bf16, {slots, hidden}), y(dtype::bf16, {tokens, hidden});
  plan_args args;
  args.expert_ids = id_tensor;
  args.experts_total = experts;
  args.plan = bind_plan(memory.as_workspace(), tokens, top_k, experts);
  args.scratch = scratch.as_workspace();
  plan(args, test::target());
  gather({x, {}, args.plan, false, rows, {}}, test::target());
  combine({quantized_view::plain(rows), args.plan, false, y}, test::target());

  index_t row = 0;
  std::vector<index_t> times(static_cast<std::size_t>(tokens));
  for (index_t e = 0; e < experts; ++e) {
    for (index_t slot = 0; slot < slots; ++slot) {
      if (ids[static_cast<std::size_t>(slot)] != e) continue;
      for (index_t c = 0; c < hidden; ++c) {
        ASSERT_EQ(rows.get(row, c), x.get(slot / top_k, c)) << "row " << row;
      }
      ++times[static_cast<std::size_t>(slot / top_k)];
      ++row;
    }
  }
  EXPECT_TRUE(row == slots || std::isnan(rows.get(row, 0)));
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t c = 0; c < hidden; ++c) {
      auto const factor = static_cast<double>(times[static_cast<std::size_t>(t)]);
      ASSERT_EQ(y.get(t, c), factor * x.get(t, c)) << "token " << t;
    }
  }
}

TEST(cuda_movement, sentinels_of_the_report_and_variants) {
  std::vector<index_t> const report = {0, -1, -1, 2, -1, 2, 1, 1, 3, -1, 3, -1, -1, 1, -1, -1};
  for (dtype const type : {dtype::int32, dtype::int64}) {
    expect_moved(report, 2, 4, type);
    std::vector<index_t> other = report;
    for (index_t& id : other) id = id < 0 ? 4 : id;
    expect_moved(other, 2, 4, type);  // the other sentinel
    for (std::size_t i = 0; i < other.size(); i += 3) other[i] = other[i] == 4 ? -1 : other[i];
    expect_moved(other, 2, 4, type);   // both
    expect_moved(report, 4, 4, type);  // more choices per token
    expect_moved(report, 1, 4, type);
    expect_moved(std::vector<index_t>(16, -1), 2, 4, type);  // nothing for this rank
    expect_moved(std::vector<index_t>(16, 4), 2, 4, type);
    expect_moved(std::vector<index_t>(16, 2), 2, 4, type);  // duplicates, one expert takes all
    expect_moved({0, -1, -1, 1, -1, -1}, 2, 2, type);       // the two ranks of the report
    expect_moved({-1, 1, 0, -1, 1, 0}, 2, 2, type);
    expect_moved({-1, -1, -1, -1, -1, -1, -1, 3}, 2, 4, type);  // only the last slot
    expect_moved({3, -1, -1, -1, -1, -1, -1, -1}, 2, 4, type);  // only the first
    expect_moved(random_ids(31, 5000, 60, 0.9), 5, 60, type);
  }
}

// ---- past 2^31 ----------------------------------------------------------------------------------

/// Row i of a bf16 matrix [rows, hidden] on the device holds i in its first three elements, and
/// again in its last three: digits that bf16 holds.
struct numbered_rows {
  static constexpr index_t hidden = 8192;
  static constexpr index_t batch = 4096;
  static constexpr index_t base = 128;

  static void set_digits(std::uint16_t* at, index_t number) {
    for (int i = 0; i < 3; ++i, number /= base) {
      at[i] = encode_bf16(static_cast<float>(number % base));
    }
  }
  static index_t digits(std::uint16_t const* at) {
    index_t number = 0;
    for (int i = 2; i >= 0; --i) number = number * base + static_cast<index_t>(decode_bf16(at[i]));
    return number;
  }
  static void set(std::uint16_t* row, index_t number) {
    set_digits(row, number);
    set_digits(row + hidden - 3, number);
  }
  static std::array<index_t, 2> get(std::uint16_t const* row) {
    return {digits(row), digits(row + hidden - 3)};
  }
};

TEST(cuda_gather, rows_past_two_to_the_31_elements) {
  constexpr index_t tokens = 262145;  // one row more than 2^31 elements
  constexpr index_t hidden = numbered_rows::hidden;
  constexpr index_t bytes = tokens * hidden * 2;
  device const where = test::target().where.device;
  if (cuda_info(where).memory_free < 2 * bytes + (index_t{1} << 30)) {
    GTEST_SKIP() << "needs " << 2 * bytes << " bytes of device memory";
  }
  cuda_queue const queue(where);
  stream const on = queue.get();
  cuda_buffer const x(bytes, where), rows(bytes, where);
  cuda_buffer const memory(plan_bytes(tokens, 1, 4), where), ids(tokens * 4, where);
  cuda_buffer const scratch(plan_scratch_bytes(tokens, 1, 4, where), where);
  std::vector<std::uint16_t> some(numbered_rows::batch * hidden, 0x3f80);
  auto const for_each_batch = [&](auto const& visit) {
    for (index_t first = 0; first < tokens; first += numbered_rows::batch) {
      visit(first, std::min(numbered_rows::batch, tokens - first));
    }
  };
  for_each_batch([&](index_t first, index_t count) {
    for (index_t i = 0; i < count; ++i) numbered_rows::set(some.data() + i * hidden, first + i);
    auto* const to = static_cast<std::uint16_t*>(x.memory().data) + first * hidden;
    cuda_copy(to, some.data(), count * hidden * 2, on);
    cuda_wait(on);
  });
  std::vector<std::int32_t> id;
  for (std::int32_t i = 0; i < tokens; ++i) id.push_back(i % 4);
  cuda_copy(ids.memory().data, id.data(), tokens * 4, on);

  plan_args args;
  args.expert_ids = tensor_view::contiguous(ids.memory().data, dtype::int32, {tokens, 1}, where);
  args.experts_total = 4;
  args.plan = bind_plan(memory.memory(), tokens, 1, 4);
  args.scratch = scratch.memory();
  plan(args, on);
  tensor_view const x_view =
      tensor_view::contiguous(x.memory().data, dtype::bf16, {tokens, hidden}, where);
  tensor_view const row_view =
      tensor_view::contiguous(rows.memory().data, dtype::bf16, {tokens, hidden}, where);
  gather({x_view, {}, args.plan, false, row_view, {}}, on);
  auto const expect_rows = [&](cuda_buffer const& found, auto const& token_of) {
    for_each_batch([&](index_t first, index_t count) {
      auto const* const from =
          static_cast<std::uint16_t const*>(found.memory().data) + first * hidden;
      cuda_copy(some.data(), from, count * hidden * 2, on);
      cuda_wait(on);
      for (index_t i = 0; i < count; ++i) {
        index_t const token = token_of(first + i);
        ASSERT_EQ(numbered_rows::get(some.data() + i * hidden), (std::array{token, token}))
            << first + i;
      }
    });
  };
  expect_rows(rows, [](index_t row) {
    // Experts 0 to 3 have 65,537, 65,536, 65,536 and 65,536 tokens: 0, 4, 8 ...; 1, 5, 9 ...
    if (row < 65537) return row * 4;
    index_t const e = (row - 1) / 65536;
    return (row - 1) % 65536 * 4 + e;
  });
  // With one choice of weight 1 combine brings every row back.
  cuda_fill(x.memory().data, 0xff, bytes, on);
  combine({quantized_view::plain(row_view), args.plan, false, x_view}, on);
  expect_rows(x, [](index_t token) { return token; });
}

}  // namespace
}  // namespace moe64
