#include "layer/check.hpp"

#include "core/arena.hpp"
#include "core/fail.hpp"

#include <string>
#include <vector>

namespace moe64 {
namespace {

void check_lora(checker const& check, std::string const& label, projection const& p) {
  if (!p.lora.present()) return;
  check.weights(label + ".lora.a", p.lora.a);
  check.weights(label + ".lora.b", p.lora.b);
  if (!p.lora.a.is_plain() || !p.lora.b.is_plain()) {
    fail(errc::dtype_mismatch, "[{}] {}.lora is {} and {}: expected f32, bf16 or f16",
         check.operation(), label, name(p.lora.a.type()), name(p.lora.b.type()));
  }
  check.in_order(label + ".lora.a", p.lora.a.part(0));
  for (int part = 0; part < p.lora.b.parts(); ++part) {
    check.in_order(label + ".lora.b", p.lora.b.part(part));
  }
  check.equal(label + ".lora.a parts", p.lora.a.parts(), "one", 1);
  check.equal(label + ".lora.a cols", p.lora.a.cols(), label + " cols", p.weights.cols());
  check.equal(label + ".lora.a experts", p.lora.a.experts(), label + " experts",
              p.weights.experts());
  check.equal(label + ".lora.b experts", p.lora.b.experts(), label + " experts",
              p.weights.experts());
  check.equal(label + ".lora.b parts", p.lora.b.parts(), label + " parts", p.weights.parts());
  check.equal(label + ".lora.b rows", p.lora.b.rows(), label + " rows", p.weights.rows());
  check.equal(label + ".lora.b cols", p.lora.b.cols(), label + ".lora.a rows", p.lora.a.rows());
}

void check_projection(checker const& check, std::string const& label, projection const& p) {
  check.weights(label, p.weights);
  for (int part = 0; part < 2; ++part) {
    tensor_view const& bias = p.bias[static_cast<std::size_t>(part)];
    if (!bias.present()) continue;
    check.require(part < p.weights.parts(), fmt::format("{}.bias of part {}, but {} has {} parts",
                                                        label, part, label, p.weights.parts()));
    check.number(label + ".bias", bias, {p.weights.experts(), p.weights.part_rows()});
  }
  check_lora(check, label, p);
}

bool wants_lora(projection_gradients const& gradients) {
  return gradients.lora_a.present() || gradients.lora_b[0].present() ||
         gradients.lora_b[1].present();
}

void check_exist(checker const& check, std::string const& label, projection const& p,
                 projection_gradients const& gradients) {
  check.require(!wants_lora(gradients) || p.lora.present(),
                fmt::format("a gradient of {}.lora is asked for, but {} has none", label, label));
  for (int i = 0; i < 2; ++i) {
    auto const part = static_cast<std::size_t>(i);
    bool const wanted = gradients.weights[part].present() || gradients.bias[part].present() ||
                        gradients.lora_b[part].present();
    check.require(!wanted || i < p.weights.parts(),
                  fmt::format("a gradient of part {} of {} is asked for, but it has {} parts", i,
                              label, p.weights.parts()));
    if (gradients.weights[part].present() && !p.weights.is_plain()) {
      fail(errc::unsupported,
           "[{}] gradient of {} is asked for, but its {} weights are frozen: only f32, bf16 and "
           "f16 weights have one",
           check.operation(), label, name(p.weights.type()));
    }
    check.require(!gradients.bias[part].present() || p.bias[part].present(),
                  fmt::format("a gradient of {}.bias is asked for, but it is absent", label));
  }
}

/// An output with its name, for checks that look at all of them.
using named_tensor = std::pair<std::string, tensor_view>;

void check_outputs(checker const& check, std::string const& label, projection const& p,
                   projection_gradients const& gradients, std::vector<named_tensor>& outputs) {
  index_t const experts = p.weights.experts();
  index_t const part_rows = p.weights.part_rows();
  auto const output = [&](std::string const& name, tensor_view const& tensor,
                          std::initializer_list<index_t> extents) {
    if (!tensor.present()) return;
    check.number(name, tensor, extents);
    outputs.emplace_back(name, tensor);
  };
  for (std::size_t part = 0; part < 2; ++part) {
    output(label + " gradient", gradients.weights[part], {experts, part_rows, p.weights.cols()});
    output(label + ".bias gradient", gradients.bias[part], {experts, part_rows});
    if (p.lora.present()) {
      output(label + ".lora.b gradient", gradients.lora_b[part],
             {experts, part_rows, p.lora.b.cols()});
    }
  }
  if (p.lora.present()) {
    output(label + ".lora.a gradient", gradients.lora_a,
           {experts, p.lora.a.rows(), p.weights.cols()});
  }
}

}  // namespace

void check_layer(checker const& check, layer_desc const& layer) {
  check.require(layer.activation.kind <= last_activation,
                fmt::format("activation {} is unknown", fmt::underlying(layer.activation.kind)));
  check_projection(check, "gate_up", layer.gate_up);
  check_projection(check, "down", layer.down);
  weight_stack const& gate_up = layer.gate_up.weights;
  weight_stack const& down = layer.down.weights;
  bool const gated = is_gated(layer.activation.kind);
  if (gate_up.parts() != (gated ? 2 : 1)) {
    fail(errc::shape_mismatch, "[{}] {} needs {} but gate_up has {} part(s)", check.operation(),
         name(layer.activation.kind), gated ? "gate and up" : "one matrix", gate_up.parts());
  }
  check.equal("parts of down", down.parts(), "one", 1);
  check.equal("experts of gate_up", gate_up.experts(), "experts of down", down.experts());
  check.equal("inter of gate_up", gate_up.part_rows(), "inter of down", down.cols());
  check.equal("hidden of gate_up", gate_up.cols(), "hidden of down", down.rows());
  check.at_least("experts_total", layer.experts_total, 0);
  check.at_least("first_expert", layer.first_expert, 0);
  index_t const total = layer.experts_total == 0 ? layer.experts() : layer.experts_total;
  check.require(layer.first_expert <= total - layer.experts(),
                fmt::format("experts [{}, {} + {}) of the stacks are not within experts_total ({})",
                            layer.first_expert, layer.first_expert, layer.experts(), total));
  check.require(layer.weight_on <= weight_placement::input,
                fmt::format("weight_on {} is unknown", fmt::underlying(layer.weight_on)));
}

void check_shape(checker const& check, layer_shape const& shape) {
  check.at_least("tokens", shape.tokens, 0);
  check.at_least("top_k", shape.top_k, 1);
  if (!is_float(shape.io)) {
    fail(errc::dtype_mismatch, "[{}] io is {}, expected f32, bf16 or f16", check.operation(),
         name(shape.io));
  }
}

void check_apart(checker const& check, std::string_view memory_name, workspace const& memory,
                 std::initializer_list<std::pair<std::string_view, tensor_view>> operands) {
  for (auto const& [label, operand] : operands) {
    check.no_overlap(memory_name, bytes_of(memory), label, operand);
  }
}

void check_like_x(checker const& check, std::string_view argument, tensor_view const& tensor,
                  tensor_view const& x) {
  bool same = tensor.rank == x.rank;
  for (int d = 0; same && d < x.rank; ++d) same = tensor.extent[d] == x.extent[d];
  if (!same) {
    fail(errc::shape_mismatch, "[{}] {} is {}, x is {}", check.operation(), argument,
         to_string(tensor), to_string(x));
  }
  check.type(argument, tensor, {x.type});
  tensor_view const matrix = tensor.as_matrix();
  check.shape(argument, matrix, {any_extent, any_extent});
}

void check_gradients_exist(checker const& check, layer_desc const& layer,
                           layer_gradients const& gradients) {
  check_exist(check, "gate_up", layer.gate_up, gradients.gate_up);
  check_exist(check, "down", layer.down, gradients.down);
}

void check_gradient_outputs(checker const& check, layer_desc const& layer, layer_shape const& shape,
                            layer_gradients const& gradients, tensor_view const& x,
                            tensor_view const& dy) {
  std::vector<named_tensor> outputs;
  if (gradients.x.present()) {
    check_like_x(check, "gradient of x", gradients.x, x);
    outputs.emplace_back("gradient of x", gradients.x.as_matrix());
  }
  if (gradients.weights.present()) {
    check.shape("gradient of weights", gradients.weights, {shape.tokens, shape.top_k});
    check.type("gradient of weights", gradients.weights, {dtype::f32});
    outputs.emplace_back("gradient of weights", gradients.weights);
  }
  check_outputs(check, "gate_up", layer.gate_up, gradients.gate_up, outputs);
  check_outputs(check, "down", layer.down, gradients.down, outputs);
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    check.no_self_overlap(output->first, output->second);
    check.no_overlap(output->first, output->second, "x", x.as_matrix());
    check.no_overlap(output->first, output->second, "dy", dy.as_matrix());
    for (auto other = outputs.begin(); other != output; ++other) {
      check.no_overlap(output->first, output->second, other->first, other->second);
    }
  }
}

}  // namespace moe64
