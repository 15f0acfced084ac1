// Memory of the layer: queries are exact, nothing is read that was not written, nothing is kept.
#include "support/error_matcher.hpp"
#include "support/layer_fixture.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::layer_result;
using test::target;

/// Small problems that use every buffer: LoRA, codes of both kinds, weight on either side.
std::vector<layer_case> problems() {
  std::vector<layer_case> all;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) all.push_back(test::random_layer_case(seed));
  return all;
}

void fill(workspace const& memory, int byte) {
  if (memory.bytes > 0) std::memset(memory.data, byte, static_cast<std::size_t>(memory.bytes));
}

TEST(layer_workspace, exactly_the_queried_bytes_suffice) {
  // The fixture lends exactly what the queries ask for; its canaries are checked on destruction.
  for (layer_case const& c : problems()) {
    SCOPED_TRACE(to_string(c));
    layer_memory const memory(c);
    EXPECT_EQ(memory.forward.saved.bytes, saved_bytes(memory.desc, memory.shape, target().device));
    memory.run_forward();
    memory.run_backward();
  }
}

TEST(layer_workspace, one_byte_less_is_refused_and_nothing_is_written) {
  for (layer_case const& c : problems()) {
    SCOPED_TRACE(to_string(c));
    layer_memory memory(c);
    layer_result const poison = memory.result();
    auto const refused = [&](workspace& part, auto const& call, char const* operation,
                             char const* argument) {
      workspace const right = part;
      ASSERT_GT(right.bytes, 0);
      part.bytes = right.bytes - 1;
      EXPECT_MOE64_ERROR(call(), errc::workspace_too_small, operation, argument,
                         std::to_string(part.bytes), std::to_string(right.bytes));
      part = right;
      part.data = static_cast<char*>(right.data) + workspace_alignment / 2;
      EXPECT_MOE64_ERROR(call(), errc::workspace_too_small, operation, argument, "aligned");
      part.data = nullptr;
      EXPECT_MOE64_ERROR(call(), errc::workspace_too_small, operation, argument);
      part = right;
      EXPECT_EQ(memory.result().difference(poison), "");
    };
    auto const forward = [&] { memory.run_forward(); };
    auto const backward = [&] { memory.run_backward(); };
    refused(memory.forward.saved, forward, "[forward]", "saved");
    refused(memory.forward.scratch, forward, "[forward]", "scratch");
    refused(memory.backward.saved, backward, "[backward]", "saved");
    refused(memory.backward.scratch, backward, "[backward]", "scratch");
  }
}

TEST(layer_workspace, forward_alone_needs_no_saved_memory_and_gives_the_same_bits) {
  for (layer_case const& c : problems()) {
    SCOPED_TRACE(to_string(c));
    layer_memory memory(c);
    memory.run_forward();
    auto const wanted = test::bits_of(memory.forward.y.as_matrix());
    index_t const bytes = forward_bytes(memory.desc, memory.shape, false, target().device);
    test::test_tensor const scratch = test::make_workspace(bytes);
    test::test_tensor& y = memory.owner(memory.forward.y);
    y.poison();
    memory.forward.saved = {};
    memory.forward.scratch = scratch.as_workspace();
    memory.run_forward();
    EXPECT_EQ(test::bits_of(memory.forward.y.as_matrix()), wanted);
    memory.forward.scratch.bytes -= 1;
    EXPECT_MOE64_ERROR(memory.run_forward(), errc::workspace_too_small, "[forward]", "scratch");
  }
}

TEST(layer_workspace, what_lies_there_before_does_not_matter) {
  for (layer_case const& c : problems()) {
    SCOPED_TRACE(to_string(c));
    layer_result first;
    for (int const byte : {0x00, 0x7f, 0xff, 0x5a}) {
      layer_memory const memory(c);
      fill(memory.forward.saved, byte);
      fill(memory.forward.scratch, byte);
      fill(memory.backward.scratch, byte);
      memory.run_forward();
      memory.run_backward();
      if (byte == 0x00) {
        first = memory.result();
      } else {
        EXPECT_EQ(memory.result().difference(first), "") << "filled with " << byte;
      }
    }
  }
}

TEST(layer_workspace, saved_memory_serves_two_backwards) {
  for (layer_case const& c : problems()) {
    SCOPED_TRACE(to_string(c));
    layer_memory const memory(c);
    memory.run_forward();
    memory.run_backward();
    layer_result const first = memory.result();
    memory.poison_outputs();
    fill(memory.backward.scratch, 0xff);
    memory.run_backward();
    layer_result again = memory.result();
    again.bits["y"] = first.bits.at("y");  // is not written by backward
    EXPECT_EQ(again.difference(first), "");
  }
}

