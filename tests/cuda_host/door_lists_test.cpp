// Which implementation of an operation a call gets on a CUDA device, and what the others say.
#include "cuda_host/machine.hpp"
#include "moe64/explain.hpp"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace moe64::test {
namespace {

class door_lists : public on_mock {
 protected:
  /// Where nobody looks: explain() reads no element.
  static tensor_view tensor(dtype type, std::initializer_list<index_t> extents) {
    alignas(16) static char memory[16];
    return tensor_view::contiguous(memory, type, extents, device::cuda(5));
  }
  /// The one that runs.
  template <class Args>
  std::string taken(Args const& args) {
    cuda_queue const queue(device::cuda(5));
    for (implementation_report const& report : explain(args, queue.get())) {
      if (report.answer) return report.name;
    }
    return "nobody";
  }
  template <class Args>
  std::string reason(Args const& args, std::string const& name) {
    cuda_queue const queue(device::cuda(5));
    for (implementation_report const& report : explain(args, queue.get())) {
      if (report.name == name) return report.answer.reason();
    }
    return "it is not in the list";
  }
};

TEST_F(door_lists, quantize) {
  auto const call = [](granularity layout, dtype scale, index_t cols) {
    return quantize_args{tensor(dtype::bf16, {4, cols}), layout, tensor(dtype::e4m3, {4, cols}),
                         tensor(scale, {layout.grid_rows(4), layout.grid_cols(cols)})};
  };
  EXPECT_EQ(taken(call(granularity::group(128), dtype::f32, 256)), "fp8_row_major");
  EXPECT_EQ(taken(call(granularity::group(64), dtype::f32, 256)), "groups");
  EXPECT_EQ(taken(call(granularity::row(), dtype::f32, 768)), "blocks");
  EXPECT_EQ(taken(call(granularity::group(128), dtype::f32, 250)), "reference");
  EXPECT_EQ(reason(call(granularity::group(128), dtype::bf16, 256), "fp8_row_major"),
            "to e4m3 with scales of bf16, not to e4m3 with scales of f32");
  EXPECT_EQ(reason(call(granularity::group(64), dtype::f32, 256), "fp8_row_major"),
            "a scale for every 1 x 64 elements, not for 128 or for a row");
  EXPECT_EQ(reason(call(granularity::group(128), dtype::f32, 250), "fp8_row_major"),
            "250 columns are no multiple of 16");
}

TEST_F(door_lists, gather) {
  small_gather const small(device::cuda(5));
  auto const call = [&](granularity layout, index_t hidden) {
    gather_args args = small.args;
    args.x = tensor(dtype::bf16, {3, hidden});
    args.rows = tensor(dtype::e4m3, {6, hidden});
    args.row_scales = tensor(dtype::f32, {6, layout.grid_cols(hidden)});
    args.quantized = layout;
    return args;
  };
  EXPECT_EQ(taken(small.args), "vectors");
  EXPECT_EQ(taken(call(granularity::group(128), 2048)), "fp8_row_major");
  EXPECT_EQ(taken(call(granularity::row(), 2048)), "fp8_row_major");
  EXPECT_EQ(taken(call(granularity::row(), 16400)), "quantized_rows");
  EXPECT_EQ(taken(call(granularity::group(64), 2048)), "quantized_groups");
  EXPECT_EQ(reason(call(granularity::row(), 16400), "fp8_row_major"),
            "rows of 16400 columns with one scale: it takes at most 16384");
  gather_args weighted = call(granularity::group(128), 2048);
  weighted.weighted = true;
  EXPECT_EQ(taken(weighted), "quantized_groups");
  EXPECT_EQ(reason(weighted, "fp8_row_major"), "rows are weighted");
}

TEST_F(door_lists, activate) {
  auto const call = [](activation kind, index_t rows, granularity layout) {
    constexpr index_t inter = 2048;
    activate_args args{{kind},
                       tensor(dtype::bf16, {rows, inter}),
                       tensor(dtype::bf16, {rows, inter}),
                       {},
                       tensor(dtype::bf16, {rows, inter})};
    if (layout.kind == scale_kind::none) return args;
    args.out = tensor(dtype::e4m3, {rows, inter});
    args.scales = tensor(dtype::f32, {rows, layout.grid_cols(inter)});
    args.quantized = layout;
    return args;
  };
  granularity const none, groups = granularity::group(128), rows = granularity::row();
  EXPECT_EQ(taken(call(activation::silu_glu, 4096, none)), "vectors");
  EXPECT_EQ(taken(call(activation::gelu_glu, 4096, none)), "table");
  EXPECT_EQ(taken(call(activation::gelu_glu, 16, none)), "vectors");
  for (granularity const& layout : {groups, rows}) {
    EXPECT_EQ(taken(call(activation::silu_glu, 4096, layout)), "fp8_row_major");
    EXPECT_EQ(taken(call(activation::gelu_glu, 4096, layout)), "fp8_row_major_table");
    EXPECT_EQ(taken(call(activation::gelu_glu, 16, layout)), "fp8_row_major");
  }
  EXPECT_EQ(taken(call(activation::silu_glu, 4096, granularity::group(64))), "quantized_groups");
  EXPECT_EQ(reason(call(activation::silu_glu, 16, none), "table"),
            "a table of gates is for gelu of bf16 and at least 2^22 elements, not for silu_glu of "
            "32768 bf16");
}

TEST_F(door_lists, combine) {
  small_gather const small(device::cuda(5));
  auto const call = [&](index_t tokens) {
    combine_args args{quantized_view::plain(tensor(dtype::bf16, {2 * tokens, 2048})),
                      small.args.plan, false, tensor(dtype::bf16, {tokens, 2048})};
    args.plan.tokens = tokens;
    args.plan.slot_to_row = tensor(dtype::int64, {2 * tokens});
    args.plan.row_to_slot = tensor(dtype::int64, {2 * tokens});
    args.plan.slot_weight = tensor(dtype::f32, {2 * tokens});
    return args;
  };
  EXPECT_EQ(taken(call(8)), "small_batch");
  EXPECT_EQ(taken(call(8192)), "vectors");
  EXPECT_THAT(reason(call(8192), "small_batch"), testing::HasSubstr("it is for at most 512"));
}

}  // namespace
}  // namespace moe64::test
