#include "cases/magnitude.hpp"
#include "cases/tolerance.hpp"
#include "support/layer_fixture.hpp"
#include "support/target.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace moe64::test {
namespace {

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

double norm(double const* values, index_t count) {
  double sum = 0.0;
  for (index_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}

/// One output against the oracle. A row is one entry of all dimensions but the last.
class checked_output {
 public:
  /// bound 0: the oracle's number, rounded to the output's type.
  checked_output(std::string name, tensor_view const& got, double bound)
      : name_(std::move(name)), got_(got), bound_(bound) {}

  /// [rows, cols] of an entry of dimension 0, whose numbers are made to have this size.
  void expect(index_t entry, std::vector<double> wanted, double typical) {
    entries_.push_back(entry);
    wanted_.push_back(std::move(wanted));
    typical_.push_back(typical);
  }

  /// The error of a row is relative to its 2-norm; where it came out small by cancellation, to the
  /// root mean square of the rows of its entry, or to what the data are made to give it.
  void report(std::ostream& out) const {
    index_t const cols = got_.extent[got_.rank - 1];
    for (std::size_t i = 0; i < entries_.size(); ++i) report_entry(out, i, cols);
  }

 private:
  [[nodiscard]] double got(index_t entry, index_t row, index_t col) const {
    return got_.rank == 2 ? oracle::at(got_, entry, col) : oracle::at(got_, entry, row, col);
  }
  void report_entry(std::ostream& out, std::size_t i, index_t cols) const {
    index_t const rows = got_.rank == 2 ? 1 : got_.extent[1];
    if (std::ssize(wanted_[i]) != rows * cols) {
      out << name_ << ": the oracle has " << wanted_[i].size() << " numbers; ";
      return;
    }
    double const mean = norm(wanted_[i].data(), rows * cols) /
                        std::sqrt(static_cast<double>(std::max<index_t>(rows, 1)));
    for (index_t r = 0; r < rows; ++r) {
      std::vector<double> off;
      double const* const wanted = wanted_[i].data() + r * cols;
      for (index_t k = 0; k < cols; ++k) {
        double const right = bound_ == 0.0 ? oracle::round_to(wanted[k], got_.type) : wanted[k];
        double const number = got(entries_[i], r, k);
        off.push_back(
            number == right || (std::isnan(number) && std::isnan(right)) ? 0.0 : number - right);
      }
      double const error = norm(off.data(), cols);
      double const typical = typical_[i] * std::sqrt(static_cast<double>(cols));
      double const scale = std::max({norm(wanted, cols), mean, typical});
      if (error <= bound_ * scale) continue;
      out << name_ << " of " << entries_[i] << ", row " << r << " is off by " << error << " of "
          << scale << ", allowed " << bound_ << " (got " << got(entries_[i], r, 0) << ", not "
          << wanted[0] << "); ";
    }
  }

  std::string name_;
  tensor_view got_;
  double bound_;
  std::vector<index_t> entries_;
  std::vector<std::vector<double>> wanted_;
  std::vector<double> typical_;
};

problem problem_of(layer_case const& c) {
  problem p;
  p.tokens = c.token_count();
  p.hidden = c.hidden;
  p.inter = c.inter;
  p.experts = std::ssize(c.experts);
  p.top_k = c.top_k;
  p.weight = c.weight;
  p.act = c.act;
  p.io = c.io;
  p.weight_on = c.weight_on;
  p.lora = std::max(c.lora_gate_up, c.lora_down);
  p.device = target().device;
  return p;
}

std::vector<double> half(std::vector<double> const& matrix, std::size_t part, int parts) {
  auto const size = std::ssize(matrix) / parts;
  auto const begin = matrix.begin() + static_cast<std::ptrdiff_t>(part) * size;
  return {begin, begin + size};
}

/// What numbers of one expert's gradients are made to be: how large d_out and the input of a
/// projection are, and the square root of how many rows are added.
struct typical_gradient {
  double d_out, input, rows;
};

class parameter_check {
 public:
  parameter_check(std::ostream& out, projection const& p, projection_gradients const& d,
                  double bound)
      : out_(out), p_(p), d_(d), bound_(bound) {}

  void run(std::string const& base, std::vector<oracle::projection_gradient> const& wanted,
           std::vector<typical_gradient> const& typical) const {
    using gradient = oracle::projection_gradient;
    int const parts = p_.weights.parts();
    double const rank = p_.lora.present() ? static_cast<double>(p_.lora.a.rows()) : 1.0;
    double const scaling = std::fabs(double{p_.lora.scaling});
    // dy B: as many numbers of 1 / sqrt(rank) as there are outputs.
    double const low_rank = scaling * std::sqrt(static_cast<double>(p_.weights.rows()) / rank);
    auto const check = [&](std::string const& name, tensor_view const& got, auto const& pick,
                           auto const& size) {
      if (!got.present()) return;
      checked_output output(base + "." + name, got, bound_);
      for (index_t e = 0; e < std::ssize(wanted); ++e) {
        typical_gradient const& t = typical[place(e)];
        output.expect(e, pick(wanted[place(e)]), t.rows * size(t));
      }
      output.report(out_);
    };
    for (std::size_t i = 0; i < 2; ++i) {
      check(
          "weights", d_.weights[i], [&](gradient const& g) { return half(g.weights, i, parts); },
          [](typical_gradient const& t) { return t.d_out * t.input; });
      check(
          "bias", d_.bias[i], [&](gradient const& g) { return half(g.bias, i, parts); },
          [](typical_gradient const& t) { return t.d_out; });
      check(
          "lora_b", d_.lora_b[i], [&](gradient const& g) { return half(g.lora_b, i, parts); },
          [&](typical_gradient const& t) { return scaling * t.d_out * t.input; });
    }
    check(
        "lora_a", d_.lora_a, [](gradient const& g) { return g.lora_a; },
        [&](typical_gradient const& t) { return low_rank * t.d_out * t.input; });
  }

 private:
  std::ostream& out_;
  projection const& p_;
  projection_gradients const& d_;
  double bound_;
};

}  // namespace

std::string oracle_difference(layer_case const& c, layer_memory const& memory) {
  oracle::layer_call const call = memory.call();
  oracle::planned const rows = memory.rows();
  tensor_view const dy = memory.backward.dy.as_matrix();
  auto const bound = [&](cases::layer_output output, index_t longest) {
    if (is_exact(c.numbers)) return 0.0;
    return cases::layer_tolerance(problem_of(c), call.mode, output, longest);
  };
  bool const on_input = c.weight_on == weight_placement::input;
  double const even = c.weights.empty() ? 1.0 : 1.0 / static_cast<double>(c.top_k);
  cases::activation_magnitude const magnitude = cases::magnitude_of(c.act, on_input ? even : 1.0);
  layer_gradients const& d = memory.backward.gradients;
  checked_output y("y", memory.forward.y.as_matrix(), bound(cases::layer_output::y, 0));
  checked_output dx("dx", d.x.as_matrix(), bound(cases::layer_output::dx, 0));
  checked_output d_weights("d_weights", d.weights, bound(cases::layer_output::d_weights, 0));
  for (index_t t = 0; t < c.token_count(); ++t) {
    double squares = 0.0;
    bool lives = false;
    for (index_t k = 0; k < c.top_k; ++k) {
      if (rows.slot_to_row[place(t * c.top_k + k)] < 0) continue;
      lives = true;
      double const weight = c.weights.empty() ? 1.0 : oracle::at(call.weights, t, k);
      squares += weight * weight;
    }
    y.expect(t, oracle::forward_token(memory.desc, call, rows, t),
             magnitude.value * (on_input ? (lives ? 1.0 : 0.0) : std::sqrt(squares)));
    auto gradient = oracle::backward_token(memory.desc, call, rows, dy, t);
    dx.expect(t, std::move(gradient.x), magnitude.gradient * std::sqrt(squares));
    d_weights.expect(t, std::move(gradient.weights),
                     lives ? std::sqrt(static_cast<double>(c.hidden)) *
                                 (on_input ? magnitude.gradient : magnitude.value)
                           : 0.0);
  }
  std::ostringstream out;
  for (checked_output const* output : {&y, &dx, &d_weights}) output->report(out);

  std::vector<oracle::projection_gradient> gate_up, down;
  std::vector<typical_gradient> gate_up_size, down_size;
  index_t longest = 0;
  for (index_t e = 0; e < c.stored_experts(); ++e) {
    auto gradient = oracle::backward_expert(memory.desc, call, rows, dy, e);
    gate_up.push_back(std::move(gradient.gate_up));
    down.push_back(std::move(gradient.down));
    index_t const count = rows.expert_begin[place(e + 1)] - rows.expert_begin[place(e)];
    longest = std::max(longest, count);
    double const added = std::sqrt(static_cast<double>(count));
    double const d_out = on_input ? 1.0 : even;
    gate_up_size.push_back({d_out * magnitude.gradient, on_input ? even : 1.0, added});
    down_size.push_back({d_out, magnitude.value, added});
  }
  double parameters = bound(cases::layer_output::parameter, longest);
  if (parameters > 0.0) parameters += cases::allowed_error(c.parameter_type, {.stored = 1.0});
  parameter_check(out, memory.desc.gate_up, d.gate_up, parameters)
      .run("gate_up", gate_up, gate_up_size);
  parameter_check(out, memory.desc.down, d.down, parameters).run("down", down, down_size);
  std::string const text = out.str();
  return text.size() > 2000 ? text.substr(0, 2000) + " ..." : text;
}

}  // namespace moe64::test
