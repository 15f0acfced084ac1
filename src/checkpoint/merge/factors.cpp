#include "checkpoint/merge/factors.hpp"

#include "checkpoint/merge/low_rank.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

constexpr index_t stored_piece = index_t{1} << 20;

float* numbers_in(piece_buffer& memory, index_t bytes) {
  return reinterpret_cast<float*>(memory.first(bytes).data());
}

index_t width_of(tensor_entry const& factor) { return bits(factor.type) / 8; }

/// How many positions of a factor are read in one go: A as a whole, of B the rows of the region.
index_t longest_run(delta_region const& region, delta_term const& term) {
  index_t const of_a = term.pair->factors->a->shape[1];
  index_t const of_b = term.pair->factors->b->shape[0];
  if (region.turned || term.pair->swapped) return std::max(of_a, of_b);
  index_t const rows = checked_mul(checked_mul(region.rows, region.step), term.pair_step);
  return std::max(of_a, std::min(of_b, rows));
}

}  // namespace

void factor_memory::cover(factor_memory const& other) noexcept {
  left = std::max(left, other.left);
  right = std::max(right, other.right);
  numbers = std::max(numbers, other.numbers);
  stored = std::max(stored, other.stored);
}

factor_memory memory_of(delta_region const& region) {
  factor_memory memory;
  index_t const rank = region.delta->rank_of(region.slice);
  if (rank == 0) return memory;
  memory.left = checked_mul(checked_mul(region.rows, rank), index_t{sizeof(double)});
  memory.right =
      checked_mul(checked_mul(low_rank_pitch(region.cols), rank), index_t{sizeof(float)});
  memory.stored = stored_piece;
  for (delta_term const& term : region.delta->terms) {
    if (!term.covers(region.slice)) continue;
    stated_pair const& pair = *term.pair;
    index_t const run = checked_mul(longest_run(region, term), pair.rank);
    memory.numbers = std::max(memory.numbers, checked_mul(run, index_t{sizeof(float)}));
    tensor_entry const& b = *pair.factors->b;
    memory.stored = std::max(memory.stored, checked_mul(b.shape[1], width_of(b)));
  }
  return memory;
}

factor_reader::factor_reader(weight_deltas const& deltas, factor_memory const& memory)
    : adapter_(deltas.adapter()),
      cache_(deltas.cache()),
      memory_(memory),
      left_(memory.left),
      right_(memory.right),
      numbers_(memory.numbers),
      stored_(memory.stored) {}

factor_reader::factors factor_reader::read(delta_region const& region, bool narrow) {
  factors result;
  result.rank = region.delta->rank_of(region.slice);
  if (result.rank == 0) return result;
  bool const same_right = last_.delta == region.delta && last_.slice == region.slice &&
                          last_.turned == region.turned && last_.cols == region.cols;
  last_ = {};  // reading may fail
  index_t at = 0;
  for (delta_term const& term : region.delta->terms) {
    if (!term.covers(region.slice)) continue;
    narrow ? fill_left<float>(region, term, at, result.rank)
           : fill_left<double>(region, term, at, result.rank);
    if (!same_right) fill_right(region, term, at);
    at += term.pair->rank;
  }
  last_ = region;
  std::byte const* const left = left_.first(memory_.left).data();
  if (narrow) {
    result.narrow_left = reinterpret_cast<float const*>(left);
  } else {
    result.left = reinterpret_cast<double const*>(left);
  }
  result.right = numbers_in(right_, memory_.right);
  return result;
}

/// Where output or input `i` of the region's module is in a factor of the term's pair; -1: nowhere.
index_t factor_reader::position(delta_region const& region, delta_term const& term, bool outputs,
                                index_t i) {
  if (outputs) return term.output_of(i);
  return i < region.delta->inputs ? i : -1;
}

template <class Number>
void factor_reader::fill_left(delta_region const& region, delta_term const& term, index_t at,
                              index_t rank) {
  bool const outputs = !region.turned;
  index_t begin = INT64_MAX;
  index_t end = 0;
  for (index_t row = 0; row < region.rows; ++row) {
    index_t const x = position(region, term, outputs, region.first + row * region.step);
    if (x < 0) continue;
    begin = std::min(begin, x);
    end = std::max(end, x + 1);
  }
  auto* const left = reinterpret_cast<Number*>(left_.first(memory_.left).data());
  index_t const own = term.pair->rank;
  loaded const factor =
      begin < end ? load(*term.pair, outputs, term.expert_of(region.slice), begin, end) : loaded{};
  for (index_t row = 0; row < region.rows; ++row) {
    index_t const x = position(region, term, outputs, region.first + row * region.step);
    Number* const into = left + row * rank + at;
    for (index_t k = 0; k < own; ++k) {
      double const number = x < 0 ? 0.0 : static_cast<double>(factor.at(k, x));
      into[k] = static_cast<Number>(term.pair->scaling * number);
    }
  }
}

