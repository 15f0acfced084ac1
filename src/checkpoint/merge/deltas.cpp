#include "checkpoint/merge/deltas.hpp"

#include "checkpoint/files/checksum.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/merge/targets.hpp"
#include "core/fail.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace moe64::checkpoint {
namespace {

/// What Transformers' module of experts calls its parameters, in the order in which it has them:
/// PEFT wraps the first of those that are adapted innermost.
constexpr std::array<std::string_view, 4> parameters = {"gate_up_proj", "gate_proj", "up_proj",
                                                        "down_proj"};

index_t parts_of(module_format const& format) { return format.fused ? 2 : 1; }

}  // namespace

index_t module_delta::rank_of(index_t slice) const noexcept {
  index_t rank = 0;
  for (delta_term const& term : terms) rank += term.covers(slice) ? term.pair->rank : 0;
  return rank;
}

/// Finds for each pair what it changes.
class delta_builder {
 public:
  delta_builder(weight_deltas& into, checkpoint_reader::state const& base,
                std::optional<factor_layout> layout)
      : into_(into), targets_(base), base_(base), layout_(layout) {}

  void build() {
    std::span<factor_pair const> const pairs = into_.adapter_.pairs();
    into_.pairs_.reserve(pairs.size());  // terms point into it
    for (factor_pair const& pair : pairs) add(pair);
    checksum sum;
    std::uint64_t const said = into_.adapter_.checked_sum();
    sum.add(std::as_bytes(std::span(&said, 1)));
    for (stated_pair const& stated : into_.pairs_) {
      sum.add(std::as_bytes(std::span(&stated.layout, 1)));
    }
    into_.sum_ = sum.value();
  }

  /// Bytes of the factors B of stacks of experts.
  [[nodiscard]] index_t stack_bytes() const noexcept { return stack_bytes_; }

 private:
  void add(factor_pair const& pair) {
    if (auto const experts = match_experts_path(pair.path)) {
      targets_.require_prefix(pair.path, experts->prefix, experts->layer);
      experts->expert < 0 ? add_stack(pair, *experts) : add_expert(pair, *experts);
      return;
    }
    weight_module const* const stack = targets_.stack_named(pair.path);
    stack != nullptr ? add_named_stack(pair, *stack) : add_dense(pair);
  }

  /// A parameter of the module of all experts.
  void add_stack(factor_pair const& pair, experts_path const& where) {
    std::string_view const parameter = parameter_of(pair);
    auto const modules = targets_.experts_of(pair.path, where.layer);
    if (std::any_of(modules.begin(), modules.end(), [](weight_module const* weight) {
          return weight->schema == key_schema::mlp_stack_w13;
        })) {
      fail(
          errc::unsupported,
          "[merge] {}: in which order Transformers keeps gate and up of these experts is not known",
          quoted(pair.path));
    }
    bool const swapped = targets_.has_undeclared_stacks();
    stated_pair const& stated = state(pair, fmt::format("{}.{}", pair.path, parameter), parameter,
                                      targets_.expert_count(where.layer), swapped);
    bool found = false;
    for (weight_module const* const weight : modules) {
      found = add_parameter(stated, parameter, *weight) || found;
    }
    if (!found) refuse_parameter(pair, parameter);
  }

  /// Whether the parameter has a share in the module.
  bool add_parameter(stated_pair const& stated, std::string_view parameter,
                     weight_module const& weight) {
    bool const down = weight.projection == projection_kind::down;
    delta_term term = term_of(stated, weight);
    index_t const inter = weight.format.rows / parts_of(weight.format);
    term.count = inter;
    if (parameter == "down_proj") {
      if (!down) return false;
      require_extents(stated, weight.format.cols, weight.format.rows);
      put(weight, term);
      return true;
    }
    if (down) return false;
    if (parameter != "gate_up_proj") {  // experts without a gate, or with parameters of their own
      if (parameter != name_of_projection(weight) || weight.format.fused) return false;
      require_extents(stated, weight.format.cols, inter);
      put(weight, term);
      return true;
    }
    if (!weight.format.fused && !targets_.is_gated(weight.layer)) return false;
    require_extents(stated, weight.format.cols, 2 * inter);
    bool const taking_turns = targets_.keeps_gate_and_up_taking_turns();
    for (index_t part = 0; part < 2; ++part) {
      bool const is_gate = weight.projection == projection_kind::gate;
      if (!weight.format.fused && is_gate != (part == 0)) continue;
      term.pair_first = taking_turns ? part : part * inter;
      term.pair_step = taking_turns ? 2 : 1;
      place_part(term, weight.format, part);
      put(weight, term);
    }
    return true;
  }

