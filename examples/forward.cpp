#include <moe64/moe64.hpp>

#include <cstdio>
#include <vector>

int main() {
  using namespace moe64;
  index_t const tokens = 2, hidden = 256, inter = 128, experts = 4, top_k = 2;
  // FP8 codes with one scale per 128 x 128 block, as a checkpoint stores them; 0x38 is 1.0.
  std::vector<unsigned char> gate(experts * inter * hidden, 0x38), up = gate, down = gate;
  std::vector<float> scale_in(experts * 2, 1.0F / hidden), scale_out(experts * 2, 1.0F / inter);
  auto const stack = [](auto& codes, auto& scales, index_t rows, index_t cols) {
    return quantized_view::scaled(
        tensor_view::contiguous(codes.data(), dtype::e4m3, {experts, rows, cols}),
        tensor_view::contiguous(scales.data(), dtype::f32, {experts, rows / 128, cols / 128}),
        granularity::block(128, 128));
  };
  layer_desc layer;  // SiLU-gated by default
  layer.gate_up.weights = weight_stack::gate_up(stack(gate, scale_in, inter, hidden),
                                                stack(up, scale_in, inter, hidden));
  layer.down.weights = weight_stack::single(stack(down, scale_out, hidden, inter));

  std::vector<float> x(tokens * hidden, 1.0F), y(tokens * hidden);
  std::vector<int> ids = {0, 3, 2, -1};  // -1: no expert here, whatever its weight says
  std::vector<float> weights = {0.5F, 0.5F, 1.0F, 9.0F};
  cpu_buffer scratch(forward_bytes(layer, {tokens, top_k, dtype::f32}, false, device::cpu()));
  cpu_pool threads(2);
  forward(layer,
          {.x = tensor_view::contiguous(x.data(), dtype::f32, {tokens, hidden}),
           .expert_ids = tensor_view::contiguous(ids.data(), dtype::int32, {tokens, top_k}),
           .weights = tensor_view::contiguous(weights.data(), dtype::f32, {tokens, top_k}),
           .y = tensor_view::contiguous(y.data(), dtype::f32, {tokens, hidden}),
           .scratch = scratch.memory()},
          cpu_stream(&threads));
  std::printf("y = %.6f %.6f, both silu(1) = 0.731059\n", y.front(), y.back());
}
