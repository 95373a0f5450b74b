// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <string>

namespace dalle2::test {

/// Breaks the first listing of a folder off while it lives, behind its first entry.
struct BrokenListing {
  BrokenListing() {
    static int count = 0;  // calls are counted anew for another text
    const std::string zeros(static_cast<size_t>(count++), '0');
    setenv("DALLE2_FAIL_AT", ("readdir:" + zeros + "1:eio").c_str(), 1);
  }
  ~BrokenListing() { unsetenv("DALLE2_FAIL_AT"); }
  BrokenListing(const BrokenListing&) = delete;
  BrokenListing& operator=(const BrokenListing&) = delete;
};

}  // namespace dalle2::test
