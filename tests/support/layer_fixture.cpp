#include "support/layer_fixture.hpp"

#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace moe64::test {
namespace {

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

// Which tensor a number belongs to. A projection takes eight in a row.
constexpr int tensor_x = 0;
constexpr int tensor_dy = 1;
constexpr int tensor_gate_up = 8;
constexpr int tensor_down = 16;
constexpr int scales_of = 1, global_of = 2, bias_of = 3, lora_a_of = 4, lora_b_of = 5;
constexpr index_t part_step = 1 << 14;  // rows of the second part have keys of their own

/// Largest code that may be doubled.
double reach_of(dtype type) {
  switch (type) {
    case dtype::e4m3:
      return 120.0;
    case dtype::e5m2:
      return 2048.0;
    case dtype::int8:
      return 63.0;
    default:
      return 3.0;
  }
}

index_t offset(tensor_view const& v, index_t i, index_t j, index_t k) {
  return i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
}

template <class Visit>
void each(tensor_view const& v, Visit const& visit) {
  index_t const rows = v.rank > 1 ? v.extent[1] : 1;
  index_t const cols = v.rank > 2 ? v.extent[2] : 1;
  for (index_t i = 0; i < v.extent[0]; ++i) {
    for (index_t j = 0; j < rows; ++j) {
      for (index_t k = 0; k < cols; ++k) visit(i, j, k);
    }
  }
}

void store(tensor_view const& v, double value, index_t i, index_t j = 0, index_t k = 0) {
  std::uint64_t const code = code_of(value, v.type);
  index_t const at = offset(v, i, j, k);
  index_t const width = bits(v.type);
  auto* const memory = static_cast<std::uint8_t*>(v.data);
  if (width == 4) {
    std::uint8_t& byte = memory[at / 2];
    std::uint64_t const other = byte & (at % 2 == 0 ? 0xf0U : 0x0fU);
    byte = static_cast<std::uint8_t>(other | (code << (at % 2 == 0 ? 0 : 4)));
    return;
  }
  std::memcpy(memory + at * width / 8, &code, place(width / 8));
}

}  // namespace

layer_memory::layer_memory(layer_case const& c) : c_(c) {
  int const parts = c.parts();
  desc.gate_up = make_projection(tensor_gate_up, c.lora_gate_up, parts, c.inter, c.hidden);
  desc.down = make_projection(tensor_down, c.lora_down, 1, c.hidden, c.inter);
  desc.activation = c.act;
  desc.mode = c.mode;
  desc.scheme = c.scheme;
  desc.weight_on = c.weight_on;
  desc.first_expert = c.first_expert;
  desc.experts_total = c.stored < 0 ? 0 : std::ssize(c.experts);
  desc.implementation = c_.implementation;
  shape = {c.token_count(), c.top_k, c.io};

  forward.x = make_tokens(c.io, c.hidden);
  fill_tokens(forward.x, tensor_x);
  fill_routing();
  forward.capacity = c.capacity;
  forward.y = make_tokens(c.io, c.hidden);
  auto const device = target().device;
  tensors_.push_back(make_workspace(saved_bytes(desc, shape, device), c.around));
  forward.saved = tensors_.back().as_workspace();
  tensors_.push_back(make_workspace(forward_bytes(desc, shape, true, device), c.around));
  forward.scratch = tensors_.back().as_workspace();

  backward.x = forward.x;
  backward.dy = make_tokens(c.io, c.hidden);
  fill_tokens(backward.dy, tensor_dy);
  backward.top_k = c.top_k;
  backward.saved = forward.saved;
  backward.gradients.x = make_tokens(c.io, c.hidden);
  backward.gradients.weights = make(dtype::f32, {c.token_count(), c.top_k});
  backward.gradients.gate_up = make_gradients(desc.gate_up, c.lora_gate_up);
  backward.gradients.down = make_gradients(desc.down, c.lora_down);
  tensors_.push_back(
      make_workspace(backward_bytes(desc, shape, backward.gradients, device), c.around));
  backward.scratch = tensors_.back().as_workspace();
}

