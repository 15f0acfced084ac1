/* What code that was compiled with the headers of a newer glibc asks for, and glibc 2.28 has not
 * (cmake/old_glibc.cmake). */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Since 2.32: libstdc++ leaves out atomic operations where this is true. False is always right. */
HIDDEN char __libc_single_threaded = 0;

/* Since 2.36: what std::random_device reads. */
HIDDEN uint32_t arc4random(void) {
  uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
    abort(); /* never for so few bytes: they come whole, or the kernel has no such call */
  }
  return value;
}
