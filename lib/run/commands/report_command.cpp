// SPDX-License-Identifier: MIT
// dalle2-train report: a run as one HTML page.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/text.h"
#include "io/files/atomic_file.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"
#include "tracker/report/report.h"

namespace dalle2 {

void run_report(const ReportCommand& command) {
  std::error_code ignored;
  if (std::filesystem::is_directory(command.out_path, ignored)) {
    throw ConfigError("--out {}: is a folder; expected the name of a file, e.g. {}",
                      command.out_path,
                      (std::filesystem::path(command.out_path) / "report.html").string());
  }
  if (const std::string ending = std::filesystem::path(command.out_path).extension().string();
      ending != ".html" && ending != ".htm") {
    throw ConfigError(
        "--out {}: expected a name that ends in .html, so that no file of a run is replaced by "
        "mistake",
        command.out_path);
  }
  check_out_folder("--out", command.out_path);
  const std::string page =
      make_report(command.data_path,
                  {.most_picture_steps = command.most_picture_steps, .compare = command.compare});
  write_file_atomically(command.out_path, page);
  fmt::print("{}: {}\n", command.out_path, human_bytes(page.size()));
}

}  // namespace dalle2
