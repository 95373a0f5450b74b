// SPDX-License-Identifier: MIT
// dalle2-train report: a run as one HTML page.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "io/files/atomic_file.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"
#include "tracker/report/report.h"

namespace dalle2 {
namespace {

/// @throws ConfigError if a file is there that is no report
void check_replaces_report(const std::string& path) {
  constexpr size_t kHeadBytes = 400;  // which hold the generator
  std::ifstream there(path, std::ios::binary);
  if (!there) return;
  std::string head(kHeadBytes, '\0');
  there.read(head.data(), kHeadBytes);
  if (head.find("content=\"dalle2-train\"") != std::string::npos) return;
  throw ConfigError("--out {}: the file exists, and is no report of a run\n  Name another one.",
                    path);
}

}  // namespace

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
  check_replaces_report(command.out_path);
  const std::string page =
      make_report(command.data_path,
                  {.most_picture_steps = command.most_picture_steps, .compare = command.compare});
  write_file_atomically(command.out_path, page);
  fmt::print("{}: {}\n", command.out_path, human_bytes(page.size()));
}

}  // namespace dalle2
