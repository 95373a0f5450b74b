// SPDX-License-Identifier: MIT
// Who we are to Weights & Biases and where it is: the environment, ~/.netrc and the files `settings`, as
// its own client reads them.
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

enum class WandbMode { kOnline, kOffline, kDisabled };

struct WandbAccess {
  WandbMode mode = WandbMode::kOffline;
  std::string mode_reason;  ///< why, for the log: "WANDB_MODE is offline"
  std::string base_url;     ///< without a slash at its end
  std::string api_key;      ///< a secret; empty: none was found
  std::string folder;       ///< of the offline runs: "./wandb"
  bool console = true;      ///< what is printed is sent too

  // What the environment says of the run; empty: nothing.
  std::string run_id, name, notes, group, job_type;
  std::vector<std::string> tags;
};

/// Mode: WANDB_MODE (online, offline, dryrun, disabled), WANDB_DISABLED, `mode` of the settings; else
/// online with a key and offline without one. Key: WANDB_API_KEY, else the password of the server in the
/// file NETRC or ~/.netrc. Server: WANDB_BASE_URL, `base_url` of the settings, else
/// https://api.wandb.ai. Folder: WANDB_DIR, else the working directory. Run: WANDB_RUN_ID, WANDB_NAME,
/// WANDB_NOTES, WANDB_RUN_GROUP, WANDB_JOB_TYPE, WANDB_TAGS. Console: not with WANDB_CONSOLE=off. Settings: wandb/settings in the folder
/// before those of WANDB_CONFIG_DIR, else of ~/.config/wandb.
/// @throws ConfigError an unknown mode, online without a key, a malformed key, a url that is
/// none, plain http to another machine
WandbAccess find_wandb_access();

}  // namespace dalle2
