#include "terminal.hpp"

#include "fmt/format.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace moe64::cli {
namespace {

bool is_number(std::string const& cell) {
  return !cell.empty() && (cell[0] == '-' || (cell[0] >= '0' && cell[0] <= '9'));
}

/// Bytes of the first `count` characters of a text that has more.
std::size_t prefix_of(std::string_view text, std::size_t count) {
  std::size_t bytes = count;
  while (columns(text.substr(0, bytes + 1)) <= count) ++bytes;
  return bytes;
}

}  // namespace

std::string printable_message(std::string_view text) {
  std::string out;
  while (true) {
    std::size_t const end = std::min(text.find('\n'), text.size());
    out += printable(text.substr(0, end));
    if (end == text.size()) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) !=
           0x80U;  // a character is counted where it begins
  }));
}

std::string human_bytes(double bytes) {
  constexpr std::array<char const*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < units.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds >= 100.0) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1.0) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} us", seconds * 1e6);
}

std::string human_rate(double per_second, std::string_view unit) {
  if (per_second >= 1e12) return fmt::format("{:.2f} T{}", per_second / 1e12, unit);
  if (per_second >= 1e9) return fmt::format("{:.2f} G{}", per_second / 1e9, unit);
  return fmt::format("{:.2f} M{}", per_second / 1e6, unit);
}

std::string human_error(double error) {
  if (error == 0.0) return "0";
  return std::isfinite(error) ? fmt::format("{:.1e}", error) : "inf";
}

std::string table(std::vector<std::vector<std::string>> const& rows) {
  std::vector<std::size_t> widths;
  for (auto const& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      bool const right =
          i > 0 && is_number(rows.size() > 1 ? rows[std::max<std::size_t>(r, 1)][i] : "");
      std::string const space(widths[i] - columns(rows[r][i]), ' ');
      line += (right ? space + rows[r][i] : rows[r][i] + space) + "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
    if (r != 0) continue;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += std::string(widths[i], '-') + (i + 1 < widths.size() ? "  " : "\n");
    }
  }
  return text;
}

std::string table(std::vector<std::vector<std::string>> const& rows, std::size_t width) {
  constexpr std::size_t least = 20;  // of the last column
  std::size_t left = width;
  for (std::size_t i = 0; i + 1 < rows.front().size(); ++i) {
    std::size_t widest = 0;
    for (auto const& row : rows) widest = std::max(widest, columns(row[i]));
    left -= std::min(left, widest + 2);
  }
  std::vector<std::vector<std::string>> lines;
  for (auto row : rows) {
    std::string_view rest = row.back();
    std::string const broken = wrapped(rest, std::max(left, least), "");
    rest = broken;
    do {
      std::size_t const end = std::min(rest.find('\n'), rest.size());
      row.back() = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      lines.push_back(row);
      std::fill(row.begin(), row.end(), "");
    } while (!rest.empty());
  }
  return table(lines);
}

std::string wrapped(std::string_view text, std::size_t width, std::string_view indent) {
  std::string result;
  std::string line;
  auto const flush = [&] {
    if (!line.empty()) result += fmt::format("{}{}\n", indent, line);
    line.clear();
  };
  while (!text.empty()) {
    std::size_t const space = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (!line.empty() && columns(line) + 1 + columns(word) > width) flush();
    if (!line.empty()) line += ' ';
    for (; columns(word) > width; word.remove_prefix(prefix_of(word, width))) {
      line = word.substr(0, prefix_of(word, width));
      flush();
    }
    line += word;
  }
  flush();
  return result;
}

}  // namespace moe64::cli
