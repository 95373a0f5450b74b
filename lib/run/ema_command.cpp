// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/pth.h"
#include "run/commands.h"
#include "trainer/post_hoc_averages.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Part of the wanted profile above which what is made is another average than asked for.
constexpr double kMuchMissed = 0.05;

/// The files themselves, and those of folders by name.
std::vector<std::string> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".pth") found.push_back(entry.path().string());
    }
    if (found.empty()) throw DataError("{}: no .pth file is in the folder", path);
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

}  // namespace

void run_ema(const EmaCommand& command) {
  if (!command.out_path.ends_with(".pth") && !command.out_path.ends_with(".pt")) {
    throw ConfigError(
        "{}: the last argument is the file to write; expected a name that ends in .pth",
        command.out_path);
  }
  const std::vector<std::string> files = files_of(command.checkpoints);
  const PostHocResult result =
      combine_post_hoc(files, {.sigma = command.sigma, .step = command.step});
  if (result.missed > kMuchMissed) {
    log_warning("ema",
                "{:.0f} % of the average of sigma {} at step {} cannot be made of these files: "
                "save more often, or ask for a sigma nearer to /train/post_hoc_ema/sigmas",
                100 * result.missed,
                command.sigma,
                result.step);
  }
  write_pth(command.out_path, result.model_file);
  std::printf("%s\n",
              fmt::format("{}: sigma {} at step {}, of {} averages in {} files; {:.2g} % missed",
                          command.out_path,
                          command.sigma,
                          result.step,
                          result.snapshots,
                          files.size(),
                          100 * result.missed)
                  .c_str());
}

}  // namespace dalle2
