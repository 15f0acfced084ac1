// The synthetic problems must notice what they are there to notice: each check is shown a planted
// fault.
#include "cases/arena.hpp"
#include "cases/numbers.hpp"
#include "cases/problem_case.hpp"
#include "cases/routing.hpp"
#include "cases/tolerance.hpp"
#include "cases/weights.hpp"
#include "moe64/cpu.hpp"
#include "moe64/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

namespace moe64::cases {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<unsigned char> bytes_of(tensor_view const& t) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(t.span_bytes()));
  std::memcpy(bytes.data(), t.data, bytes.size());
  return bytes;
}

errc code_of(std::string const& line, case_options const& options = {}) {
  try {
    problem_case const built(parse_problem(line), options);
  } catch (error const& e) {
    return e.code();
  }
  ADD_FAILURE() << line << " was built";
  return errc::internal;
}

constexpr char const* small = "tokens=12 hidden=48 inter=40 experts=6 top_k=1 weight=bf16 io=f32";

// ---- data
// ------------------------------------------------------------------------------------------------------

TEST(number_source, any_element_can_be_made_alone) {
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::e4m3, dtype::fp4}) {
    arena memory(device::cpu());
    auto const source = number_source::normal(type, 1.0);
    tensor_view const whole = memory.tensor("whole", purpose::input, type, {5, 7, 9});
    tensor_view const parts = memory.tensor("parts", purpose::input, type, {5, 7, 9});
    source.fill(whole, 3, tensor_id::x, nullptr);
    for (index_t const e : {4, 1, 0, 3, 2}) source.fill(parts, 3, tensor_id::x, e, e + 1, nullptr);
    EXPECT_EQ(bytes_of(whole), bytes_of(parts)) << name(type);
  }
}

TEST(number_source, seed_and_tensor_change_the_numbers_and_threads_do_not) {
  arena memory(device::cpu());
  auto const source = number_source::normal(dtype::bf16, 1.0);
  auto const made = [&](std::uint64_t seed, tensor_id id, cpu_executor* executor) {
    tensor_view const t = memory.tensor("t", purpose::input, dtype::bf16, {31, 33});
    source.fill(t, seed, id, executor);
    return bytes_of(t);
  };
  cpu_pool pool(3);
  EXPECT_EQ(made(1, tensor_id::x, nullptr), made(1, tensor_id::x, &pool));
  EXPECT_NE(made(1, tensor_id::x, nullptr), made(2, tensor_id::x, nullptr));
  EXPECT_NE(made(1, tensor_id::x, nullptr), made(1, tensor_id::dy, nullptr));
}

TEST(number_source, numbers_have_the_deviation_that_was_asked_for) {
  arena memory(device::cpu());
  tensor_view const t = memory.tensor("t", purpose::input, dtype::f32, {100, 100});
  number_source::normal(dtype::f32, 0.5).fill(t, 1, tensor_id::x, nullptr);
  double sum = 0.0;
  double squares = 0.0;
  for (index_t i = 0; i < 10000; ++i) {
    double const number = static_cast<float const*>(t.data)[i];
    sum += number;
    squares += number * number;
  }
  EXPECT_NEAR(sum / 10000, 0.0, 0.02);
  EXPECT_NEAR(std::sqrt(squares / 10000), 0.5, 0.02);
}

TEST(weight_builder, experts_that_are_not_used_hold_nan_in_every_format) {
  for (char const* format :
       {"f32", "bf16", "f16", "e4m3", "e5m2", "int8", "int4", "mxfp4", "nvfp4"}) {
    problem const p = parse_problem(std::string("hidden=40 inter=24 experts=4 weight=") + format);
    arena memory(p.device);
    weight_builder build(memory, p, data_mode::random, nullptr, {1, 3});
    auto const stack = build.stack("gate_up", tensor_id::gate_up, 2, p.inter, p.hidden);
    for (index_t e = 0; e < 4; ++e) {
      for (index_t row : {0, 23, 24, 47}) {
        EXPECT_EQ(std::isnan(oracle::at(stack, e, row, 39)), e % 2 == 0) << format << " " << e;
      }
    }
  }
}

