// SPDX-License-Identifier: MIT
// `convert` of what versions of dalle2-pytorch wrote: gives a file the config and the version that it lacks, and makes
// a file of 1.15.6 of it where the numbers allow that.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/state_dict.h"

namespace dalle2 {

struct DescribedFile {
  std::optional<std::string> config_path = {};  ///< none: the file's own config
  std::string written_by = {};                  ///< "": by what the file says
  bool to_last_version = false;                 ///< of 1.15.6; weights alone
  bool averaged = false;  ///< weights alone, averaged ones where there are any
};

/// A decoder's or prior's file with `version` and `config`. @param in where it lies
/// @throws ConfigError for another kind, for no config, and for weights that mean nothing in 1.15.6
Dict described_checkpoint(const Value& checkpoint, const std::string& in, const DescribedFile& how);

}  // namespace dalle2
