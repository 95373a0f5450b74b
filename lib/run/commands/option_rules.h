// SPDX-License-Identifier: MIT
// Which options go together: a table a command, of which errors and `--help` speak.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace dalle2 {

/// A row of a table. A name that does not begin with "--" is a fact about what a command reads, in the
/// words of messages.
struct OptionRule {
  std::vector<std::string> options;
  std::vector<std::string> needs;          ///< one of them; none: nothing
  std::vector<std::string> excludes = {};  ///< all of them
  std::string instead = {};                ///< what to do, beside leaving the option out
};

/// The options that are given, and facts. A fact that is absent is not known yet.
using OptionFacts = std::map<std::string, bool>;

// Facts of `sample`.
inline constexpr const char* kOnDecoder = "a decoder as --checkpoint";
inline constexpr const char* kOnPrior = "a prior as --checkpoint";
inline constexpr const char* kUnconditional = "an unconditional decoder";
inline constexpr const char* kTakesEncodings = "a model that takes text encodings";
inline constexpr const char* kTakesNoEncodings = "a decoder that takes no text encodings";
inline constexpr const char* kVariesPicture = "a picture to vary (--image with --clip)";
inline constexpr const char* kEnlarges = "a --start-unet above 1";
inline constexpr const char* kGuided = "a --cond-scale other than 1";

/// The table of a command: "sample", "convert", "make"; empty where all options go together.
const std::vector<OptionRule>& option_rules(const std::string& command);

/// @param where stands behind the option in the message: " on latest.pth, of a prior"
/// @throws ConfigError for an option whose row does not hold; a row that hangs on unknown facts may hold
void check_options(const std::string& command,
                   const OptionFacts& facts,
                   const std::string& where = "");
/// Ends the help of the options of a row: "; needs --clip; not with --pipeline".
std::string rule_help(const OptionRule& rule);

}  // namespace dalle2