TEST(weight_builder, neighbouring_blocks_have_different_scales) {
  problem const p = parse_problem("hidden=512 inter=512 experts=2");
  arena memory(p.device);
  weight_builder build(memory, p, data_mode::random, nullptr, {0, 1});
  auto const stack = build.stack("gate_up", tensor_id::gate_up, 2, p.inter, p.hidden);
  std::set<double> scales;
  for (int part = 0; part < 2; ++part) {
    for (index_t i = 0; i < 32; ++i) {
      scales.insert(oracle::at(stack.part(part).scales(), i / 16, i / 4 % 4, i % 4));
    }
  }
  EXPECT_EQ(scales.size(), 64U);
}

TEST(weight_builder, a_stack_past_2_to_32_elements_costs_only_its_used_experts) {
  problem const p = parse_problem("hidden=4096 inter=4096 experts=300 weight=bf16");
  arena memory(p.device, index_t{200} << 20);
  weight_builder build(memory, p, data_mode::random, nullptr, {299});
  auto const stack = build.stack("gate_up", tensor_id::gate_up, 2, p.inter, p.hidden);
  EXPECT_GT(stack.experts() * stack.rows() * stack.cols(), index_t{1} << 32);
  EXPECT_TRUE(std::isfinite(oracle::at(stack, 299, 8191, 4095)));
}

// ---- routing
// ---------------------------------------------------------------------------------------------------

TEST(make_routing, choices_of_a_token_differ_and_the_last_expert_is_used) {
  for (char const* kind : {"uniform", "zipf"}) {
    problem const p = parse_problem(std::string("tokens=50 experts=9 top_k=5 routing=") + kind);
    arena memory(p.device);
    auto const routed = make_routing(memory, p, data_mode::random);
    EXPECT_EQ(routed.live(), 250);
    EXPECT_GT(routed.rows_of(8), 0);
    for (index_t t = 0; t < p.tokens; ++t) {
      auto const experts = routed.experts_of_token(t);
      EXPECT_EQ(std::set<index_t>(experts.begin(), experts.end()).size(), 5U) << kind << " " << t;
    }
  }
}

TEST(make_routing, sentinels_take_their_share_in_both_spellings) {
  problem const p = parse_problem("tokens=1000 experts=8 top_k=4 routing=sentinel:0.25");
  arena memory(p.device);
  auto const routed = make_routing(memory, p, data_mode::random);
  EXPECT_NEAR(static_cast<double>(routed.rows.skipped) / 4000.0, 0.25, 0.03);
  auto const* ids = static_cast<std::int64_t const*>(routed.expert_ids.data);
  std::set<index_t> const seen(ids, ids + 4000);
  EXPECT_THAT(seen, Contains(-1));
  EXPECT_THAT(seen, Contains(8));
}

TEST(make_routing, one_expert_takes_all_and_even_seeds_have_32_bit_ids) {
  problem const p = parse_problem("tokens=10 experts=8 top_k=4 routing=one_expert seed=2");
  arena memory(p.device);
  auto const routed = make_routing(memory, p, data_mode::random);
  EXPECT_EQ(routed.rows_of(7), 40);
  EXPECT_EQ(routed.expert_ids.type, dtype::int32);
}

TEST(make_routing, other_draws_differ_and_do_not_all_have_the_last_expert) {
  problem const p = parse_problem("tokens=2 experts=64 top_k=4 seed=2");
  arena memory(p.device);
  std::set<std::vector<index_t>> seen;
  int with_last = 0;
  for (index_t draw = 0; draw < 16; ++draw) {
    auto const routed = make_routing(memory, p, data_mode::random, draw);
    EXPECT_EQ(routed.expert_ids.type, dtype::int32);
    EXPECT_EQ(routed.live(), 8);
    seen.insert(routed.used_experts());
    if (routed.rows_of(63) > 0) ++with_last;
  }
  EXPECT_EQ(seen.size(), 16U);
  EXPECT_GE(with_last, 1);  // the first
  EXPECT_LT(with_last, 8);
}

// ---- memory
// ----------------------------------------------------------------------------------------------------

