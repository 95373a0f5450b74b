// SPDX-License-Identifier: MIT
// Python's str.format, as far as file names need it: "epoch_{epoch:03d}.pth".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dalle2 {

using FormatValue = std::variant<int64_t, double, std::string, std::vector<double>>;
using FormatFields = std::vector<std::pair<std::string, FormatValue>>;

/// `text` with each {name} replaced, as Python's text.format(**fields) does. The forms are {name},
/// {list[0]}, {name:06d}, {name:.3f} and {name:.2e}, with any width and precision; {{ and }} are
/// braces. A width pads with blanks, or with zeros if it begins with 0.
/// @throws ConfigError another form, which names the field; an unknown name, which lists the known
std::string python_format(const std::string& text, const FormatFields& fields);

/// What `text` may become, from values of the kinds of `examples`. Lists may have any number of
/// entries by then: any index of an example is its first, or 0 if it has none. @throws ConfigError
std::string python_format_example(const std::string& text, const FormatFields& examples);

/// What python_format_example() would throw; nothing if it would not.
std::optional<std::string> python_format_fault(const std::string& text,
                                               const FormatFields& examples);

/// Python's repr of a float: "0.1", "1e+16", "3.0", "inf".
std::string python_repr(double value);

/// The pieces of `text` between its replacement fields, one more than there are fields: "a{x}b{y}"
/// gives "a", "b", "". @throws ConfigError for unbalanced braces
std::vector<std::string> python_format_literals(const std::string& text);

}  // namespace dalle2
