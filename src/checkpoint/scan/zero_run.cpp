#include "checkpoint/scan/zero_run.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

using bytes_view = std::span<std::byte const>;

/// A run of least_zero_run bytes holds one of the steps that begin at multiples of this as a whole.
constexpr std::size_t step = static_cast<std::size_t>(least_zero_run) / 2;

bool is_zero(std::byte byte) { return byte == std::byte{0}; }

index_t leading_zeros(bytes_view bytes) {
  return std::find_if_not(bytes.begin(), bytes.end(), is_zero) - bytes.begin();
}

index_t trailing_zeros(bytes_view bytes) {
  return std::find_if_not(bytes.rbegin(), bytes.rend(), is_zero) - bytes.rbegin();
}

void take_run(zero_stretch& into, index_t begin, index_t bytes) {
  if (bytes < least_zero_run || bytes <= into.run_bytes) return;
  into.run_begin = begin;
  into.run_bytes = bytes;
}

}  // namespace

void zero_stretch::append(zero_stretch const& next) noexcept {
  bool const all_zero = leading == end - begin;
  bool const next_all_zero = next.leading == next.end - next.begin;
  take_run(*this, end - trailing, trailing + next.leading);
  take_run(*this, next.run_begin, next.run_bytes);
  if (all_zero) leading += next.leading;
  trailing = next_all_zero ? trailing + next.trailing : next.trailing;
  end = next.end;
}

zero_stretch find_zeros(bytes_view piece, index_t begin) noexcept {
  zero_stretch found{begin, begin + std::ssize(piece), 0, 0, 0, 0};
  found.leading = leading_zeros(piece);
  found.trailing = trailing_zeros(piece);
  for (std::size_t at = 0; at + step <= piece.size(); at += step) {
    if (leading_zeros(piece.subspan(at, step)) < static_cast<index_t>(step)) continue;
    index_t const before = trailing_zeros(piece.first(at));
    index_t const after = leading_zeros(piece.subspan(at));
    auto const first = static_cast<index_t>(at);
    take_run(found, begin + first - before, before + after);
    at += (static_cast<std::size_t>(after) / step - 1) * step;
  }
  return found;
}

}  // namespace moe64::checkpoint