TEST(arena, a_write_behind_a_buffer_is_named) {
  arena memory(device::cpu());
  memory.allocate("first", purpose::input, 100);
  auto* const second = static_cast<unsigned char*>(memory.allocate("second", purpose::output, 33));
  memory.poison();
  EXPECT_THAT(memory.damaged(), IsEmpty());
  EXPECT_EQ(second[32], poison_byte);
  second[33] = 0;
  EXPECT_EQ(memory.damaged(), std::vector<std::string>{"second"});
  memory.poison();
  EXPECT_THAT(memory.damaged(), IsEmpty());
}

TEST(arena, refuses_more_than_its_limit) {
  arena memory(device::cpu(), 1000);
  memory.allocate("fits", purpose::input, 900);
  EXPECT_THROW(memory.allocate("does not", purpose::scratch, 101), error);
  EXPECT_NO_THROW(memory.allocate("sparse", purpose::input, index_t{1} << 40, 50));
}

// ---- cases
// -----------------------------------------------------------------------------------------------------

TEST(problem_case, the_same_line_gives_the_same_bits) {
  problem const p =
      parse_problem("tokens=9 hidden=64 inter=48 experts=4 top_k=2 lora=2 backward=1");
  cpu_pool pool(3);
  problem_case first(p);
  problem_case second(p, {data_mode::random, &pool, -1});
  run(first, cpu_stream());
  run(second, cpu_stream(&pool));
  for (char const* output : {"y", "dx", "d_weights", "d_gate_lora_b", "d_down_lora_a"}) {
    EXPECT_EQ(bytes_of(first.output(output)), bytes_of(second.output(output))) << output;
  }
}

TEST(problem_case, routings_take_turns_and_the_first_is_the_one_of_the_line) {
  problem const p = parse_problem("tokens=2 hidden=64 inter=48 experts=16 top_k=2");
  problem_case one(p);
  problem_case many(p, {data_mode::random, nullptr, -1, 5});
  EXPECT_EQ(one.routings(), 1);
  ASSERT_EQ(many.routings(), 5);
  run(one, cpu_stream());
  std::set<std::string> seen;
  for (index_t routing = 4; routing >= 0; --routing) {
    many.use_routing(routing);
    run(many, cpu_stream());
    auto const y = bytes_of(many.output("y"));
    seen.emplace(y.begin(), y.end());
  }
  EXPECT_EQ(seen.size(), 5U);
  EXPECT_EQ(bytes_of(many.output("y")), bytes_of(one.output("y")));
  EXPECT_TRUE(many.verify(cpu_stream()).ok());
  EXPECT_THROW(many.use_routing(5), std::out_of_range);
}

TEST(problem_case, weight_bytes_are_those_of_the_mean_routing) {
  problem const p = parse_problem("tokens=1 hidden=64 inter=32 experts=40 top_k=4 scale=row");
  auto const expected = [](double experts) {
    return experts * (3.0 * 64.0 * 32.0 + 4.0 * (2.0 * 32.0 + 64.0));
  };
  auto const cost = problem_case(p, {data_mode::random, nullptr, -1, 16}).cost();
  EXPECT_DOUBLE_EQ(cost.weight_bytes, expected(4.0));  // every routing of one token has four
  EXPECT_DOUBLE_EQ(cost.bytes, cost.weight_bytes + 2.0 * 2.0 * 64.0);
  problem const both = parse_problem(to_string(p) + " backward=1");
  EXPECT_DOUBLE_EQ(problem_case(both).cost().weight_bytes, expected(8.0));
  problem const gather = parse_problem("op=gather " + to_string(p));
  EXPECT_EQ(problem_case(gather).cost().weight_bytes, 0.0);
}

TEST(problem_case, an_output_that_was_never_written_fails) {
  problem_case c(parse_problem(small));
  c.prepare();
  auto const found = c.verify(cpu_stream());
  EXPECT_FALSE(found.ok());
  EXPECT_EQ(found.worst_error(), std::numeric_limits<double>::infinity());
  EXPECT_THAT(found.message(), HasSubstr("NaN"));
}

TEST(problem_case, a_good_run_is_ok_and_within_its_bound) {
  problem_case c(parse_problem(small));
  run(c, cpu_stream());
  auto const found = c.verify(cpu_stream());
  EXPECT_TRUE(found.ok()) << found.message();
  EXPECT_THAT(found.message(), IsEmpty());
  EXPECT_GT(found.worst_error(), 0.0);
  EXPECT_EQ(found.compared, 12);
  EXPECT_EQ(found.total, 12);
}

