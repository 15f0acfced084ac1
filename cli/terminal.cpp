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

}  // namespace

std::string printable(std::string_view text) {
  std::string safe;
  for (char const c : text) {
    auto const byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      safe += c;
    } else {
      safe += fmt::format("\\x{:02x}", byte);
    }
  }
  return safe;
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
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      bool const right =
          i > 0 && is_number(rows.size() > 1 ? rows[std::max<std::size_t>(r, 1)][i] : "");
      line += right ? fmt::format("{:>{}}  ", rows[r][i], widths[i])
                    : fmt::format("{:<{}}  ", rows[r][i], widths[i]);
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

std::string wrapped(std::string_view text, std::size_t width, std::string_view indent) {
  std::string result;
  std::string line;
  auto const flush = [&] {
    if (!line.empty()) result += fmt::format("{}{}\n", indent, line);
    line.clear();
  };
  while (!text.empty()) {
    std::size_t const space = std::min(text.find(' '), text.size());
    std::string_view const word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (!line.empty() && line.size() + 1 + word.size() > width) flush();
    if (!line.empty()) line += ' ';
    line += word;
  }
  flush();
  return result;
}

}  // namespace moe64::cli
