// Routing of which nearly every slot is empty: capacity, offsets and slot numbers are huge, the
// work is not. Empty tokens read NaN if anything reads them, and their results share a few repeated
// pages that must end up as zeros.
#include "moe64/layer.hpp"
#include "support/huge_memory.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

namespace moe64::test {
namespace {

constexpr index_t two_31 = index_t{1} << 31;

void fill_bytes(memory_file const& file, int byte) {
  std::memset(file.data(), byte, static_cast<std::size_t>(file.bytes()));
}

bool holds_only(memory_file const& file, int byte) {
  auto const* const data = file.data<std::uint8_t>();
  return std::all_of(data, data + file.bytes(), [&](std::uint8_t b) { return b == byte; });
}

/// A huge array of which some pages are their own and all others one repeated file.
class mostly_repeated {
 public:
  /// `positions`: bytes whose pages are their own. Everything starts with this byte.
  mostly_repeated(index_t bytes, std::vector<index_t> const& positions, int byte) : memory_(bytes) {
    fill_bytes(repeated_, byte);
    memory_.repeat(repeated_);
    for (index_t const position : positions) {
      index_t const page = position / page_bytes;
      if (own_.contains(page)) continue;
      auto& file = own_[page] = std::make_unique<memory_file>(page_bytes);
      fill_bytes(*file, byte);
      memory_.map(page * page_bytes, page_bytes, *file);
    }
  }
  [[nodiscard]] address_range const& memory() const { return memory_; }
  [[nodiscard]] memory_file const& repeated() const { return repeated_; }
  template <class T>
  [[nodiscard]] T* data() const {
    return memory_.data<T>();
  }

 private:
  memory_file repeated_{509 * page_bytes};
  address_range memory_;
  std::map<index_t, std::unique_ptr<memory_file>> own_;
};

/// Every page of some rows.
std::vector<index_t> pages_of(std::vector<index_t> const& rows, index_t row_bytes) {
  std::vector<index_t> result;
  for (index_t const row : rows) {
    for (index_t at = 0; at < row_bytes; at += page_bytes) result.push_back(row * row_bytes + at);
  }
  return result;
}

// ---- a layer with 2^21 slots of 8,192 columns ---------------------------------------------------

constexpr index_t top_k = 8, hidden = 8192, inter = 512, experts = 3;

/// Plain weights that name their place.
class small_layer {
 public:
  small_layer() {
    for (index_t i = 0; i < gate_up_.bytes() / 2; ++i) {
      gate_up_.data<std::uint16_t>()[i] = bf16_name_of(1, i);
    }
    for (index_t i = 0; i < down_.bytes() / 2; ++i) {
      down_.data<std::uint16_t>()[i] = bf16_name_of(2, i);
    }
    auto const halves = split_gate_up(
        tensor_view::contiguous(gate_up_.data(), dtype::bf16, {experts, 2 * inter, hidden}),
        gate_up_layout::concatenated);
    layer_.gate_up.weights =
        weight_stack::gate_up(quantized_view::plain(halves[0]), quantized_view::plain(halves[1]));
    layer_.down.weights = weight_stack::single(quantized_view::plain(
        tensor_view::contiguous(down_.data(), dtype::bf16, {experts, hidden, inter})));
  }
  [[nodiscard]] layer_desc const& operator*() const { return layer_; }

