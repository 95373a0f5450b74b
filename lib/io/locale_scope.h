// SPDX-License-Identifier: MIT
// The locale of a thread, for libraries that ask it what characters are. Internal to lib/io.
#pragma once

#include <locale.h>

namespace dalle2 {

/// While it lives the thread's characters are those of a locale.
class LocaleScope {
 public:
  explicit LocaleScope(locale_t locale) : previous_(uselocale(locale)) {}
  ~LocaleScope() { uselocale(previous_); }
  LocaleScope(const LocaleScope&) = delete;
  LocaleScope& operator=(const LocaleScope&) = delete;

 private:
  locale_t previous_;
};

/// UTF-8; null, which changes nothing, where there is no such locale.
inline locale_t utf8_locale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

/// ASCII alone.
inline locale_t ascii_locale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C", nullptr);
  return locale;
}

}  // namespace dalle2
