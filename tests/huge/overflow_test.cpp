// Sizes whose product does not fit 63 bits: errc::size_overflow from every query, never a small
// number that happens to be what is left of it, and no memory taken on the way.
#include "moe64/layer.hpp"
#include "support/error_matcher.hpp"
#include "support/huge_memory.hpp"

#include <cstdio>

namespace moe64::test {
namespace {

constexpr index_t two_31 = index_t{1} << 31;
constexpr index_t two_32 = index_t{1} << 32;
constexpr index_t two_62 = index_t{1} << 62;
constexpr index_t largest = std::numeric_limits<index_t>::max();

index_t address_bytes() {
  long total = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &total) != 1) {
    throw machine_refuses("/proc/self/statm cannot be read");
  }
  std::fclose(file);
  return index_t{total} * page_bytes;
}

/// The body, which must neither keep memory nor ask for addresses.
template <class Body>
void without_memory(Body const& body) {
  on_huge_memory([&] {
    EXPECT_MOE64_ERROR(static_cast<void>(checked_mul(two_62, 4)), errc::size_overflow);  // warm up
    index_t const anonymous = anonymous_bytes();
    index_t const addresses = address_bytes();
    body();
    EXPECT_LT(anonymous_bytes() - anonymous, index_t{1} << 20);
    EXPECT_LT(address_bytes() - addresses, index_t{1} << 20);
  });
}

/// A plain stack of any extents over one number: every stride is 0.
quantized_view broadcast(float& number, index_t experts, index_t rows, index_t cols) {
  tensor_view view = tensor_view::contiguous(&number, dtype::f32, {1, 1, 1});
  view.extent[0] = experts;
  view.extent[1] = rows;
  view.extent[2] = cols;
  for (index_t& stride : view.stride) stride = 0;
  return quantized_view::plain(view);
}

layer_desc broadcast_layer(float& number, index_t experts, index_t inter, index_t hidden) {
  layer_desc layer;
  layer.gate_up.weights = weight_stack::gate_up(broadcast(number, experts, inter, hidden),
                                                broadcast(number, experts, inter, hidden));
  layer.down.weights = weight_stack::single(broadcast(number, experts, hidden, inter));
  return layer;
}

TEST(huge_overflow, contiguous_tensors) {
  without_memory([] {
    auto const make = [](dtype type, std::initializer_list<index_t> extents) {
      static_cast<void>(tensor_view::contiguous(nullptr, type, extents));
    };
    for (dtype const type : {dtype::e4m3, dtype::bf16, dtype::f32, dtype::int64, dtype::fp4}) {
      EXPECT_MOE64_ERROR(make(type, {two_32, two_32}), errc::size_overflow);      // 2^64: 0 is left
      EXPECT_MOE64_ERROR(make(type, {two_32 + 1, two_32}), errc::size_overflow);  // 2^32 is left
      EXPECT_MOE64_ERROR(make(type, {two_62, 2, 2}), errc::size_overflow);
      EXPECT_MOE64_ERROR(make(type, {3037000500, 3037000500}), errc::size_overflow);
      EXPECT_MOE64_ERROR(make(type, {index_t{1} << 21, index_t{1} << 21, index_t{1} << 21}),
                         errc::size_overflow);
      // An empty dimension does not excuse the others: strides would be wrong.
      EXPECT_MOE64_ERROR(make(type, {0, two_32, two_32}), errc::size_overflow);
    }
    // The number of elements fits, the number of bytes does not.
    EXPECT_MOE64_ERROR(make(dtype::bf16, {two_62}), errc::size_overflow);
    EXPECT_MOE64_ERROR(make(dtype::f32, {two_31, index_t{1} << 30}), errc::size_overflow);
    EXPECT_MOE64_ERROR(make(dtype::int64, {index_t{1} << 60}), errc::size_overflow);
    EXPECT_MOE64_ERROR(make(dtype::int4, {largest}), errc::size_overflow);  // rounded up to a byte
  });
}

TEST(huge_overflow, the_largest_tensors_that_fit) {
  without_memory([] {
    auto const bytes = [](dtype type, std::initializer_list<index_t> extents) {
      return tensor_view::contiguous(nullptr, type, extents).span_bytes();
    };
    EXPECT_EQ(bytes(dtype::uint8, {largest}), largest);
    EXPECT_EQ(bytes(dtype::bf16, {two_62 - 1}), largest - 1);
    EXPECT_EQ(bytes(dtype::f32, {two_31 - 1, index_t{1} << 30}), largest - two_32 + 1);
    EXPECT_EQ(bytes(dtype::int64, {(index_t{1} << 60) - 1}), largest - 7);
    EXPECT_EQ(bytes(dtype::fp4, {largest - 1}), two_62 - 1);
    EXPECT_EQ(bytes(dtype::e4m3, {two_31, two_32 - 1}), largest - two_31 + 1);
  });
}

TEST(huge_overflow, spans_of_strided_tensors) {
  without_memory([] {
    float number = 0.0F;
    tensor_view view = tensor_view::contiguous(&number, dtype::f32, {2, 2});
    view.stride[0] = largest;
    EXPECT_MOE64_ERROR(view.span(), errc::size_overflow);
    EXPECT_MOE64_ERROR(view.slice(0, 1, 2), errc::size_overflow);
    EXPECT_MOE64_ERROR(view.every(0, 0, 2), errc::size_overflow);
    view.stride[0] = two_62;
    EXPECT_EQ(view.span(), two_62 + 2);
    EXPECT_MOE64_ERROR(view.span_bytes(), errc::size_overflow);
    view.extent[0] = view.extent[1] = two_32;
    EXPECT_MOE64_ERROR(view.size(), errc::size_overflow);
    tensor_view const many = broadcast(number, two_32, two_32, 1).values();
    EXPECT_MOE64_ERROR(many.as_matrix(), errc::size_overflow);
  });
}