// ---- memory -------------------------------------------------------------------------------------

test_tensor& layer_memory::make(dtype type, std::vector<index_t> const& extents) {
  bool const packed = bits(type) == 4;
  std::vector<index_t> strides(extents.size());
  index_t span = packed ? 1 : c_.step;
  for (std::size_t d = extents.size(); d-- > 0;) {
    strides[d] = span;
    span = span * std::max<index_t>(extents[d], 1) + c_.padding;
    if (packed) span += span % 2;
  }
  return tensors_.emplace_back(type, extents, strides, c_.around);
}

tensor_view layer_memory::make_tokens(dtype type, index_t cols) {
  tensor_view view = make(type, {c_.token_count(), cols}).view();
  if (c_.outer == 0) return view;
  view.rank = 3;
  index_t const inner = c_.token_count() / c_.outer;
  view.extent[2] = view.extent[1];
  view.stride[2] = view.stride[1];
  view.extent[1] = inner;
  view.stride[1] = view.stride[0];
  view.extent[0] = c_.outer;
  view.stride[0] = view.stride[1] * inner;
  return view;
}

std::array<tensor_view, 2> layer_memory::make_parts(dtype type, int parts, index_t rows,
                                                    index_t cols, gate_up_storage storage,
                                                    bool in_first) {
  index_t const experts = c_.stored_experts();
  auto const matrix = [&](index_t all_rows) {
    return in_first ? make(type, {experts, cols, all_rows}).view().transposed()
                    : make(type, {experts, all_rows, cols}).view();
  };
  if (parts == 1) return {matrix(rows), tensor_view{}};
  if (storage == gate_up_storage::separate) return {matrix(rows), matrix(rows)};
  return split_gate_up(matrix(2 * rows), storage == gate_up_storage::interleaved
                                             ? gate_up_layout::interleaved
                                             : gate_up_layout::concatenated);
}

std::array<tensor_view, 2> layer_memory::make_bias(int parts, index_t rows) {
  index_t const experts = c_.stored_experts();
  dtype const type = c_.parameter_type;
  if (parts == 1) return {make(type, {experts, rows}), tensor_view{}};
  if (c_.storage == gate_up_storage::separate) {
    return {make(type, {experts, rows}), make(type, {experts, rows})};
  }
  return split_gate_up(make(type, {experts, 2 * rows}), c_.storage == gate_up_storage::interleaved
                                                            ? gate_up_layout::interleaved
                                                            : gate_up_layout::concatenated);
}

projection_gradients layer_memory::make_gradients(projection const& p, index_t rank) {
  int const parts = p.weights.parts();
  index_t const rows = p.weights.part_rows();
  index_t const cols = p.weights.cols();
  dtype const type = c_.parameter_type;
  projection_gradients d;
  if (p.weights.is_plain()) {
    d.weights = make_parts(type, parts, rows, cols, c_.storage, c_.in_first);
  }
  if (c_.bias) d.bias = make_bias(parts, rows);
  if (rank > 0) {
    d.lora_a = make(type, {c_.stored_experts(), rank, cols});
    d.lora_b = make_parts(type, parts, rows, rank, c_.storage, false);
  }
  return d;
}

test_tensor& layer_memory::owner(tensor_view const& view) {
  for (test_tensor& tensor : tensors_) {
    if (tensor.view().data == view.data) return tensor;
  }
  throw std::logic_error("no tensor of this layer");
}

// ---- contents -----------------------------------------------------------------------------------

double layer_memory::random(int tensor, index_t label, index_t row, index_t col) const {
  index_t const key = ((tensor * index_t{4096} + label) << 32) + (row << 16) + col;
  return random_source(c_.seed).uniform(key);
}

