#pragma once

#include "moe64/check.hpp"

#include <string>
#include <string_view>

namespace moe64::cli {

/// The report as one HTML page that needs nothing else: no network, no other file. Every text from
/// outside is escaped.
[[nodiscard]] std::string check_page(std::string const& folder, check_report const& report);

/// Whether a file that begins so is such a page.
[[nodiscard]] bool is_check_page(std::string_view head);

/// The parts of the page that are the same for every checkpoint: check_page_parts.cpp.
namespace page_parts {
[[nodiscard]] char const* style();
[[nodiscard]] char const* script();
}  // namespace page_parts

}  // namespace moe64::cli
