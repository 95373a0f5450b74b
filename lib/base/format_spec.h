// SPDX-License-Identifier: MIT
// The format specification mini-language of Python: what may follow the colon in {epoch:>5}.
#pragma once

#include <string>

namespace dalle2 {

/// [[fill]align][sign][z][#][0][width][grouping][.precision][type]
struct FormatSpec {
  std::string fill = " ";  ///< one UTF-8 character
  char align = '\0';       ///< one of < > = ^, or '\0' for the default of the kind
  char sign = '\0';        ///< one of + - and space, or '\0'
  bool no_negative_zero = false;
  bool alternate = false;
  int width = -1;
  char grouping = '\0';  ///< , or _ between groups of digits
  int precision = -1;
  char type = '\0';
};

/// @param numeric a leading 0 of the width pads numbers after their sign, and text at its right
/// @throws ConfigError
FormatSpec parse_format_spec(const std::string& spec, bool numeric);

std::string format_text(const std::string& value, const FormatSpec& spec);
std::string format_integer(long long value, const FormatSpec& spec);
std::string format_real(double value, const FormatSpec& spec);

/// Python's repr of a float: "0.1", "1e+16", "3.0", "inf".
std::string python_repr(double value);

}  // namespace dalle2
