#include "cases/comparison.hpp"

#include "cases/arena.hpp"
#include "cases/parallel.hpp"
#include "fmt/format.h"
#include "oracle/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>

namespace moe64::cases {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double mistrusted_zeros = 0.3;
constexpr double negligible = 1e-9;  // of a typical row: what rounds to zero, or cancels to it

/// One entry of one output.
struct entry_error {
  double error = 0.0;
  index_t zeros = 0;  // elements that the reference has as zero
  index_t elements = 0;
};

/// got [rows, cols], measured in lines along its longer side. `exact`: the only rounding allowed is
/// that of the right number to the type of the output.
entry_error measure(tensor_view const& got, expectation const& wanted, bool exact) {
  index_t const cols = got.extent[1];
  bool const by_column = got.extent[0] > cols;
  index_t const lines = by_column ? cols : got.extent[0];
  index_t const length = by_column ? got.extent[0] : cols;
  entry_error result;
  result.elements = lines * length;
  double typical = wanted.typical;
  if (by_column) typical *= std::sqrt(static_cast<double>(length) / static_cast<double>(lines));
  if (lines > 1) {
    double sum = 0.0;
    for (double const value : wanted.values) sum += value * value;
    typical = std::max(typical, std::sqrt(sum / static_cast<double>(lines)));
  }
  bool const rounds = exact && is_float(got.type);
  for (index_t line = 0; line < lines; ++line) {
    double difference = 0.0;
    double size = 0.0;
    for (index_t i = 0; i < length; ++i) {
      index_t const r = by_column ? i : line;
      index_t const c = by_column ? line : i;
      double const number = oracle::at(got, r, c);
      double const number_wanted = wanted.values[static_cast<std::size_t>(r * cols + c)];
      double const right = rounds ? oracle::round_to(number_wanted, got.type) : number_wanted;
      bool const same = number == right || (std::isnan(number) && std::isnan(right));
      double const off = same ? 0.0 : number - right;
      difference += std::isnan(off) ? infinity : off * off;
      size += right * right;
      result.zeros += std::fabs(right) <= negligible * typical ? 1 : 0;
    }
    double const scale = std::max(std::sqrt(size), typical);
    double const error = difference == 0.0 ? 0.0 : std::sqrt(difference) / scale;
    result.error = std::max(result.error, std::isnan(error) ? infinity : error);
  }
  return result;
}

struct counted {
  index_t nan = 0, zeros = 0, elements = 0;
};

template <class Bits>
void count_bits(counted& sum, void const* data, index_t count, Bits sign, Bits infinite) {
  auto const* codes = static_cast<Bits const*>(data);
  for (index_t i = 0; i < count; ++i) {
    auto const magnitude = static_cast<Bits>(codes[i] & static_cast<Bits>(~sign));
    sum.nan += magnitude > infinite ? 1 : 0;
    sum.zeros += magnitude == 0 ? 1 : 0;
  }
  sum.elements += count;
}

/// One contiguous run of `count` numbers.
void count_run(counted& sum, tensor_view const& t, index_t offset, index_t count) {
  auto const* data = static_cast<std::byte const*>(t.data) + offset * bits(t.type) / 8;
  switch (t.type) {
    case dtype::f32:
      count_bits<std::uint32_t>(sum, data, count, 0x80000000U, 0x7f800000U);
      break;
    case dtype::bf16:
      count_bits<std::uint16_t>(sum, data, count, 0x8000U, 0x7f80U);
      break;
    case dtype::f16:
      count_bits<std::uint16_t>(sum, data, count, 0x8000U, 0x7c00U);
      break;
    default:
      break;
  }
}

counted count_entry(tensor_view const& t, index_t entry) {
  counted sum;
  index_t const rows = t.rank == 3 ? t.extent[1] : 1;
  index_t const cols = t.extent[t.rank - 1];
  for (index_t r = 0; r < rows; ++r) {
    index_t const offset = entry * t.stride[0] + (t.rank == 3 ? r * t.stride[1] : 0);
    index_t const step = t.stride[t.rank - 1];
    if (step == 1) {
      count_run(sum, t, offset, cols);
    } else {
      for (index_t c = 0; c < cols; ++c) count_run(sum, t, offset + c * step, 1);
    }
  }
  return sum;
}

}  // namespace

tensor_view entry_of(tensor_view const& t, index_t i) {
  tensor_view matrix = t;
  matrix.data = static_cast<std::byte*>(t.data) + i * t.stride[0] * bits(t.type) / 8;
  matrix.rank = 2;
  matrix.extent[0] = t.rank == 3 ? t.extent[1] : 1;
  matrix.stride[0] = t.rank == 3 ? t.stride[1] : 0;
  matrix.extent[1] = t.rank == 1 ? 1 : t.extent[t.rank - 1];
  matrix.stride[1] = t.rank == 1 ? 1 : t.stride[t.rank - 1];
  return matrix;
}