  /// A module that one expert had when each expert was a module.
  void add_expert(factor_pair const& pair, experts_path const& where) {
    index_t const experts = targets_.expert_count(where.layer);
    auto const modules = targets_.experts_of(pair.path, where.layer);
    if (where.expert >= experts) {
      fail(errc::invalid_argument, "[merge] {}: there are {} experts in that layer of the base",
           quoted(pair.path), experts);
    }
    stated_pair const& stated = state(pair, pair.path, {}, 1, false);
    for (weight_module const* const weight : modules) {
      bool const fused = weight->format.fused && where.projection != projection_kind::down &&
                         weight->projection != projection_kind::down;
      if (weight->projection != where.projection && !fused) continue;
      if (weight->expert >= 0 && weight->expert != where.expert) continue;
      index_t const inter = weight->format.rows / parts_of(weight->format);
      require_extents(stated, weight->format.cols, inter);
      delta_term term = term_of(stated, *weight);
      term.slice = weight->expert >= 0 ? 0 : where.expert;
      term.expert = 0;
      term.count = inter;
      place_part(term, weight->format, where.projection == projection_kind::up ? 1 : 0);
      put(*weight, term);
      return;
    }
    fail(errc::invalid_argument,
         "[merge] {}: the experts of that layer of the base have no such "
         "matrix",
         quoted(pair.path));
  }

  /// A stack that the model keeps as the file does.
  void add_named_stack(factor_pair const& pair, weight_module const& weight) {
    stated_pair const& stated =
        state(pair, pair.path + ".weight", "weight", weight.format.experts, false);
    require_extents(stated, weight.format.cols, weight.format.rows);
    delta_term term = term_of(stated, weight);
    term.count = weight.format.rows;
    put(weight, term);
  }

  void add_dense(factor_pair const& pair) {
    dense_target const target = targets_.dense(pair.path);
    bool const parameter = into_.adapter_.config().targets_parameter(pair.path + ".weight");
    stated_pair const& stated =
        state(pair, parameter ? pair.path + ".weight" : pair.path, {}, 1, false);
    require_extents(stated, target.format.cols, target.format.rows);
    weight_module weight;
    weight.values = target.values;
    weight.format = target.format;
    delta_term term = term_of(stated, weight);
    term.slice = 0;
    term.count = target.format.rows;
    put(weight, term);
  }

  static delta_term term_of(stated_pair const& stated, weight_module const& weight) {
    delta_term term;
    term.pair = &stated;
    if (weight.expert >= 0) {
      term.slice = 0;
      term.expert = weight.expert;
    }
    return term;
  }

  /// Where gate or up of a fused module is.
  static void place_part(delta_term& term, module_format const& format, index_t part) {
    if (!format.fused) return;
    bool const interleaved = format.gate_up == gate_up_layout::interleaved;
    term.first = interleaved ? part : part * term.count;
    term.step = interleaved ? 2 : 1;
  }

  [[nodiscard]] static std::string_view name_of_projection(weight_module const& weight) {
    return weight.projection == projection_kind::gate ? "gate_proj" : "up_proj";
  }

  /// Which parameter a wrapper is for: of those that the config targets the one at its place.
  [[nodiscard]] std::string_view parameter_of(factor_pair const& pair) const {
    std::vector<std::string_view> targeted;
    for (std::string_view const parameter : parameters) {
      if (into_.adapter_.config().targets_parameter(fmt::format("{}.{}", pair.path, parameter))) {
        targeted.push_back(parameter);
      }
    }
    auto const wrappers =
        std::count_if(into_.adapter_.pairs().begin(), into_.adapter_.pairs().end(),
                      [&](factor_pair const& other) { return other.path == pair.path; });
    if (wrappers != std::ssize(targeted) || pair.inner >= wrappers) {
      fail(errc::malformed_file,
           "[merge] {}: the adapter has factors of {} parameters of these experts, and "
           "adapter_config.json targets {} of them ({})",
           quoted(pair.path), wrappers, targeted.size(), fmt::join(targeted, ", "));
    }
    return targeted[static_cast<std::size_t>(std::ssize(targeted) - 1 - pair.inner)];
  }

