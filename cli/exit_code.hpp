#pragma once

#include "moe64/error.hpp"

namespace moe64::cli {

/// What the tool tells its caller. Documented in docs/cli.md and in --help.
enum class exit_code : int {
  ok = 0,
  failed = 1,         ///< a verification failed, or a checkpoint is not sound
  usage = 2,          ///< a bad option or problem line, a file that breaks the rules of its format
  unsupported = 3,    ///< a legal problem that this build or machine cannot run
  out_of_memory = 4,  ///< a problem that is too large for the memory that is left
  internal = 5,       ///< anything else: please report it
  io = 6,             ///< a file or standard output that could not be read or written, or changed
  interrupted = 130,  ///< by Ctrl-C: the code that shells give to a process that SIGINT ended
};

/// The code that stands for an error of the library. Operands are made from a problem line, so that
/// every complaint about shapes, types and sizes is a complaint about that line.
[[nodiscard]] constexpr exit_code exit_code_of(errc code) noexcept {
  switch (code) {
    case errc::invalid_argument:
    case errc::shape_mismatch:
    case errc::dtype_mismatch:
    case errc::missing_scale:
    case errc::size_overflow:
    case errc::malformed_file:
      return exit_code::usage;
    case errc::io_failure:
      return exit_code::io;
    case errc::interrupted:
      return exit_code::interrupted;
    case errc::unsupported:
      return exit_code::unsupported;
    case errc::out_of_memory:
      return exit_code::out_of_memory;
    case errc::device_mismatch:
    case errc::invalid_expert:
    case errc::workspace_too_small:
    case errc::device_failure:
    case errc::internal:
      break;
  }
  return exit_code::internal;
}

}  // namespace moe64::cli