TEST(problem_case, a_wrong_token_names_its_expert) {
  problem_case c(parse_problem(small));
  run(c, cpu_stream());
  index_t const token = 11;  // goes to the last expert
  static_cast<float*>(c.output("y").data)[token * 48 + 5] += 0.5F;
  auto const found = c.verify(cpu_stream());
  EXPECT_FALSE(found.ok());
  ASSERT_EQ(found.outputs.size(), 1U);
  EXPECT_EQ(found.outputs[0].worst_row, token);
  EXPECT_EQ(found.outputs[0].worst_expert, 5);
  EXPECT_THAT(found.message(), HasSubstr("expert 5"));
}

TEST(problem_case, an_expert_that_is_wrong_in_all_its_rows_is_told_from_its_neighbours) {
  problem_case c(parse_problem(
      "op=grouped_gemm tokens=40 hidden=32 inter=16 experts=5 top_k=2 weight=f32 io=f32"));
  run(c, cpu_stream());
  tensor_view const y = c.output("y");
  auto const before = c.verify(cpu_stream());
  ASSERT_TRUE(before.ok()) << before.message();
  auto* const numbers = static_cast<float*>(y.data);
  for (index_t c0 = 0; c0 < 32; ++c0)
    numbers[79 * 32 + c0] *= 1.01F;  // the last row, of the last expert
  auto const found = c.verify(cpu_stream());
  EXPECT_FALSE(found.ok());
  EXPECT_EQ(found.outputs[0].worst_expert, 4);
  EXPECT_GT(found.outputs[0].by_expert[4], 1e-3);
  EXPECT_LT(found.outputs[0].by_expert[0], found.outputs[0].bound);
}