void comparison::entries(std::vector<compared_output> const& outputs,
                         std::vector<index_t> const& sample, index_t total,
                         std::function<std::vector<expectation>(index_t)> const& reference,
                         std::function<std::vector<index_t>(index_t)> const& experts_of) {
  index_t const count = std::ssize(sample);
  std::vector<std::vector<entry_error>> errors(sample.size());
  std::atomic<index_t> done = 0;
  parallel_for(executor_, count, [&](index_t i) {
    auto const place = static_cast<std::size_t>(i);
    auto const wanted = reference(sample[place]);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      auto const& part = outputs[o].part;
      index_t const entry = sample[place];
      errors[place].push_back(measure(part ? part(entry) : entry_of(outputs[o].got, entry),
                                      wanted[o], outputs[o].bound == 0.0));
    }
    index_t const finished = ++done;
    if (progress_) progress_(finished, count);
  });
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    output_error result{
        outputs[o].name,   0.0, outputs[o].bound, -1, -1, {}, count, total, outputs[o].per_expert,
        outputs[o].neurons};
    result.by_expert.assign(static_cast<std::size_t>(experts_), -1.0);
    std::vector<double> sums(result.by_expert.size());
    std::vector<double> members(result.by_expert.size());
    entry_error all;
    for (std::size_t i = 0; i < sample.size(); ++i) {
      double const error = errors[i][o].error;
      all.zeros += errors[i][o].zeros;
      all.elements += errors[i][o].elements;
      if (error > result.worst || result.worst_row < 0) {
        result.worst = std::max(result.worst, error);
        result.worst_row = sample[i];
      }
      auto const experts = experts_of(sample[i]);
      for (index_t const expert : std::set<index_t>(experts.begin(), experts.end())) {
        auto const e = static_cast<std::size_t>(expert);
        result.by_expert[e] = std::max(result.by_expert[e], error);
        sums[e] += error;
        members[e] += 1.0;
      }
    }
    double largest_mean = -1.0;
    for (std::size_t e = 0; e < sums.size(); ++e) {
      if (members[e] == 0.0 || !(sums[e] / members[e] > largest_mean)) continue;
      largest_mean = sums[e] / members[e];
      result.worst_expert = static_cast<index_t>(e);
    }
    outputs_.push_back(std::move(result));
    zero_share_.push_back(all.elements == 0
                              ? 0.0
                              : static_cast<double>(all.zeros) / static_cast<double>(all.elements));
  }
}

void comparison::left_out(std::string const& name, double bound, index_t total) {
  outputs_.push_back({name, 0.0, bound, -1, -1, {}, 0, total, true, 0});
  zero_share_.push_back(1.0);  // nothing is known about its zeros
}

void comparison::scan(std::string const& name, tensor_view const& got,
                      std::function<bool(index_t)> const& lives) {
  std::atomic<index_t> nans = 0;
  std::atomic<index_t> zeros = 0;
  std::atomic<index_t> elements = 0;
  std::atomic<index_t> first = -1;
  parallel_for(executor_, got.extent[0], [&](index_t i) {
    if (!lives(i)) return;
    counted const here = count_entry(got, i);
    nans += here.nan;
    zeros += here.zeros;
    elements += here.elements;
    if (here.nan > 0) first = i;
  });
  if (nans > 0) {
    fault(fmt::format("{} of {} numbers of {} are NaN, one of them in entry {}", nans.load(),
                      elements.load(), name, first.load()));
  }
  double explained = 0.0;
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    if (outputs_[o].output == name) explained = zero_share_[o];
  }
  double const share =
      elements == 0 ? 0.0
                    : static_cast<double>(zeros.load()) / static_cast<double>(elements.load());
  if (share > explained + mistrusted_zeros) {
    fault(fmt::format("{:.0f} % of {} are zero, where {:.0f} % are expected", 100.0 * share, name,
                      100.0 * explained));
  }
}

void comparison::untouched(std::string const& name, tensor_view const& got, index_t begin) {
  auto const* bytes = static_cast<unsigned char const*>(got.data);
  index_t const width = got.stride[0] * bits(got.type) / 8;
  for (index_t i = begin * width; i < got.extent[0] * width; ++i) {
    if (bytes[i] == poison_byte) continue;
    fault(fmt::format("{} was written in row {}, past the last of its {} rows", name, i / width,
                      begin));
    return;
  }
}

void comparison::zero(std::string const& name, tensor_view const& got,
                      std::function<bool(index_t)> const& dead) {
  std::atomic<index_t> first = -1;
  parallel_for(executor_, got.extent[0], [&](index_t i) {
    if (!dead(i)) return;
    counted const here = count_entry(got, i);
    if (here.zeros != here.elements) first = i;
  });
  if (first >= 0) {
    fault(fmt::format("{} {} must be zero and is not", name, first.load()));
  }
}

std::vector<index_t> sample_of(index_t count, double limit, std::vector<index_t> const& always) {
  std::set<index_t> chosen;
  if (limit >= static_cast<double>(count)) {
    for (index_t i = 0; i < count; ++i) chosen.insert(chosen.end(), i);
  } else {
    chosen.insert({0, count - 1});
    chosen.insert(always.begin(), always.end());
    auto const more = static_cast<index_t>(limit) - std::ssize(chosen);
    for (index_t i = 0; i < more; ++i) {
      chosen.insert(static_cast<index_t>(
          static_cast<double>(count) * (static_cast<double>(i) + 0.5) / static_cast<double>(more)));
    }
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace moe64::cases