 private:
  memory_file gate_up_{experts * 2 * inter * hidden * 2};
  memory_file down_{experts * hidden * inter * 2};
  layer_desc layer_;
};

struct layer_io {
  tensor_view x, ids, weights, y, dy, dx, d_weights;
};

/// Forward and backward on workspaces of which only the rows that exist take memory.
void run_layer(layer_desc const& layer, layer_io const& io, cpu_executor* threads) {
  layer_shape const shape = {io.x.extent[0], top_k, dtype::bf16};
  layer_gradients gradients;
  gradients.x = io.dx;
  gradients.weights = io.d_weights;
  device const cpu = device::cpu();
  index_t const saved_size = saved_bytes(layer, shape, cpu);
  index_t const forward_size = forward_bytes(layer, shape, true, cpu);
  index_t const backward_size = backward_bytes(layer, shape, gradients, cpu);
  address_range const saved(saved_size), scratch(forward_size), back(backward_size);
  forward(layer,
          {.x = io.x,
           .expert_ids = io.ids,
           .weights = io.weights,
           .y = io.y,
           .saved = saved.as_workspace(saved_size),
           .scratch = scratch.as_workspace(forward_size)},
          cpu_stream(threads));
  backward(layer,
           {.x = io.x,
            .dy = io.dy,
            .top_k = top_k,
            .saved = saved.as_workspace(saved_size),
            .scratch = back.as_workspace(backward_size),
            .gradients = gradients},
           cpu_stream(threads));
}

TEST(huge_routing, a_layer_of_2_21_slots_of_which_40_are_used) {
  on_huge_memory([] {
    constexpr index_t tokens = 262145;
    static_assert(tokens * hidden > two_31 && tokens * top_k * 2 * inter > two_31);
    static_assert(tokens * top_k * hidden > 2 * two_31);
    std::vector<index_t> const used = {0, 131071, 131072, 262143, 262144};
    auto const count = std::ssize(used);
    auto const id_of = [](index_t i, index_t k) { return narrow<std::int32_t>((i + k) % experts); };
    small_layer const layer;

    // The used tokens alone.
    test_tensor ids(dtype::int32, {count, top_k}), weights(dtype::f32, {count, top_k});
    test_tensor x(dtype::bf16, {count, hidden}), dy(dtype::bf16, {count, hidden});
    test_tensor y(dtype::bf16, {count, hidden}), dx(dtype::bf16, {count, hidden});
    test_tensor d_weights(dtype::f32, {count, top_k});
    ids.fill([&](index_t i, index_t k, index_t) { return static_cast<double>(id_of(i, k)); });
    weights.fill_uniform(1);
    x.fill_uniform(2);
    dy.fill_uniform(3);
    run_layer(*layer, {x, ids, weights, y, dy, dx, d_weights}, nullptr);

    // The same tokens far apart.
    constexpr index_t row_bytes = hidden * 2;
    auto const pages = pages_of(used, row_bytes);
    mostly_repeated const far_x(tokens * row_bytes, pages, 0xff);
    mostly_repeated const far_dy(tokens * row_bytes, pages, 0xff);
    mostly_repeated const far_y(tokens * row_bytes, pages, 0xff);
    mostly_repeated const far_dx(tokens * row_bytes, pages, 0xff);
    std::vector<std::int32_t> far_ids;
    for (index_t slot = 0; slot < tokens * top_k; ++slot) {
      far_ids.push_back(slot % 3 == 0 ? narrow<std::int32_t>(experts) : -1);
    }
    std::vector<float> far_weights(far_ids.size(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> far_d_weights(far_ids.size(), 7.0F);
    for (index_t i = 0; i < count; ++i) {
      index_t const token = used[static_cast<std::size_t>(i)];
      for (index_t k = 0; k < top_k; ++k) {
        auto const slot = static_cast<std::size_t>(token * top_k + k);
        far_ids[slot] = id_of(i, k);
        far_weights[slot] = static_cast<float>(weights.get(i, k));
      }
      for (index_t c = 0; c < hidden; ++c) {
        far_x.data<std::uint16_t>()[token * hidden + c] = static_cast<std::uint16_t>(x.code(i, c));
        far_dy.data<std::uint16_t>()[token * hidden + c] =
            static_cast<std::uint16_t>(dy.code(i, c));
      }
    }
    auto const matrix = [&](mostly_repeated const& memory) {
      return tensor_view::contiguous(memory.data<std::byte>(), dtype::bf16, {tokens, hidden});
    };
    auto const per_slot = [&](auto& list, dtype type) {
      return tensor_view::contiguous(list.data(), type, {tokens, top_k});
    };
    page_forgetter const forget(
        {&far_x.memory(), &far_dy.memory(), &far_y.memory(), &far_dx.memory()});
    cpu_pool threads(2);
    run_layer(*layer,
              {matrix(far_x), per_slot(far_ids, dtype::int32), per_slot(far_weights, dtype::f32),
               matrix(far_y), matrix(far_dy), matrix(far_dx), per_slot(far_d_weights, dtype::f32)},
              &threads);

    EXPECT_TRUE(holds_only(far_y.repeated(), 0)) << "y of a token without experts is not zero";
    EXPECT_TRUE(holds_only(far_dx.repeated(), 0)) << "dx of a token without experts is not zero";
    for (index_t i = 0; i < count; ++i) {
      index_t const token = used[static_cast<std::size_t>(i)];
      for (index_t c = 0; c < hidden; ++c) {
        ASSERT_EQ(far_y.data<std::uint16_t>()[token * hidden + c], y.code(i, c))
            << "token " << token << ", col " << c;
        ASSERT_EQ(far_dx.data<std::uint16_t>()[token * hidden + c], dx.code(i, c))
            << "token " << token << ", col " << c;
      }
      for (index_t k = 0; k < top_k; ++k) {
        float& gradient = far_d_weights[static_cast<std::size_t>(token * top_k + k)];
        ASSERT_EQ(double{gradient}, d_weights.get(i, k)) << "token " << token << ", k " << k;
        gradient = 0.0F;
      }
    }
    EXPECT_EQ(std::count(far_d_weights.begin(), far_d_weights.end(), 0.0F),
              std::ssize(far_d_weights))
        << "the gradient of an empty slot is not zero";
  });
}

// ---- more than 2^31 slots -----------------------------------------------------------------------

/// Here the numbers of slots themselves need 32 bits and more, not only what they are multiplied
/// with.
TEST(huge_routing, plan_gather_and_combine_of_more_than_2_31_slots) {
  on_huge_memory([] {
    constexpr index_t tokens = (index_t{1} << 28) + 1;
    constexpr index_t slots = tokens * top_k;
    constexpr index_t width = 4;
    static_assert(slots > two_31);
    std::vector<std::pair<index_t, std::int32_t>> const used = {
        {0, 2}, {two_31 / 2 - 1, 1}, {two_31 - 1, 0}, {two_31, 2}, {slots - 1, 0}};
    auto const bytes_of = [&](index_t size, index_t slots_per_element) {
      std::vector<index_t> result;
      for (auto const& [slot, id] : used) result.push_back(slot / slots_per_element * size);
      return result;
    };
    mostly_repeated const ids(slots * 4, bytes_of(4, 1), 0xff);  // -1
    mostly_repeated const slot_to_row(slots * 8, bytes_of(8, 1), 0x5a);
    mostly_repeated const slot_weight(slots * 4, bytes_of(4, 1), 0x5a);
    mostly_repeated const y(tokens * width * 2, bytes_of(width * 2, top_k), 0x5a);
    address_range const row_to_slot(slots * 8), x(tokens * width * 2), rows(slots * width * 2);
    for (auto const& [slot, id] : used) {
      ids.data<std::int32_t>()[slot] = id;
      for (index_t c = 0; c < width; ++c) {
        x.data<std::uint16_t>()[slot / top_k * width + c] = bf16_name_of(slot / top_k, c);
      }
    }
    std::vector<std::int64_t> expert_begin(experts + 1, -5), status(plan_status::count, -5);
    float weight = 0.5F;
    tensor_view weights = tensor_view::contiguous(&weight, dtype::f32, {1, 1});
    weights.extent[0] = tokens;
    weights.extent[1] = top_k;
    weights.stride[0] = weights.stride[1] = 0;  // one weight for all
    routing_plan plan;
    plan.tokens = tokens;
    plan.top_k = top_k;
    plan.experts = experts;
    plan.expert_begin = tensor_view::contiguous(expert_begin.data(), dtype::int64, {experts + 1});
    plan.row_to_slot = tensor_view::contiguous(row_to_slot.data(), dtype::int64, {slots});
    plan.slot_to_row =
        tensor_view::contiguous(slot_to_row.data<std::byte>(), dtype::int64, {slots});
    plan.slot_weight = tensor_view::contiguous(slot_weight.data<std::byte>(), dtype::f32, {slots});
    plan.status = tensor_view::contiguous(status.data(), dtype::int64, {plan_status::count});
    test_tensor const scratch =
        make_workspace(plan_scratch_bytes(tokens, top_k, experts, device::cpu()));
    cpu_pool threads(2);
    page_forgetter const forget(
        {&ids.memory(), &slot_to_row.memory(), &slot_weight.memory(), &y.memory()});
    moe64::plan({.expert_ids =
                     tensor_view::contiguous(ids.data<std::byte>(), dtype::int32, {tokens, top_k}),
                 .weights = weights,
                 .experts_total = experts,
                 .plan = plan,
                 .scratch = scratch.as_workspace()},
                cpu_stream(&threads));
    EXPECT_EQ(expert_begin, (std::vector<std::int64_t>{0, 2, 3, 5}));
    EXPECT_EQ(status, (std::vector<std::int64_t>{5, slots - 5, 0, 0, 0, -1}));
    // By expert, then by slot.
    std::vector<index_t> const order = {two_31 - 1, slots - 1, two_31 / 2 - 1, 0, two_31};
    for (index_t row = 0; row < 5; ++row) {
      index_t const slot = order[static_cast<std::size_t>(row)];
      EXPECT_EQ(row_to_slot.data<std::int64_t>()[row], slot);
      EXPECT_EQ(slot_to_row.data<std::int64_t>()[slot], row);
      EXPECT_EQ(slot_weight.data<float>()[slot], 0.5F);
    }
    EXPECT_TRUE(holds_only(slot_to_row.repeated(), 0xff)) << "an empty slot has a row";
    EXPECT_TRUE(holds_only(slot_weight.repeated(), 0)) << "an empty slot has a weight";
    EXPECT_EQ(row_to_slot.resident_pages(), (std::vector<index_t>{0}));

    tensor_view const tokens_view = tensor_view::contiguous(x.data(), dtype::bf16, {tokens, width});
    tensor_view const rows_view = tensor_view::contiguous(rows.data(), dtype::bf16, {slots, width});
    tensor_view const y_view =
        tensor_view::contiguous(y.data<std::byte>(), dtype::bf16, {tokens, width});
    gather({.x = tokens_view, .plan = plan, .rows = rows_view}, cpu_stream(&threads));
    for (index_t row = 0; row < 5; ++row) {
      index_t const token = order[static_cast<std::size_t>(row)] / top_k;
      for (index_t c = 0; c < width; ++c) {
        EXPECT_EQ(rows.data<std::uint16_t>()[row * width + c], bf16_name_of(token, c));
      }
    }
    EXPECT_EQ(rows.resident_pages(), (std::vector<index_t>{0}));
    combine({.rows = quantized_view::plain(rows_view), .plan = plan, .y = y_view},
            cpu_stream(&threads));
    EXPECT_TRUE(holds_only(y.repeated(), 0)) << "a token without experts is not zero";
    for (index_t const slot : {index_t{0}, two_31 / 2 - 1, two_31 - 1}) {
      for (index_t c = 0; c < width; ++c) {
        index_t const at = slot / top_k * width + c;
        EXPECT_EQ(y.data<std::uint16_t>()[at], bf16_name_of(slot / top_k, c)) << "slot " << slot;
      }
    }
    // The last token has two slots: twice its number is one exponent more.
    for (index_t c = 0; c < width; ++c) {
      index_t const at = (tokens - 1) * width + c;
      EXPECT_EQ(y.data<std::uint16_t>()[at], bf16_name_of(tokens - 1, c) + 0x80);
    }
  });
}

}  // namespace
}  // namespace moe64::test