TEST(problem_case, one_nan_is_found_in_a_row_that_was_not_sampled) {
  problem_case c(
      parse_problem("tokens=200 hidden=16 inter=16 experts=4 top_k=1 weight=f32 io=f32"));
  run(c, cpu_stream());
  double const few_rows = 5.0 * 3.0 * 16.0 * 16.0;
  auto const good = c.verify(cpu_stream(), few_rows);
  ASSERT_TRUE(good.ok()) << good.message();
  EXPECT_LT(good.compared, 10);
  EXPECT_EQ(good.total, 200);
  static_cast<float*>(c.output("y").data)[77 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
  auto const found = c.verify(cpu_stream(), few_rows);
  EXPECT_FALSE(found.ok());
  EXPECT_THAT(found.message(), HasSubstr("NaN"));
  EXPECT_THAT(found.message(), HasSubstr("entry 77"));
}

TEST(problem_case, an_output_of_zeros_is_mistrusted_where_it_was_not_sampled) {
  problem_case c(
      parse_problem("tokens=200 hidden=16 inter=16 experts=4 top_k=1 weight=f32 io=f32"));
  run(c, cpu_stream());
  auto* const y = static_cast<float*>(c.output("y").data);
  std::fill(y + 101 * 16, y + 198 * 16, 0.0F);
  auto const found = c.verify(cpu_stream(), 3.0 * 3.0 * 16.0 * 16.0);
  EXPECT_FALSE(found.ok());
  EXPECT_THAT(found.message(), HasSubstr("zero"));
}

TEST(problem_case, a_token_without_experts_must_be_exactly_zero) {
  problem_case c(parse_problem(
      "tokens=8 hidden=16 inter=16 experts=4 top_k=2 routing=sentinel:1 weight=f32 io=f32"));
  run(c, cpu_stream());
  EXPECT_TRUE(c.verify(cpu_stream()).ok());
  static_cast<float*>(c.output("y").data)[3] = 1e-30F;
  auto const found = c.verify(cpu_stream());
  EXPECT_FALSE(found.ok());
  EXPECT_THAT(found.message(), HasSubstr("must be zero"));
}

TEST(problem_case, rows_past_the_last_must_not_be_written) {
  problem_case c(
      parse_problem("op=gather tokens=8 hidden=16 experts=4 top_k=2 routing=sentinel:0.5"));
  run(c, cpu_stream());
  ASSERT_TRUE(c.verify(cpu_stream()).ok());
  tensor_view const rows = c.output("rows");
  static_cast<unsigned char*>(rows.data)[rows.span_bytes() - 1] = 0;
  EXPECT_THAT(c.verify(cpu_stream()).message(), HasSubstr("past the last"));
}

TEST(problem_case, a_write_behind_an_output_fails) {
  problem_case c(parse_problem(small));
  run(c, cpu_stream());
  tensor_view const y = c.output("y");
  static_cast<unsigned char*>(y.data)[y.span_bytes()] = 0;
  EXPECT_THAT(c.verify(cpu_stream()).message(), HasSubstr("bytes behind y were overwritten"));
}

TEST(problem_case, gradients_of_an_unused_expert_must_be_zero) {
  problem_case c(
      parse_problem("tokens=4 hidden=16 inter=8 experts=6 top_k=1 routing=one_expert weight=f32 "
                    "io=f32 backward=1"));
  run(c, cpu_stream());
  ASSERT_TRUE(c.verify(cpu_stream()).ok());
  static_cast<float*>(c.output("d_down").data)[0] = 1.0F;
  EXPECT_THAT(c.verify(cpu_stream()).message(), HasSubstr("d_down of expert 0 must be zero"));
}

TEST(problem_case, exact_data_leave_no_room_for_a_single_bit) {
  problem_case c(parse_problem("op=grouped_gemm tokens=9 hidden=64 inter=32 experts=4 top_k=2"),
                 {data_mode::exact, nullptr, -1});
  run(c, cpu_stream());
  auto const good = c.verify(cpu_stream());
  ASSERT_TRUE(good.ok()) << good.message();
  EXPECT_EQ(good.worst_error(), 0.0);
  auto* const code = static_cast<std::uint16_t*>(c.output("y").data);
  *code = static_cast<std::uint16_t>(*code ^ 1U);
  EXPECT_FALSE(c.verify(cpu_stream()).ok());
}

TEST(problem_case, refuses_what_cannot_be_built) {
  EXPECT_EQ(code_of("device=cuda:0"), errc::unsupported);
  EXPECT_EQ(code_of("op=plan backward=1"), errc::unsupported);
  EXPECT_EQ(code_of("op=grouped_gemm weight=bf16 mode=w8a8"), errc::unsupported);
  EXPECT_EQ(code_of("act=silu_glu", {data_mode::exact, nullptr, -1}), errc::invalid_argument);
  EXPECT_EQ(code_of("tokens=4 hidden=4096 inter=4096", {data_mode::random, nullptr, 1 << 20}),
            errc::out_of_memory);
  EXPECT_EQ(code_of("hidden=4611686018427387904 experts=1024"), errc::size_overflow);
}

// ---- tolerances
// ------------------------------------------------------------------------------------------------

TEST(tolerance, grows_with_the_roundings_and_never_reaches_a_wrong_answer) {
  problem p = parse_problem("");
  double const bf16 = layer_tolerance(p, compute_mode::w8a16, layer_output::y, 0);
  p.io = dtype::f16;
  double const f16 = layer_tolerance(p, compute_mode::w8a16, layer_output::y, 0);
  p.io = dtype::f32;
  double const f32 = layer_tolerance(p, compute_mode::w8a16, layer_output::y, 0);
  EXPECT_LT(f32, f16);
  EXPECT_LT(f16, bf16);
  EXPECT_LT(bf16, 0.05);
  EXPECT_LT(f32, 1e-5);
  EXPECT_GT(bf16, unit_roundoff(dtype::bf16));
}

TEST(sample_of, holds_both_ends_and_what_it_must) {
  EXPECT_EQ(sample_of(4, 10.0, {}), (std::vector<index_t>{0, 1, 2, 3}));
  auto const few = sample_of(1000, 7.0, {500});
  EXPECT_LE(few.size(), 7U);
  EXPECT_THAT(few, ::testing::AllOf(Contains(0), Contains(999), Contains(500)));
  EXPECT_THAT(sample_of(0, 10.0, {}), IsEmpty());
}

}  // namespace
}  // namespace moe64::cases
