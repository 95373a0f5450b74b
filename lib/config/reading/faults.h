// SPDX-License-Identifier: MIT
// What is wrong with a config: collected, then reported at once.
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// One finding: the JSON pointer of a value ("" is the root) and what is the matter with it.
struct Fault {
  std::string pointer;
  std::string text;
};

/// The errors and warnings found while a config is read.
class Faults {
 public:
  void error(const std::string& pointer, const std::string& text) {
    errors_.push_back({pointer, text});
  }
  void warn(const std::string& pointer, const std::string& text) {
    warnings_.push_back({pointer, text});
  }

  void add(const Faults& others);

  const std::vector<Fault>& errors() const { return errors_; }
  const std::vector<Fault>& warnings() const { return warnings_; }
  /// True if an error is at `pointer` or below it.
  bool has_error_under(const std::string& pointer) const;
  /// Forgets those that are not at one of `pointers` or below it.
  void keep_under(const std::vector<std::string>& pointers);
  /// Forgets what lies there.
  void drop_under(const std::string& pointer);
  /// Makes each warning an error (`--strict`): what was ignored is refused.
  void promote_warnings();
  /// @throws ConfigError "ORIGIN: N problems\n  /pointer: text\n...", at most 50 lines and a few warnings;
  /// nothing if there is no error
  void throw_if_any(const std::string& origin) const;

 private:
  std::vector<Fault> errors_;
  std::vector<Fault> warnings_;
};

/// "/pointer: text", the form in which a fault is printed.
std::string fault_line(const Fault& fault);

}  // namespace dalle2
