#pragma once

#include <string>
#include <string_view>

namespace moe64::cli {

/// A text file that a verb writes when its work is done. It is opened before the work begins, so
/// that a place that cannot be written to costs no time, and it is there whole or not at all: under
/// another name first, then renamed. A device or pipe is written to as it is.
class whole_file {
 public:
  /// Whether the first bytes of a file are those of an earlier one of the same kind.
  using recogniser = bool (*)(std::string_view head);

  /// `option` is what named the path. errc::invalid_argument when a file is there that is neither
  /// empty nor recognised: it is somebody else's. errc::io_failure with the name and the reason.
  whole_file(std::string path, std::string option, recogniser is_ours);
  whole_file(whole_file const&) = delete;
  whole_file& operator=(whole_file const&) = delete;
  ~whole_file();

  /// Once.
  void write(std::string_view text);

 private:
  [[noreturn]] void refuse(std::string const& path, char const* what, int reason) const;
  void require_ours(recogniser is_ours) const;
  void give_name();

  std::string path_;
  std::string option_;
  std::string target_;   ///< what the path means, through links
  std::string partial_;  ///< empty: written to as it is
  bool replace_ = false;
  int descriptor_ = -1;
};

}  // namespace moe64::cli
