// SPDX-License-Identifier: MIT
// Python's str.format for the values a file name can hold: "epoch_{epoch:03d}.pth".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dalle2 {

/// std::monostate is Python's None.
using FormatValue =
    std::variant<int64_t, double, std::string, std::vector<double>, bool, std::monostate>;
using FormatFields = std::vector<std::pair<std::string, FormatValue>>;

/// `text` with each {name} replaced, as Python's text.format(**fields) does: format specs with
/// fill, align, sign, z, #, 0, width, grouping, precision and type; !s, !r and !a; {list[0]}; {{
/// and }}; specs that hold fields themselves. Attributes and positional fields are refused. A float
/// that may be infinite fits every spec of a float ("inf"); None takes no spec, as in Python.
/// @throws ConfigError where Python raises, and for more than 64 KiB: an unknown name (the known
/// ones are listed), a bad spec
std::string python_format(const std::string& text, const FormatFields& fields);

/// What `text` may become, from values of the kinds of `examples`. Lists may have any number of
/// entries by then: any index of an example is its first, or 0 if it has none. @throws ConfigError
std::string python_format_example(const std::string& text, const FormatFields& examples);

/// What python_format_example() would throw; nothing if it would not.
std::optional<std::string> python_format_fault(const std::string& text,
                                               const FormatFields& examples);

/// One value under one spec, as Python's format(value, spec). @throws ConfigError
std::string python_format_value(const FormatValue& value, const std::string& spec);

/// Python's str(value).
std::string python_text(const FormatValue& value);
/// Python's repr of a float: "0.1", "1e+16", "3.0", "inf".
std::string python_repr(double value);

/// The pieces of `text` between its replacement fields, one more than there are fields: "a{x}b{y}"
/// gives "a", "b", "". @throws ConfigError for unbalanced braces
std::vector<std::string> python_format_literals(const std::string& text);

}  // namespace dalle2
