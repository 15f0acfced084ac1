#pragma once

#include "moe64/device.hpp"
#include "moe64/index.hpp"

#include <string>
#include <string_view>

/// MOE64_VERBOSE=1 prints one line per executed operation on stderr, =2 also the mode of each layer
/// and why, each implementation that was refused, what one goes without, the tile that was chosen,
/// and each kernel that was launched:
///   moe64,exec,grouped_gemm,cpu,reference,op=grouped_gemm tokens=...,0.183ms
/// The problem part can be given to `moe64 verify` and `moe64 bench` as it is.
namespace moe64 {

/// 0, 1 or 2; read from the environment once.
[[nodiscard]] int verbose_level() noexcept;

void print_executed(char const* operation, moe64::device where, char const* implementation,
                    std::string const& problem, double milliseconds);
/// One kernel of an operation, queued; level 2.
void print_launched(char const* operation, moe64::device where, char const* kernel, index_t ctas,
                    index_t threads, index_t shared_bytes);
/// The mode that a layer runs in; level 2.
void print_mode(moe64::device where, std::string_view mode, std::string const& reason);
/// The tile of a kernel, and why; level 2.
void print_chosen(char const* operation, moe64::device where, char const* tile,
                  std::string const& reason);
void print_refused(char const* operation, moe64::device where, char const* implementation,
                   std::string const& reason);

}  // namespace moe64