void factor_reader::fill_right(delta_region const& region, delta_term const& term, index_t at) {
  bool const outputs = region.turned;
  stated_pair const& pair = *term.pair;
  index_t const all = outputs
                          ? (pair.swapped ? pair.factors->a->shape[1] : pair.factors->b->shape[0])
                          : region.delta->inputs;
  loaded const factor = load(pair, outputs, term.expert_of(region.slice), 0, all);
  index_t const pitch = low_rank_pitch(region.cols);
  float* const right = numbers_in(right_, memory_.right) + at * pitch;
  for (index_t k = 0; k < pair.rank; ++k) {
    for (index_t col = 0; col < pitch; ++col) {
      index_t const x = col < region.cols ? position(region, term, outputs, col) : -1;
      right[k * pitch + col] = x < 0 ? 0.0F : factor.at(k, x);
    }
  }
}

factor_reader::loaded factor_reader::load(stated_pair const& pair, bool outputs, index_t expert,
                                          index_t begin, index_t end) {
  return outputs == pair.swapped ? load_a(pair, expert) : load_b(pair, expert, begin, end);
}

factor_reader::loaded factor_reader::load_a(stated_pair const& pair, index_t expert) {
  tensor_entry const& a = *pair.factors->a;
  index_t const extent = a.shape[1];
  float* const into = numbers_in(numbers_, memory_.numbers);
  read_run(a, expert * pair.rank * extent, pair.rank * extent, into);
  return {into, extent, 1, 0};
}

factor_reader::loaded factor_reader::load_b(stated_pair const& pair, index_t expert, index_t begin,
                                            index_t end) {
  tensor_entry const& b = *pair.factors->b;
  index_t const row_numbers = b.shape[1];
  float* const into = numbers_in(numbers_, memory_.numbers);
  if (pair.experts == 1) {
    read_run(b, begin * row_numbers, (end - begin) * row_numbers, into);
    return {into, 1, pair.rank, begin};
  }
  bool const grouped = pair.layout == factor_layout::grouped;
  index_t const first = grouped ? expert * pair.rank : expert;
  index_t const step = grouped ? 1 : pair.experts;
  index_t const width = width_of(b);
  auto const pick = [&](std::byte const* row, float* out) {
    for (index_t k = 0; k < pair.rank; ++k) {
      auto const number =
          std::span(row + (first + k * step) * width, static_cast<std::size_t>(width));
      // a number of a factor need not be aligned in the file, but is in memory
      read_factor_numbers(b.type, number, std::span(out + k, 1));
    }
  };
  if (auto const whole = cache_.get(b)) {
    for (index_t x = begin; x < end; ++x) {
      pick(whole->data() + x * row_numbers * width, into + (x - begin) * pair.rank);
    }
    return {into, 1, pair.rank, begin};
  }
  index_t const at_once = std::max<index_t>(1, memory_.stored / (row_numbers * width));
  for (index_t x = begin; x < end; x += at_once) {
    index_t const rows = std::min(at_once, end - x);
    std::span<std::byte> const stored = stored_.first(rows * row_numbers * width);
    adapter_.read(b, x * row_numbers * width, stored);
    for (index_t i = 0; i < rows; ++i) {
      pick(stored.data() + i * row_numbers * width, into + (x + i - begin) * pair.rank);
    }
  }
  return {into, 1, pair.rank, begin};
}

void factor_reader::read_run(tensor_entry const& factor, index_t first, index_t count,
                             float* into) {
  index_t const width = width_of(factor);
  index_t const at_once = memory_.stored / width;
  for (index_t done = 0; done < count; done += at_once) {
    index_t const some = std::min(at_once, count - done);
    std::span<std::byte> const stored = stored_.first(some * width);
    adapter_.read(factor, (first + done) * width, stored);
    read_factor_numbers(factor.type, stored,
                        std::span(into + done, static_cast<std::size_t>(some)));
  }
}

}  // namespace moe64::checkpoint
