// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/shards/pack.h"
#include "io/files/folder_names.h"

namespace dalle2 {

std::vector<std::string> describe_pack(const PackReport& report) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} of {} in {}",
                              with_commas(report.packed),
                              counted(report.found, "picture"),
                              counted(report.shards, "shard")));
  if (!report.removed.empty()) lines.push_back("removed: " + short_list(report.removed));
  if (report.grounded > 0) {
    lines.push_back(counted(report.grounded,
                            "transparent picture was laid on the ground",
                            "transparent pictures were laid on the ground"));
  }
  for (std::string& line : report.pictures.describe()) lines.push_back(std::move(line));
  if (report.without_caption > 0) {
    lines.push_back(counted(report.without_caption, "has no caption", "have no caption"));
  }
  if (!report.captions.empty()) lines.push_back(report.captions.report_all("captions"));
  if (!report.lonely_captions.empty()) {
    lines.push_back(fmt::format("{} of its name: {}",
                                counted(std::ssize(report.lonely_captions),
                                        "caption file was skipped, without a picture",
                                        "caption files were skipped, each without a picture"),
                                printable(short_list(report.lonely_captions))));
  }
  for (const auto& [extension, count] : report.other_files) {
    if (is_unread_extension(extension)) continue;  // list_pictures() has told of them
    lines.push_back(fmt::format("{} skipped: {}",
                                counted(count, "other file was", "other files were"),
                                one_line(extension)));
  }
  constexpr size_t kMostLines = 20;
  for (size_t i = 0; i < std::min(report.skipped.size(), kMostLines); ++i) {
    lines.push_back(fmt::format("left out: {} ({})",
                                one_line(report.skipped[i].path),
                                printable(report.skipped[i].reason)));
  }
  if (report.skipped.size() > kMostLines) {
    lines.push_back(
        fmt::format("left out: {} more",
                    with_commas(static_cast<int64_t>(report.skipped.size() - kMostLines))));
  }
  return lines;
}

}  // namespace dalle2
