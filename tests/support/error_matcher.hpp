#pragma once

#include "moe64/error.hpp"

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

namespace moe64::test {

/// Success when `body` throws moe64::error with this code and every part in its message.
template <class Body>
[[nodiscard]] testing::AssertionResult throws_error(Body const& body, errc code,
                                                    std::initializer_list<std::string_view> parts) {
  try {
    body();
  } catch (error const& caught) {
    std::string const message = caught.what();
    if (caught.code() != code) {
      return testing::AssertionFailure()
             << "code is " << name(caught.code()) << ", not " << name(code) << ": " << message;
    }
    for (std::string_view const part : parts) {
      if (message.find(part) == std::string::npos) {
        return testing::AssertionFailure() << "message lacks '" << part << "': " << message;
      }
    }
    return testing::AssertionSuccess();
  } catch (std::exception const& other) {
    return testing::AssertionFailure() << "threw something else: " << other.what();
  }
  return testing::AssertionFailure() << "did not throw " << name(code);
}

}  // namespace moe64::test

/// EXPECT_MOE64_ERROR(statement, errc::code, "part of the message", ...)
#define EXPECT_MOE64_ERROR(statement, code, ...) \
  EXPECT_TRUE(                                   \
      ::moe64::test::throws_error([&] { static_cast<void>(statement); }, (code), {__VA_ARGS__}))
