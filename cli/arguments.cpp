#include "arguments.hpp"

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "sizes.hpp"
#include "suggest.hpp"

#include <charconv>
#include <cmath>
#include <string_view>

namespace moe64::cli {
namespace {

[[noreturn]] void refuse(std::string_view option, std::string_view text,
                         std::string_view expected) {
  throw CLI::ValidationError(fmt::format("{} {}: expected {}", option, text, expected));
}

template <class Number>
Number parse(std::string_view option, std::string const& text, std::string_view expected) {
  Number value{};
  char const* const end = text.data() + text.size();
  auto const [stop, status] = std::from_chars(text.data(), end, value);
  if (status != std::errc{} || stop != end) refuse(option, text, expected);
  return value;
}

std::string range_text(count_bounds bounds) {
  if (bounds.most == std::numeric_limits<index_t>::max()) {
    return fmt::format("a whole number from {} on, below 2^63", bounds.least);
  }
  return fmt::format("a whole number from {} to {}", bounds.least, bounds.most);
}

}  // namespace

CLI::Option* add_count(CLI::App* verb, char const* option, index_t* value, count_bounds bounds,
                       char const* description) {
  return verb
      ->add_option_function<std::string>(
          option,
          [=](std::string const& text) {
            std::string const expected = range_text(bounds);
            auto const number = parse<index_t>(option, text, expected);
            if (number < bounds.least || number > bounds.most) refuse(option, text, expected);
            *value = number;
          },
          description)
      ->type_name("N");
}

CLI::Option* add_seed(CLI::App* verb, std::uint64_t* value, char const* description) {
  return verb
      ->add_option_function<std::string>(
          "--seed",
          [value](std::string const& text) {
            *value = parse<std::uint64_t>("--seed", text, "a whole number below 2^64");
          },
          description)
      ->type_name("S");
}

CLI::Option* add_number(CLI::App* verb, char const* option, double* value, number_kind kind,
                        char const* description) {
  return verb
      ->add_option_function<std::string>(
          option,
          [=](std::string const& text) {
            bool const above = kind == number_kind::above_zero;
            char const* const expected =
                above ? "a number above 0, such as 1e9" : "a number that is 0 or more";
            auto const number = parse<double>(option, text, expected);
            bool const fits = above ? number > 0.0 : number >= 0.0;
            if (!fits || !std::isfinite(number)) refuse(option, text, expected);
            *value = number;
          },
          description)
      ->type_name("N");
}

CLI::Option* add_bytes(CLI::App* verb, char const* option, index_t* bytes,
                       char const* description) {
  return verb
      ->add_option_function<std::string>(
          option,
          [=](std::string const& text) {
            auto const parsed = parse_bytes(text);
            if (!parsed || *parsed < 1) {
              refuse(option, text, "a size such as 512MiB or 5GB, below 8 EiB");
            }
            *bytes = *parsed;
          },
          description)
      ->type_name("SIZE");
}

CLI::Option* add_file(CLI::App* verb, char const* option, std::string* path,
                      char const* description) {
  return verb
      ->add_option_function<std::string>(
          option,
          [=](std::string const& text) {
            if (text.empty()) refuse(option, "''", "the name of a file");
            *path = text;
          },
          description)
      ->type_name("FILE");
}

CLI::Option* add_word(CLI::App* verb, char const* option, std::vector<std::string> const& words,
                      std::function<void(std::size_t)> const& take, char const* description) {
  return verb
      ->add_option_function<std::string>(
          option,
          [=](std::string const& text) {
            auto const found = std::find(words.begin(), words.end(), text);
            if (found == words.end()) {
              refuse(option, text,
                     fmt::format("one of {}{}", fmt::join(words, ", "), did_you_mean(text, words)));
            }
            take(static_cast<std::size_t>(found - words.begin()));
          },
          description)
      ->type_name(fmt::format("{}", fmt::join(words, "|")));
}

}  // namespace moe64::cli
