#pragma once

#include <initializer_list>

namespace moe64::cuda {

/// A kernel's name, put together of words when it is compiled: "sm90_w8a8_m32n128".
struct kernel_name {
  char text[64] = {};

  constexpr kernel_name(std::initializer_list<char const*> words) {
    char* to = text;
    for (char const* word : words) {
      if (to != text) *to++ = '_';
      while (*word != 0) *to++ = *word++;
    }
  }
};

}  // namespace moe64::cuda
