// SPDX-License-Identifier: MIT
#include "config/reading/command_rules.h"

#include "config/reading/coerce.h"

namespace dalle2 {
namespace {

constexpr const char* kPointer = "/data/allow_pipe";

}  // namespace

bool allows_pipe(const Json& root) {
  const Json::json_pointer pointer(kPointer);
  return root.contains(pointer) && as_boolean(root.at(pointer)).value_or(false);
}

void check_commands(const ShardDataConfig& data, bool file_allows_pipe, Faults& faults) {
  if (faults.has_error_under("/data")) return;
  if (data.allow_pipe && !file_allows_pipe) {
    faults.error(kPointer,
                 "only the config file itself can allow commands, --set cannot: write "
                 "\"allow_pipe\": true into its \"data\" if you trust them");
  } else if (!data.allow_pipe && data.names_pipe()) {
    faults.error(kPointer,
                 "is false, and an url is a command (\"pipe:...\"), which would run on this "
                 "machine with your rights: write \"allow_pipe\": true into the \"data\" of the "
                 "config file if you trust it");
  }
}

}  // namespace dalle2
