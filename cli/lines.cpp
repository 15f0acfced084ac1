#include "lines.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>

namespace moe64::cli {
namespace {

problem parse_at(std::string const& where, std::string const& line) {
  try {
    return parse_problem(line);
  } catch (error const& e) {
    throw error(e.code(), fmt::format("{}: {}", where, e.what()));
  }
}

void read_stream(std::istream& input, std::string const& name, std::vector<problem>& problems) {
  std::string line;
  for (index_t number = 1; std::getline(input, line); ++number) {
    line.erase(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    problems.push_back(parse_at(fmt::format("{}:{}", name, number), line));
  }
  if (input.bad()) {
    throw error(errc::invalid_argument, fmt::format("{}: cannot be read to its end", name));
  }
}

}  // namespace

std::vector<problem> read_problems(std::vector<std::string> const& arguments,
                                   std::string const& file) {
  std::vector<problem> problems;
  std::string words;
  auto const finish_words = [&] {
    if (!words.empty()) problems.push_back(parse_at("problem", words));
    words.clear();
  };
  for (std::string const& argument : arguments) {
    if (argument.find_first_of(" \t") == std::string::npos) {
      words += (words.empty() ? "" : " ") + argument;
    } else {
      finish_words();
      problems.push_back(parse_at("problem", argument));
    }
  }
  finish_words();
  if (file == "-") {
    read_stream(std::cin, "standard input", problems);
  } else if (!file.empty()) {
    std::error_code unknown;  // whether it can be opened is asked next
    if (std::filesystem::is_directory(file, unknown)) {
      throw error(
          errc::invalid_argument,
          fmt::format("{}: is a folder, expected a file with a problem on each line", file));
    }
    std::ifstream input(file);
    if (!input) throw error(errc::invalid_argument, fmt::format("{}: cannot be opened", file));
    read_stream(input, file, problems);
  }
  if (problems.empty()) {
    throw error(errc::invalid_argument, "no problem given: name one as LINE or a file with -f");
  }
  return problems;
}

std::string line_of(problem const& p) {
  std::string const line = to_string(p);
  return line.empty() ? "op=layer" : line;
}

}  // namespace moe64::cli
