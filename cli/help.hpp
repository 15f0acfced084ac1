#pragma once

#include <string>

/// The texts of --help beside what the parser writes by itself.
namespace moe64::cli::help {

[[nodiscard]] std::string overview();
[[nodiscard]] std::string inspect();
[[nodiscard]] std::string check();
[[nodiscard]] std::string run();
[[nodiscard]] std::string convert();
[[nodiscard]] std::string merge();
[[nodiscard]] std::string diff();
[[nodiscard]] std::string verify();
[[nodiscard]] std::string bench();
[[nodiscard]] std::string doctor();
[[nodiscard]] std::string demo();
[[nodiscard]] std::string synth();
[[nodiscard]] std::string completion();
[[nodiscard]] std::string man();

}  // namespace moe64::cli::help
