// SPDX-License-Identifier: MIT
#include "config/reading/faults.h"

#include <algorithm>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"

namespace dalle2 {
namespace {

// An error has to fit in 60 lines of a terminal.
constexpr size_t kMostLines = 50;
/// The consequence in a warning's text, which does not hold for an error.
constexpr std::string_view kIgnored = ", it is ignored";

bool lies_under(const Fault& fault, const std::string& pointer) {
  return fault.pointer == pointer || fault.pointer.starts_with(pointer + "/");
}

}  // namespace

void Faults::add(const Faults& others) {
  errors_.insert(errors_.end(), others.errors_.begin(), others.errors_.end());
  warnings_.insert(warnings_.end(), others.warnings_.begin(), others.warnings_.end());
}

bool Faults::has_error_under(const std::string& pointer) const {
  return std::ranges::any_of(errors_,
                             [&](const Fault& fault) { return lies_under(fault, pointer); });
}

void Faults::keep_under(const std::vector<std::string>& pointers) {
  const auto is_elsewhere = [&](const Fault& fault) {
    return std::ranges::none_of(
        pointers, [&](const std::string& pointer) { return lies_under(fault, pointer); });
  };
  std::erase_if(errors_, is_elsewhere);
  std::erase_if(warnings_, is_elsewhere);
}

void Faults::drop_under(const std::string& pointer) {
  const auto is_there = [&](const Fault& fault) { return lies_under(fault, pointer); };
  std::erase_if(errors_, is_there);
  std::erase_if(warnings_, is_there);
}

void Faults::promote_warnings() {
  for (Fault& fault : warnings_) {
    const size_t at = fault.text.find(kIgnored);
    if (at != std::string::npos) fault.text.erase(at, kIgnored.size());
    errors_.push_back(std::move(fault));
  }
  warnings_.clear();
}

void Faults::throw_if_any(const std::string& origin) const {
  if (errors_.empty()) return;
  std::string text =
      fmt::format("{}: {} problem{}", origin, errors_.size(), errors_.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(errors_.size(), kMostLines); ++i) {
    text += "\n  " + fault_line(errors_[i]);
  }
  if (errors_.size() > kMostLines) {
    text += fmt::format("\n  and {} more", errors_.size() - kMostLines);
  }
  constexpr size_t kMostWarnings = 5;
  for (size_t i = 0; i < std::min(warnings_.size(), kMostWarnings); ++i) {
    text += "\n  warning: " + fault_line(warnings_[i]);
  }
  if (warnings_.size() > kMostWarnings) {
    text += fmt::format(
        "\n  and {}",
        counted(std::ssize(warnings_) - static_cast<int64_t>(kMostWarnings), "more warning"));
  }
  throw ConfigError("{}", text);
}

std::string fault_line(const Fault& fault) {
  return without_tokens(
      fmt::format("{}: {}", fault.pointer.empty() ? "/" : fault.pointer, fault.text));
}

}  // namespace dalle2
