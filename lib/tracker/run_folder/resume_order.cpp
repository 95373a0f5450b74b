// SPDX-License-Identifier: MIT
#include "tracker/run_folder/resume_order.h"

#include <algorithm>
#include <tuple>

namespace dalle2 {
namespace {

/// Whether `file` was saved on a branch that the run left before it saved `later`.
bool is_abandoned(const SavedFacts& file, const SavedFacts& later) {
  const auto first = std::min(file.went_back_to.size(), later.went_back_to.size());
  return std::any_of(later.went_back_to.begin() + static_cast<std::ptrdiff_t>(first),
                     later.went_back_to.end(),
                     [&](int64_t samples) { return file.samples_seen > samples; });
}

}  // namespace

std::vector<std::string> resume_order(const std::vector<ResumeFile>& files, ResumeFor purpose) {
  std::vector<const ResumeFile*> order;
  for (const ResumeFile& file : files) {
    const bool is_left_out = std::any_of(files.begin(), files.end(), [&](const auto& other) {
      return file.facts && other.facts && is_abandoned(*file.facts, *other.facts);
    });
    if (!is_left_out) order.push_back(&file);
  }
  const auto rank = [&](const ResumeFile& file) {
    if (!file.facts) return std::tuple{false, false, int64_t{0}, int64_t{0}};
    const bool is_doubtful = purpose == ResumeFor::kRollBack && file.facts->amid_skips;
    const auto roll_backs = static_cast<int64_t>(file.facts->went_back_to.size());
    return std::tuple{true, is_doubtful, -file.facts->samples_seen, -roll_backs};
  };
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
    return rank(*a) < rank(*b);
  });
  std::vector<std::string> paths;
  for (const ResumeFile* file : order) paths.push_back(file->path);
  return paths;
}

}  // namespace dalle2