TEST(huge_overflow, plans) {
  without_memory([] {
    device const cpu = device::cpu();
    struct extents {
      index_t tokens, top_k, experts;
    };
    for (extents const& e :
         {extents{two_32, two_32, 8}, extents{two_62, 8, 8}, extents{two_32 + 1, two_32, 8},
          extents{1, 1, largest}, extents{index_t{1} << 58, 4, 8}, extents{two_31, two_31, 8},
          extents{1, 1, index_t{1} << 60}}) {
      EXPECT_MOE64_ERROR(plan_bytes(e.tokens, e.top_k, e.experts), errc::size_overflow);
      EXPECT_MOE64_ERROR(plan_scratch_bytes(e.tokens, e.top_k, e.experts, cpu),
                         errc::size_overflow);
      EXPECT_MOE64_ERROR(bind_plan({}, e.tokens, e.top_k, e.experts), errc::size_overflow);
    }
    // 2^58 slots are 20 bytes each: that fits, and so is it said.
    EXPECT_GT(plan_bytes(index_t{1} << 55, 8, 8), index_t{20} << 58);
    EXPECT_LT(plan_bytes(index_t{1} << 55, 8, 8), (index_t{20} << 58) + 1024);
    EXPECT_MOE64_ERROR(plan_bytes(-1, 8, 8), errc::invalid_argument);
  });
}

TEST(huge_overflow, workspaces_of_the_layer) {
  without_memory([] {
    float number = 1.0F;
    device const cpu = device::cpu();
    struct extents {
      index_t experts, inter, hidden, tokens, top_k;
    };
    for (extents const& e : {
             extents{8, 16, 16, two_32, two_32},            // slots
             extents{8, 16, 16, two_62, 4},                 // slots
             extents{8, index_t{1} << 30, 16, two_31, 4},   // slots x 2 inter
             extents{8, two_31, two_31, 1 << 12, 1 << 20},  // slots x 2 inter
             extents{8, 16, two_31, two_31, 4},             // slots x hidden
             extents{8, 16, 16, index_t{1} << 55, 4},       // bytes of slots x 2 inter
             extents{index_t{1} << 60, 16, 16, 1, 1},       // bytes of expert_begin
         }) {
      SCOPED_TRACE(testing::Message() << "experts " << e.experts << ", inter " << e.inter
                                      << ", hidden " << e.hidden << ", tokens " << e.tokens);
      layer_desc const layer = broadcast_layer(number, e.experts, e.inter, e.hidden);
      layer_shape const shape = {e.tokens, e.top_k, dtype::bf16};
      bool const rows_alone = e.hidden == two_31 && e.inter == 16;
      if (!rows_alone) {
        EXPECT_MOE64_ERROR(saved_bytes(layer, shape, cpu), errc::size_overflow);
      }
      EXPECT_MOE64_ERROR(forward_bytes(layer, shape, false, cpu), errc::size_overflow);
      EXPECT_MOE64_ERROR(saved_plan(layer, shape, {}),
                         rows_alone ? errc::workspace_too_small : errc::size_overflow);
      if (e.experts > 8) continue;  // backward's own scratch does not grow with them
      layer_gradients gradients;
      gradients.weights.rank = 2;  // asked for; the query looks no further
      EXPECT_MOE64_ERROR(backward_bytes(layer, shape, gradients, cpu), errc::size_overflow);
    }
  });
}

TEST(huge_overflow, weight_stacks) {
  without_memory([] {
    float number = 1.0F;
    quantized_view const tall = broadcast(number, 1, two_62, 1);
    EXPECT_MOE64_ERROR(weight_stack::gate_up(tall, tall), errc::size_overflow);
    EXPECT_EQ(weight_stack::single(tall).rows(), two_62);
    std::uint8_t code = 0;
    tensor_view values = tensor_view::contiguous(&code, dtype::e4m3, {1, 2, 2});
    tensor_view scales = tensor_view::contiguous(&number, dtype::f32, {1, 2, 2});
    scales.stride[1] = largest;
    EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, granularity::block(1, 1)),
                       errc::size_overflow);
    scales.stride[1] = 2;
    values.stride[1] = largest;
    EXPECT_MOE64_ERROR(quantized_view::scaled(values, scales, granularity::block(1, 1)),
                       errc::size_overflow);
  });
}

TEST(huge_overflow, operations_refuse_plans_that_cannot_be) {
  without_memory([] {
    std::int64_t word = 0;
    float number = 0.0F;
    routing_plan plan;
    plan.tokens = two_32;
    plan.top_k = two_32;
    plan.experts = 1;
    plan.expert_begin = tensor_view::contiguous(&word, dtype::int64, {1});
    plan.row_to_slot = plan.slot_to_row = plan.status = plan.expert_begin;
    plan.slot_weight = tensor_view::contiguous(&number, dtype::f32, {1});
    tensor_view const x = tensor_view::contiguous(&number, dtype::f32, {1, 1});
    EXPECT_MOE64_ERROR(gather({.x = x, .plan = plan, .rows = x}, cpu_stream()),
                       errc::size_overflow);
    EXPECT_MOE64_ERROR(
        combine({.rows = quantized_view::plain(x), .plan = plan, .y = x}, cpu_stream()),
        errc::size_overflow);
    plan.tokens = plan.top_k = 1;
    plan.experts = largest;
    EXPECT_MOE64_ERROR(gather({.x = x, .plan = plan, .rows = x}, cpu_stream()),
                       errc::size_overflow);
  });
}

}  // namespace
}  // namespace moe64::test
