// SPDX-License-Identifier: MIT
// A file that trains the joint toy on tiny shards and resumes by itself.
#pragma once

#include <fstream>
#include <string>

#include "run/joint_toy.h"
#include "run/tiny_decoder.h"
#include "run/toy_support.h"

namespace dalle2::test {

/// @return where it was written
inline std::string write_joint_toy(const TempDir& folder, const std::string& out, int64_t epochs) {
  nlohmann::json config = tiny_decoder_config(folder.path(), out);
  config.erase("decoder");
  config.erase("evaluate");
  config["joint_toy"] = {{"width", 4}};
  config["train"] = {{"epochs", epochs}, {"log_every_n_updates", 1}, {"grad_accum_every", 2}};
  config["tracker"]["log"]["auto_resume"] = true;
  config["tracker"]["load"] = {{"load_from", "local"},
                               {"file_path", folder / (out + "/checkpoint.pth")},
                               {"only_auto_resume", true}};
  const std::string path = folder / (out + ".json");
  std::ofstream(path) << config.dump();
  return path;
}

}  // namespace dalle2::test
