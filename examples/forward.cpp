#include <moe64/moe64.hpp>

#include <cstdio>
#include <vector>

int main() {
  using namespace moe64;
  index_t const tokens = 2, hidden = 256, inter = 128, experts = 4, top_k = 2;
  // FP8 codes (0x38 is 1.0) with one scale per 128 x 128 block, as a checkpoint stores them.
  std::vector<unsigned char> gate_up(experts * 2 * inter * hidden, 0x38);
  std::vector<unsigned char> down(experts * hidden * inter, 0x38);
  std::vector<float> gate_up_scales(experts * 2 * 2, 1.0F / 256),
      down_scales(experts * 2, 1.0F / 128);
  auto const block = granularity::block(128, 128);
  auto const halves = gate_up_layout::concatenated;
  auto const [gate, up] = split_gate_up(
      tensor_view::contiguous(gate_up.data(), dtype::e4m3, {experts, 2 * inter, hidden}), halves);
  auto const [gate_scale, up_scale] = split_gate_up(
      tensor_view::contiguous(gate_up_scales.data(), dtype::f32, {experts, 2, 2}), halves);

  layer_desc layer;  // SiLU-gated by default
  layer.gate_up.weights = weight_stack::gate_up(quantized_view::scaled(gate, gate_scale, block),
                                                quantized_view::scaled(up, up_scale, block));
  layer.down.weights = weight_stack::single(quantized_view::scaled(
      tensor_view::contiguous(down.data(), dtype::e4m3, {experts, hidden, inter}),
      tensor_view::contiguous(down_scales.data(), dtype::f32, {experts, 2, 1}), block));

  std::vector<float> x(tokens * hidden, 1.0F), y(tokens * hidden),
      weight = {0.5F, 0.5F, 1.0F, 9.0F};
  std::vector<int> ids = {0, 3, 2, -1};  // -1: no expert here, whatever its weight says
  cpu_buffer scratch(forward_bytes(layer, {tokens, top_k, dtype::f32}, false, device::cpu()));
  cpu_pool threads(2);
  forward(layer,
          {.x = tensor_view::contiguous(x.data(), dtype::f32, {tokens, hidden}),
           .expert_ids = tensor_view::contiguous(ids.data(), dtype::int32, {tokens, top_k}),
           .weights = tensor_view::contiguous(weight.data(), dtype::f32, {tokens, top_k}),
           .y = tensor_view::contiguous(y.data(), dtype::f32, {tokens, hidden}),
           .scratch = scratch.memory()},
          cpu_stream(&threads));
  std::printf("y = %.6f %.6f, both silu(1) = 0.731059\n", y.front(), y.back());
}
