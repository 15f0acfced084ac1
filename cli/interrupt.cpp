#include "interrupt.hpp"

#include "moe64/error.hpp"

#include <csignal>

namespace moe64::cli {
namespace {

// A signal can be told about in no other way.
volatile std::sig_atomic_t signalled = 0;

extern "C" void remember_signal(int number) {
  signalled = number;
  std::signal(number, SIG_DFL);
}

}  // namespace

interrupt_watch::interrupt_watch() {
  signalled = 0;
  std::signal(SIGINT, remember_signal);
  std::signal(SIGTERM, remember_signal);
}

interrupt_watch::~interrupt_watch() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

void interrupt_watch::check() const {
  if (signalled != 0) throw error(errc::interrupted, "interrupted");
}

}  // namespace moe64::cli
