#pragma once

/// MOE64_API marks what the shared library exports; everything else is hidden.
#if defined(MOE64_STATIC) || !defined(__GNUC__)
#define MOE64_API
#else
#define MOE64_API __attribute__((visibility("default")))
#endif
