#pragma once

#include <string>

namespace moe64::cli {

/// A descriptor of a standard stream that is closed would be given to the next file that is opened,
/// and what is printed would go into that. Call it first.
void occupy_standard_descriptors();

/// Sends what was printed on its way; errc::io_failure when it does not arrive.
void flush_output();

/// Whether flush_output() has sent a result: a failure after it is not the result.
[[nodiscard]] bool result_was_sent() noexcept;

/// Why something that was printed, now or earlier, did not arrive; empty when all did.
[[nodiscard]] std::string output_failure();

}  // namespace moe64::cli