  /// The pair with its rank and all that the config says of it. The path is as the config's
  /// patterns see it; `parameter` is empty for modules.
  stated_pair const& state(factor_pair const& pair, std::string_view path,
                           std::string_view parameter, index_t experts, bool swapped) {
    adapter_config const& config = into_.adapter_.config();
    stated_pair stated;
    stated.factors = &pair;
    stated.rank = config.rank_of(path);
    stated.scaling = config.scaling_of(path);
    stated.experts = experts;
    stated.swapped = swapped;
    index_t const rows = checked_mul(stated.rank, experts);
    if (pair.a->shape[0] != rows || pair.b->shape[1] != rows) {
      fail(errc::shape_mismatch,
           "[merge] {}: A is {} and B {}, but rank {} of {} {} makes them [{}, in] and [out, {}]",
           quoted(pair.path), to_string(pair.a->shape), to_string(pair.b->shape), stated.rank,
           experts, experts == 1 ? "matrix" : "experts", rows, rows);
    }
    if (experts > 1 && stated.rank > 1) {
      model_config const& base = base_.resolved.config;
      std::string const& family =
          base.text_model_type.empty() ? base.model_type : base.text_model_type;
      stated.layout = layout_of_parameter(config.layout(), parameter, family, layout_);
    }
    if (experts > 1) stack_bytes_ += pair.b->bytes;
    into_.pairs_.push_back(stated);
    return into_.pairs_.back();
  }

  static void require_extents(stated_pair const& stated, index_t inputs, index_t outputs) {
    factor_pair const& pair = *stated.factors;
    index_t const of_a = stated.swapped ? outputs : inputs;
    index_t const of_b = stated.swapped ? inputs : outputs;
    if (pair.a->shape[1] == of_a && pair.b->shape[0] == of_b) return;
    fail(
        errc::shape_mismatch,
        "[merge] {}: A is {} and B {}, but the weight in the base has {} inputs and {} outputs: is "
        "it an adapter of another model?",
        quoted(pair.path), to_string(pair.a->shape), to_string(pair.b->shape), inputs, outputs);
  }

  [[noreturn]] static void refuse_parameter(factor_pair const& pair, std::string_view parameter) {
    fail(errc::invalid_argument, "[merge] {}: the experts of that layer of the base have no {}",
         quoted(pair.path), parameter);
  }

  void put(weight_module const& weight, delta_term const& term) {
    module_delta& delta = into_.deltas_[weight.values];
    delta.format = weight.format;
    delta.inputs = weight.format.cols;
    delta.outputs = weight.format.rows;
    delta.transposed = weight.format.transposed;
    for (delta_term const& other : delta.terms) {
      bool const both = other.slice < 0 || term.slice < 0 || other.slice == term.slice;
      if (both && other.output_of(term.first) >= 0) {
        fail(errc::malformed_file, "[merge] {} and {} would both change {}",
             quoted(other.pair->factors->path), quoted(term.pair->factors->path),
             quoted(weight.values->name));
      }
    }
    delta.terms.push_back(term);
  }

  weight_deltas& into_;
  merge_targets targets_;
  checkpoint_reader::state const& base_;
  std::optional<factor_layout> layout_;
  index_t stack_bytes_ = 0;
};

weight_deltas::weight_deltas(adapter_files const& adapter, checkpoint_reader::state const& base,
                             std::optional<factor_layout> layout, index_t memory_bytes)
    : adapter_(adapter) {
  delta_builder builder(*this, base, layout);
  builder.build();
  cache_ = std::make_unique<factor_cache>(adapter, std::min(memory_bytes, builder.stack_bytes()));
}

module_delta const* weight_deltas::of(tensor_entry const* values) const {
  auto const found = deltas_.find(values);
  return found == deltas_.end() ? nullptr : &found->second;
}

}  // namespace moe64::checkpoint
