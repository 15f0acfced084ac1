// Whole layers on stacks of experts past 2^31 and 2^32 elements, forward and backward. A few
// experts have numbers, all other memory of the stack is NaN (every byte 0xff): a read that lost
// its upper bits, or touched an expert without tokens, shows in the result. The same experts packed
// into a small stack - the same pages, mapped a second time - must give the same bits.
#include "moe64/layer.hpp"
#include "support/huge_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace moe64::test {
namespace {

constexpr index_t two_31 = index_t{1} << 31;
constexpr index_t two_32 = index_t{1} << 32;

/// Values of one projection: a huge stack, and the experts of it that are used as a small one.
class sparse_stack {
 public:
  sparse_stack(dtype type, std::vector<index_t> extents, std::vector<index_t> const& used)
      : type_(type),
        extents_(std::move(extents)),
        used_(std::ssize(used)),
        matrix_bytes_(extents_[1] * extents_[2] * bits(type) / 8),
        numbers_(used_ * matrix_bytes_),
        huge_(extents_[0] * matrix_bytes_) {
    std::memset(nothing_.data(), 0xff, static_cast<std::size_t>(nothing_.bytes()));
    huge_.repeat(nothing_);
    for (index_t i = 0; i < used_; ++i) {
      huge_.map(used[static_cast<std::size_t>(i)] * matrix_bytes_, matrix_bytes_, numbers_,
                i * matrix_bytes_);
    }
    fill();
  }

  [[nodiscard]] index_t size() const { return huge().size(); }
  [[nodiscard]] tensor_view huge() const {
    return tensor_view::contiguous(huge_.data(), type_, {extents_[0], extents_[1], extents_[2]});
  }
  [[nodiscard]] tensor_view small() const {
    return tensor_view::contiguous(numbers_.data(), type_, {used_, extents_[1], extents_[2]});
  }

 private:
  void fill() {
    if (type_ == dtype::bf16) {
      for (index_t i = 0; i < numbers_.bytes() / 2; ++i) {
        numbers_.data<std::uint16_t>()[i] = bf16_name_of(1, i);
      }
      return;
    }
    // e4m3: both signs, 2^-2 to 2^2; fp4: anything.
    std::uint8_t const low = type_ == dtype::e4m3 ? 5U << 3 : 0U;
    std::uint8_t const mask = type_ == dtype::e4m3 ? 0x9fU : 0xffU;
    for (index_t i = 0; i < numbers_.bytes(); ++i) {
      numbers_.data<std::uint8_t>()[i] = static_cast<std::uint8_t>((name_of(2, i) & mask) + low);
    }
  }

  dtype type_;
  std::vector<index_t> extents_;
  index_t used_;
  index_t matrix_bytes_;
  memory_file nothing_{509 * page_bytes};
  memory_file numbers_;
  address_range huge_;
};

/// Scales are few: ordinary memory, NaN for experts that are not used.
struct stack_scales {
  test_tensor huge, small;
  granularity layout;