double layer_memory::number(int tensor, index_t label, index_t row, index_t col,
                            double deviation) const {
  double const u = random(tensor, label, row, col);
  switch (c_.numbers) {
    case layer_numbers::random:
      return u * std::sqrt(3.0) * deviation;
    case layer_numbers::integers:
      return std::round(u * 2.0);
    case layer_numbers::signs:
      return std::round(u);
    case layer_numbers::grid:
      return std::round(u * 256.0) / 256.0;
  }
  return 0.0;
}

double layer_memory::sparse(int tensor, index_t label, index_t row, index_t col,
                            index_t longest) const {
  // Few numbers that are not zero: sums over rows and over columns stay small integers.
  double const wanted = c_.numbers == layer_numbers::signs ? 1.5 : 4.0;
  double const share = std::min(1.0, wanted / static_cast<double>(longest));
  double const u = random(tensor, label, row, col);
  return std::fabs(u) > share ? 0.0 : u < 0.0 ? -1.0 : 1.0;
}

template <class Value>
void layer_memory::fill_experts(tensor_view const& view, Value const& value) {
  each(view, [&](index_t e, index_t r, index_t k) {
    index_t const label = c_.experts[place(c_.first_expert + e)];
    store(view,
          label == poisoned_expert ? std::numeric_limits<double>::quiet_NaN() : value(label, r, k),
          e, r, k);
  });
}

void layer_memory::fill_tokens(tensor_view const& view, int tensor) {
  tensor_view const matrix = view.as_matrix();
  each(matrix, [&](index_t t, index_t i, index_t) {
    store(matrix, number(tensor, c_.tokens[place(t)], 0, i, 1.0), t, i);
  });
}

void layer_memory::fill_routing() {
  forward.expert_ids = make_tokens(c_.id_type, c_.top_k);
  tensor_view const ids = forward.expert_ids.as_matrix();
  each(ids, [&](index_t t, index_t k, index_t) {
    store(ids, static_cast<double>(c_.ids[place(t * c_.top_k + k)]), t, k);
  });
  if (c_.weights.empty()) return;
  forward.weights = make_tokens(c_.weight_type, c_.top_k);
  tensor_view const weights = forward.weights.as_matrix();
  each(weights, [&](index_t t, index_t k, index_t) {
    store(weights, double{c_.weights[place(t * c_.top_k + k)]}, t, k);
  });
}

weight_stack layer_memory::make_weights(int tensor, int parts, index_t rows, index_t cols) {
  dtype const type = value_type(c_.weight);
  bool const exact = is_exact(c_.numbers);
  bool const plain = !is_quantized(type);
  double const wanted = 1.0 / std::sqrt(static_cast<double>(cols));
  double const reach = reach_of(type);
  double const twice = c_.doubled ? 2.0 : 1.0;
  auto const values = make_parts(type, parts, rows, cols, c_.storage, c_.in_first);
  // A scale per row or along rows lies beside its row; blocks of rows belong to one part.
  bool const by_row = c_.scale.kind == scale_kind::row || c_.scale.kind == scale_kind::group;
  std::array<tensor_view, 2> grids;
  if (!plain) {
    gate_up_storage const storage = by_row ? c_.storage : gate_up_storage::concatenated;
    grids = make_parts(c_.scale_type, parts, c_.scale.grid_rows(rows), c_.scale.grid_cols(cols),
                       storage, c_.in_first);
  }
  std::array<quantized_view, 2> views;
  for (int part = 0; part < parts; ++part) {
    auto const p = place(part);
    index_t const first = part * part_step;
    fill_experts(values[p], [&](index_t label, index_t r, index_t k) {
      if (exact) return twice * sparse(tensor, label, first + r, k, std::max(parts * rows, cols));
      if (plain) return number(tensor, label, first + r, k, wanted);
      return twice * oracle::round_to(random(tensor, label, first + r, k) * reach, type);
    });
    if (plain) {
      views[p] = quantized_view::plain(values[p]);
      continue;
    }
    bool const nvfp4 = c_.weight == weight_format::nvfp4;
    double const middle = wanted / (reach / std::sqrt(3.0));
    fill_experts(grids[p], [&](index_t label, index_t r, index_t k) {
      double const u = random(tensor + scales_of, label, first + r, k);
      if (exact) return (u < 0.0 ? 1.0 : 2.0) / twice;
      double const scale = std::exp2(0.5 * u) * (nvfp4 ? 32.0 : middle);
      bool const power = c_.scale_type == dtype::e8m0;
      return (power ? std::exp2(std::round(std::log2(scale)))
                    : oracle::round_to(scale, c_.scale_type)) /
             twice;
    });
    global_scale global;
    if (nvfp4) {
      bool const divides = tensor == tensor_down;
      global.applied =
          divides ? global_scale::direction::divide : global_scale::direction::multiply;
      global.values = make(dtype::f32, {c_.stored_experts()});
      fill_experts(global.values, [&](index_t label, index_t, index_t) {
        double const u = random(tensor + global_of, label, first, 0);
        double const factor = exact ? 2.0 : std::exp2(0.3 * u) * middle / 32.0;
        return divides ? 1.0 / factor : factor;
      });
    }
    views[p] = quantized_view::scaled(values[p], grids[p], c_.scale, global);
  }
  return parts == 2 ? weight_stack::gate_up(views[0], views[1]) : weight_stack::single(views[0]);
}

