// SPDX-License-Identifier: MIT
// A config struct from a file of weights, or from one beside it.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/reading/reader.h"

namespace dalle2 {

/// What is wrong with a value is in the file, not in the user's config.
/// @param where precedes the text of the error @throws DataError with the pointers of all that is wrong
template <class Config>
Config config_in_file(const Json& json, const std::string& where) {
  ReadFindings findings;
  Reader reader(findings);
  Config config;
  reader.read_struct(json, "", config);
  if (findings.faults.errors().empty()) return config;
  std::vector<std::string> lines;
  for (const Fault& fault : findings.faults.errors()) lines.push_back(fault_line(fault));
  throw DataError("{}: no CLIP that can be built:{}", where, indented_list(lines));
}

}  // namespace dalle2