  stack_scales() = default;
  stack_scales(dtype type, granularity grid, tensor_view const& values, int parts,
               std::vector<index_t> const& used)
      : layout(grid) {
    index_t const rows = parts * grid.grid_rows(values.extent[1] / parts);
    index_t const cols = grid.grid_cols(values.extent[2]);
    huge = test_tensor(type, {values.extent[0], rows, cols});  // starts as NaN
    small = test_tensor(type, {std::ssize(used), rows, cols});
    for (index_t i = 0; i < std::ssize(used); ++i) {
      for (index_t r = 0; r < rows; ++r) {
        for (index_t c = 0; c < cols; ++c) {
          double const scale = std::ldexp(1.0, static_cast<int>(name_of(i * rows + r, c) % 4) - 6);
          small.set(scale, i, r, c);
          huge.set(scale, used[static_cast<std::size_t>(i)], r, c);
        }
      }
    }
  }
};

weight_stack stack_of(tensor_view const& values, tensor_view const& scales, granularity grid,
                      int parts, gate_up_layout layout) {
  auto const part = [&](tensor_view const& v, tensor_view const& s) {
    return scales.present() ? quantized_view::scaled(v, s, grid) : quantized_view::plain(v);
  };
  if (parts == 1) return weight_stack::single(part(values, scales));
  auto const halves = split_gate_up(values, layout);
  if (!scales.present()) {
    return weight_stack::gate_up(part(halves[0], {}), part(halves[1], {}));
  }
  auto const grids = split_gate_up(scales, gate_up_layout::concatenated);
  return weight_stack::gate_up(part(halves[0], grids[0]), part(halves[1], grids[1]));
}

struct layer_result {
  std::vector<std::uint64_t> y, dx, d_weights;
};

/// Two tokens per expert and one that goes nowhere; each token also has an empty slot.
layer_result run_layer(layer_desc const& layer, std::vector<index_t> const& experts) {
  index_t const tokens = 2 * std::ssize(experts) + 1;
  index_t const top_k = 2;
  test_tensor x(dtype::bf16, {tokens, layer.hidden()}), dy(dtype::bf16, {tokens, layer.hidden()});
  test_tensor y(dtype::bf16, {tokens, layer.hidden()}), dx(dtype::bf16, {tokens, layer.hidden()});
  test_tensor ids(dtype::int64, {tokens, top_k}), weights(dtype::f32, {tokens, top_k});
  test_tensor d_weights(dtype::f32, {tokens, top_k});
  x.fill_uniform(1);
  dy.fill_uniform(2);
  weights.fill_uniform(3);
  ids.fill([&](index_t t, index_t k, index_t) {
    bool const nowhere = t == tokens - 1 || k == t % 2;
    return nowhere ? -1.0 : static_cast<double>(experts[static_cast<std::size_t>(t / 2)]);
  });
  layer_shape const shape = {tokens, top_k, dtype::bf16};
  layer_gradients gradients;
  gradients.x = dx;
  gradients.weights = d_weights;
  device const cpu = device::cpu();
  test_tensor const saved = make_workspace(saved_bytes(layer, shape, cpu));
  test_tensor const scratch = make_workspace(forward_bytes(layer, shape, true, cpu));
  test_tensor const back = make_workspace(backward_bytes(layer, shape, gradients, cpu));
  cpu_pool threads(2);
  forward(layer,
          {.x = x,
           .expert_ids = ids,
           .weights = weights,
           .y = y,
           .saved = saved.as_workspace(),
           .scratch = scratch.as_workspace()},
          cpu_stream(&threads));
  backward(layer,
           {.x = x,
            .dy = dy,
            .top_k = top_k,
            .saved = saved.as_workspace(),
            .scratch = back.as_workspace(),
            .gradients = gradients},
           cpu_stream(&threads));
  for (index_t token = 0; token < tokens - 1; ++token) {
    double largest = 0.0;
    for (index_t c = 0; c < layer.hidden(); ++c) {
      EXPECT_TRUE(std::isfinite(y.get(token, c)) && std::isfinite(dx.get(token, c)))
          << "token " << token << ", col " << c;
      largest = std::max(largest, std::fabs(y.get(token, c) * dx.get(token, c)));
      if (testing::Test::HasFailure()) return {};
    }
    EXPECT_GT(largest, 0.0) << "token " << token << " came out as zeros";
  }
  return {y.codes(), dx.codes(), d_weights.codes()};
}

struct layer_case {
  dtype type = dtype::bf16;
  granularity grid = {};
  dtype scale = dtype::f32;
  index_t experts = 0, inter = 0, hidden = 0;
  std::vector<index_t> used;
  gate_up_layout layout = gate_up_layout::concatenated;
  compute_mode mode = compute_mode::automatic;
};

/// `gate_up_size` and `down_size` state what the case is about: elements of the stacks.
void check_layer(layer_case const& c, index_t gate_up_size, index_t down_size) {
  sparse_stack const gate_up(c.type, {c.experts, 2 * c.inter, c.hidden}, c.used);
  sparse_stack const down(c.type, {c.experts, c.hidden, c.inter}, c.used);
  ASSERT_EQ(gate_up.size(), gate_up_size);
  ASSERT_EQ(down.size(), down_size);
  stack_scales gate_up_scales, down_scales;
  if (c.grid.kind != scale_kind::none) {
    gate_up_scales = stack_scales(c.scale, c.grid, gate_up.huge(), 2, c.used);
    down_scales = stack_scales(c.scale, c.grid, down.huge(), 1, c.used);
  }
  layer_desc huge, small;
  huge.mode = small.mode = c.mode;
  huge.gate_up.weights = stack_of(gate_up.huge(), gate_up_scales.huge, c.grid, 2, c.layout);
  huge.down.weights = stack_of(down.huge(), down_scales.huge, c.grid, 1, c.layout);
  small.gate_up.weights = stack_of(gate_up.small(), gate_up_scales.small, c.grid, 2, c.layout);
  small.down.weights = stack_of(down.small(), down_scales.small, c.grid, 1, c.layout);
  std::vector<index_t> packed;
  for (index_t i = 0; i < std::ssize(c.used); ++i) packed.push_back(i);
  layer_result const expected = run_layer(small, packed);
  ASSERT_FALSE(testing::Test::HasFailure()) << "the small stack is wrong already";
  layer_result const actual = run_layer(huge, c.used);
  EXPECT_TRUE(actual.y == expected.y);
  EXPECT_TRUE(actual.dx == expected.dx);
  EXPECT_TRUE(actual.d_weights == expected.d_weights);
}

/// 9 GiB of gate_up: expert 56 holds element 2^31 (byte 2^32) and expert 113 element 2^32; of down
/// expert 113 holds element 2^31.
TEST(huge_stack, bf16_of_9_gib) {
  on_huge_memory([] {
    check_layer({.experts = 128, .inter = 3072, .hidden = 6144, .used = {0, 56, 113, 127}},
                index_t{9} << 29, index_t{9} << 28);
  });
}

layer_case exact_powers() {
  return {.type = dtype::e4m3,
          .grid = granularity::block(128, 128),
          .experts = 256,
          .inter = 2048,
          .hidden = 4096,
          .used = {0, 127, 128, 255}};
}

TEST(huge_stack, e4m3_of_2_32_and_2_31_elements) {
  on_huge_memory([] { check_layer(exact_powers(), two_32, two_31); });
}

TEST(huge_stack, e4m3_interleaved) {
  on_huge_memory([] {
    layer_case interleaved = exact_powers();
    interleaved.layout = gate_up_layout::interleaved;
    check_layer(interleaved, two_32, two_31);
  });
}

TEST(huge_stack, e4m3_with_quantised_activations) {
  on_huge_memory([] {
    layer_case quantised = exact_powers();
    quantised.mode = compute_mode::w8a8;
    check_layer(quantised, two_32, two_31);
  });
}

/// One expert more than fits: it begins at element 2^32 of gate_up and 2^31 of down.
TEST(huge_stack, e4m3_one_expert_past_2_32_elements) {
  on_huge_memory([] {
    layer_case one_more = exact_powers();
    one_more.experts = 257;
    one_more.used = {0, 1, 255, 256};
    check_layer(one_more, two_32 + (index_t{1} << 24), two_31 + (index_t{1} << 23));
  });
}

/// Two codes per byte: 2^33 elements are 2^32 bytes. 0xff is no NaN here but -6; the scales of
/// unused experts are NaN.
TEST(huge_stack, mxfp4_past_2_32_bytes) {
  on_huge_memory([] {
    check_layer({.type = dtype::fp4,
                 .grid = granularity::group(32),
                 .scale = dtype::e8m0,
                 .experts = 514,
                 .inter = 2048,
                 .hidden = 4096,
                 .used = {0, 255, 512, 513}},
                2 * two_32 + (index_t{1} << 25), two_32 + (index_t{1} << 24));
  });
}

}  // namespace
}  // namespace moe64::test
