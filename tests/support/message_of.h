// SPDX-License-Identifier: MIT
#pragma once

#include "base/error.h"

namespace dalle2::test {

/// The message of our error that `action` throws; "nothing was thrown" if it throws none.
template <class Kind = Error, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace dalle2::test