void layer_memory::fill_bias(std::array<tensor_view, 2> const& bias, int tensor) {
  for (int part = 0; part < 2; ++part) {
    if (!bias[place(part)].present()) continue;
    fill_experts(bias[place(part)], [&](index_t label, index_t r, index_t) {
      return number(tensor, label, part * part_step + r, 0, 0.25);
    });
  }
}

lora_adapter layer_memory::make_lora(int tensor, index_t rank, int parts, index_t rows,
                                     index_t cols) {
  bool const exact = is_exact(c_.numbers);
  auto const value = [&](int id, index_t label, index_t r, index_t k, index_t in, index_t out) {
    if (exact) return sparse(id, label, r, k, std::max(in, out));
    return number(id, label, r, k, 1.0 / std::sqrt(static_cast<double>(in)));
  };
  tensor_view const a = make(c_.parameter_type, {c_.stored_experts(), rank, cols});
  fill_experts(a, [&](index_t label, index_t r, index_t k) {
    return value(tensor + lora_a_of, label, r, k, cols, rank);
  });
  auto const b = make_parts(c_.parameter_type, parts, rows, rank, c_.storage, false);
  for (int part = 0; part < parts; ++part) {
    fill_experts(b[place(part)], [&](index_t label, index_t r, index_t k) {
      return value(tensor + lora_b_of, label, part * part_step + r, k, rank, parts * rows);
    });
  }
  lora_adapter adapter;
  adapter.scaling = tensor == tensor_down ? -0.5F : 0.5F;
  adapter.a = weight_stack::single(quantized_view::plain(a));
  adapter.b = parts == 1
                  ? weight_stack::single(quantized_view::plain(b[0]))
                  : weight_stack::gate_up(quantized_view::plain(b[0]), quantized_view::plain(b[1]));
  return adapter;
}

projection layer_memory::make_projection(int tensor, index_t rank, int parts, index_t rows,
                                         index_t cols) {
  projection p;
  p.weights = make_weights(tensor, parts, rows, cols);
  if (c_.bias) {
    p.bias = make_bias(parts, rows);
    fill_bias(p.bias, tensor + bias_of);
  }
  if (rank > 0) p.lora = make_lora(tensor, rank, parts, rows, cols);
  return p;
}

// ---- results ------------------------------------------------------------------------------------

