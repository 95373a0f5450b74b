// SPDX-License-Identifier: MIT
// The width of a terminal, and text laid out for it.
#pragma once

#include <string>

namespace dalle2 {

/// Columns of the terminal behind a file descriptor, else those of COLUMNS, else 80.
int terminal_columns(int descriptor);

/// Whether the descriptor is a terminal on which a line can be drawn over: TERM is not "dumb".
bool is_live_terminal(int descriptor);

/// The text with each line of more than `columns` broken at blanks, at a gap of two if there is a
/// late one: such gaps are between values. Continuation lines are indented by two
/// more columns. A word without a blank stays whole, so that a path can be copied. Characters are counted,
/// not bytes.
std::string wrapped(const std::string& text, int columns);

/// The first `columns` characters of a line.
std::string clipped(const std::string& line, int columns);

}  // namespace dalle2