TEST(layer_workspace, scratch_of_forward_is_free_for_others_afterwards) {
  for (layer_case const& c : problems()) {
    SCOPED_TRACE(to_string(c));
    layer_result const wanted = test::run(c);
    layer_memory const memory(c);
    memory.run_forward();
    fill(memory.forward.scratch, 0xff);
    memory.run_backward();
    EXPECT_EQ(memory.result().difference(wanted), "");
  }
}

/// Every gradient view of a layer_gradients, to be switched off one by one.
std::vector<tensor_view*> gradients_of(layer_gradients& g) {
  std::vector<tensor_view*> all{&g.x, &g.weights};
  for (projection_gradients* const p : {&g.gate_up, &g.down}) {
    for (std::size_t i = 0; i < 2; ++i) {
      all.insert(all.end(), {&p->weights[i], &p->bias[i], &p->lora_b[i]});
    }
    all.push_back(&p->lora_a);
  }
  std::erase_if(all, [](tensor_view* view) { return !view->present(); });
  return all;
}

TEST(layer_workspace, gradients_asked_for_singly_have_the_bits_of_all_together) {
  for (layer_case const& c : problems()) {
    SCOPED_TRACE(to_string(c));
    layer_memory memory(c);
    memory.run_forward();
    memory.run_backward();
    layer_result const together = memory.result();
    layer_gradients const all = memory.backward.gradients;
    layer_gradients copy = all;
    std::size_t const count = gradients_of(copy).size();
    for (std::size_t kept = 0; kept < count; ++kept) {
      memory.backward.gradients = all;
      auto const views = gradients_of(memory.backward.gradients);
      for (std::size_t i = 0; i < count; ++i) {
        if (i != kept) *views[i] = {};
      }
      auto const left = memory.outputs();
      ASSERT_EQ(left.size(), 2U);  // y and this one
      auto const& [name, view] = left[1];
      memory.poison_outputs();
      test::test_tensor const scratch = test::make_workspace(
          backward_bytes(memory.desc, memory.shape, memory.backward.gradients, target().device));
      memory.backward.scratch = scratch.as_workspace();
      memory.run_backward();
      EXPECT_EQ(test::bits_of(view), together.bits.at(name)) << name << " alone";
    }
    // Each run wrote its own output alone.
    memory.backward.gradients = all;
    layer_result after = memory.result();
    after.bits["y"] = together.bits.at("y");
    EXPECT_EQ(after.difference(together), "");
  }
}

TEST(layer_workspace, fewer_gradients_never_need_more_scratch) {
  for (layer_case const& c : problems()) {
    layer_memory const memory(c);
    auto const bytes = [&](layer_gradients const& g) {
      return backward_bytes(memory.desc, memory.shape, g, target().device);
    };
    layer_gradients only_x;
    only_x.x = memory.backward.gradients.x;
    EXPECT_LE(bytes(only_x), bytes(memory.backward.gradients)) << to_string(c);
    EXPECT_LE(bytes({}), bytes(only_x)) << to_string(c);
  }
}

TEST(layer_workspace, queries_refuse_what_the_calls_refuse) {
  layer_case c;
  c.route(3, 2);
  layer_memory memory(c);
  layer_shape shape = memory.shape;
  shape.tokens = -1;
  EXPECT_MOE64_ERROR(saved_bytes(memory.desc, shape, target().device), errc::invalid_argument,
                     "tokens", "-1");
  shape = memory.shape;
  shape.top_k = 0;
  EXPECT_MOE64_ERROR(forward_bytes(memory.desc, shape, true, target().device),
                     errc::invalid_argument, "top_k");
  shape = memory.shape;
  shape.io = dtype::e4m3;
  EXPECT_MOE64_ERROR(backward_bytes(memory.desc, shape, {}, target().device), errc::dtype_mismatch,
                     "e4m3");
  shape = memory.shape;
  shape.tokens = index_t{1} << 62;
  EXPECT_MOE64_ERROR(saved_bytes(memory.desc, shape, target().device), errc::size_overflow);
  EXPECT_MOE64_ERROR(forward_bytes(memory.desc, shape, true, target().device), errc::size_overflow);
  EXPECT_MOE64_ERROR(backward_bytes(memory.desc, shape, {}, target().device), errc::size_overflow);
}

}  // namespace
}  // namespace moe64
