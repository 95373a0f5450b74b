// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/folder_names.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"
#include "trainer/averages/post_hoc_averages.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Part of the wanted profile above which what is made is another average than asked for.
constexpr double kMuchMissed = 0.05;

/// step00000036.pth, as a run names its averages.
bool is_name_of_averages(const fs::path& path) {
  const std::string stem = path.stem().string();
  return path.extension() == ".pth" && stem.size() > 4 && stem.starts_with("step") &&
         stem.find_first_not_of("0123456789", 4) == std::string::npos;
}

/// The result must not take the place of what it is made of.
void check_out_path(const std::string& out, const std::vector<std::string>& files) {
  std::error_code ignored;
  const bool is_input = std::any_of(files.begin(), files.end(), [&](const std::string& file) {
    return fs::equivalent(file, out, ignored);
  });
  if (is_input || (fs::exists(out, ignored) && is_name_of_averages(out))) {
    throw ConfigError(
        "{}: the last argument is the file to write, but this one holds averages of the run\n"
        "  Name another file after the averages, e.g. ema.pth.",
        out);
  }
}

/// The files themselves, and of folders those that a run saved, by name.
std::vector<std::string> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (const std::string& file : files_in_folder(path)) {
      if (is_name_of_averages(file)) found.push_back(file);
    }
    if (found.empty()) {
      throw DataError("{}: found no file of averages (step00000036.pth, ...) in the folder", path);
    }
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
  check_out_path(command.out_path, files);
  check_new_file("OUT", command.out_path, command.overwrite);
  const PostHocResult result =
      combine_post_hoc(files, {.sigma = command.sigma, .step = command.step});
  if (result.missed > kMuchMissed) {
    log_warning(
        "ema",
        "{:.0f} % of the average of sigma {} at step {} cannot be made from these files: save more "
        "often, or ask for a sigma nearer to /train/post_hoc_ema/sigmas",
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