std::vector<std::uint64_t> bits_of(tensor_view const& view) {
  std::vector<std::uint64_t> result;
  index_t const bytes = bits(view.type) / 8;
  each(view, [&](index_t i, index_t j, index_t k) {
    std::uint64_t code = 0;
    std::memcpy(&code, static_cast<std::uint8_t*>(view.data) + offset(view, i, j, k) * bytes,
                place(bytes));
    result.push_back(code);
  });
  return result;
}

std::vector<std::pair<std::string, tensor_view>> layer_memory::outputs() const {
  std::vector<std::pair<std::string, tensor_view>> all{
      {"y", forward.y.as_matrix()},
      {"dx", backward.gradients.x.present() ? backward.gradients.x.as_matrix() : tensor_view{}},
      {"d_weights", backward.gradients.weights}};
  auto const add = [&](std::string const& base, projection_gradients const& d) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::string const part = "." + std::to_string(i);
      all.emplace_back(base + ".weights" + part, d.weights[i]);
      all.emplace_back(base + ".bias" + part, d.bias[i]);
      all.emplace_back(base + ".lora_b" + part, d.lora_b[i]);
    }
    all.emplace_back(base + ".lora_a", d.lora_a);
  };
  add("gate_up", backward.gradients.gate_up);
  add("down", backward.gradients.down);
  std::erase_if(all, [](auto const& output) { return !output.second.present(); });
  return all;
}

void layer_memory::poison_outputs() const {
  for (auto const& output : outputs()) {
    tensor_view const& view = output.second;
    index_t const bytes = bits(view.type) / 8;
    each(view, [&](index_t i, index_t j, index_t k) {
      std::memset(static_cast<std::uint8_t*>(view.data) + offset(view, i, j, k) * bytes, 0xff,
                  place(bytes));
    });
  }
}

layer_result layer_memory::result() const {
  layer_result found;
  for (auto const& [name, view] : outputs()) found.bits[name] = bits_of(view);
  return found;
}

oracle::layer_call layer_memory::call() const {
  compute_mode const mode = resolve_mode(desc, forward.x.type, target().device).mode;
  return {forward.x.as_matrix(), forward.expert_ids.as_matrix(),
          forward.weights.present() ? forward.weights.as_matrix() : tensor_view{}, c_.capacity,
          mode};
}

oracle::planned layer_memory::rows() const {
  return oracle::plan(forward.expert_ids.as_matrix(), std::ssize(c_.experts), c_.first_expert,
                      c_.stored_experts(), c_.capacity);
}

std::vector<std::uint64_t> layer_result::entries(std::string const& name,
                                                 std::vector<index_t> const& places,
                                                 index_t count) const {
  auto const& all = bits.at(name);
  index_t const width = count == 0 ? 0 : std::ssize(all) / count;
  std::vector<std::uint64_t> result;
  for (index_t const i : places) {
    result.insert(result.end(), all.begin() + i * width, all.begin() + (i + 1) * width);
  }
  return result;
}

std::string layer_result::difference(layer_result const& other) const {
  std::string text;
  for (auto const& [name, mine] : bits) {
    auto const found = other.bits.find(name);
    if (found == other.bits.end()) {
      text += name + " is missing; ";
    } else if (found->second != mine) {
      auto const at =
          std::mismatch(mine.begin(), mine.end(), found->second.begin(), found->second.end());
      text += name + " differs first at " + std::to_string(at.first - mine.begin()) + " of " +
              std::to_string(mine.size()) + "; ";
    }
  }
  if (bits.size() != other.bits.size()) text += "numbers of outputs differ";
  return text;
}

std::uint64_t layer_result::hash() const {
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (auto const& output : bits) {
    for (std::uint64_t const code : output.second) sum = (sum ^ code) * 0x100000001b3U;
  }
  return sum;
}

layer_result run(layer_case const& c, target_stream where) {
  layer_memory const memory(c);
  memory.run_forward(where);
  memory.run_backward(where);
  return memory.result();
}

}  // namespace moe64::test
