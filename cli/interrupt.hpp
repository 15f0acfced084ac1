#pragma once

namespace moe64::cli {

/// While it lives, Ctrl-C (SIGINT) and SIGTERM end the work at its next check instead of the
/// process, so that nothing is left behind. The second signal ends the process at once.
class interrupt_watch {
 public:
  interrupt_watch();
  ~interrupt_watch();
  interrupt_watch(interrupt_watch const&) = delete;
  interrupt_watch& operator=(interrupt_watch const&) = delete;

  /// errc::interrupted when a signal came: for progress reports.
  void check() const;
};

}  // namespace moe64::cli
