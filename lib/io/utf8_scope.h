// SPDX-License-Identifier: MIT
// UTF-8 for the functions of C that ask the locale. Internal to lib/io.
#pragma once

#include <locale.h>

namespace dalle2 {

/// The thread's characters are UTF-8 while it lives.
class Utf8Scope {
 public:
  Utf8Scope() : previous_(uselocale(utf8())) {}
  ~Utf8Scope() { uselocale(previous_); }
  Utf8Scope(const Utf8Scope&) = delete;
  Utf8Scope& operator=(const Utf8Scope&) = delete;

 private:
  static locale_t utf8() {
    static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return locale;  // null (no such locale) leaves the thread's own in place
  }
  locale_t previous_;
};

}  // namespace dalle2
