// SPDX-License-Identifier: MIT
#include "config/shared/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

/// Versions whose networks compute the same with the same weights.
constexpr std::array<VersionRange, 13> kUnets = {{{{0, 14, 0}, {0, 14, 1}},
                                                  {{0, 15, 0}, {0, 15, 2}},
                                                  {{0, 15, 3}, {0, 15, 4}},
                                                  {{0, 16, 0}, {0, 16, 1}},
                                                  {{0, 16, 2}, {0, 20, 1}},
                                                  {{0, 21, 0}, {0, 23, 2}},
                                                  {{0, 23, 3}, {0, 23, 10}},
                                                  {{0, 24, 0}, {1, 1, 0}},
                                                  {{1, 2, 0}, {1, 2, 2}},
                                                  {{1, 4, 0}, {1, 4, 2}},
                                                  {{1, 4, 3}, {1, 9, 0}},
                                                  {{1, 10, 0}, {1, 12, 4}},
                                                  {{1, 14, 0}, {1, 15, 6}}}};
constexpr std::array<VersionRange, 12> kPriors = {{{{0, 14, 0}, {0, 15, 4}},
                                                   {{0, 16, 0}, {0, 16, 0}},
                                                   {{0, 16, 1}, {0, 16, 1}},
                                                   {{0, 16, 2}, {0, 22, 2}},
                                                   {{0, 22, 3}, {0, 22, 3}},
                                                   {{0, 23, 0}, {0, 23, 2}},
                                                   {{0, 23, 3}, {1, 4, 2}},
                                                   {{1, 4, 3}, {1, 8, 4}},
                                                   {{1, 9, 0}, {1, 10, 3}},
                                                   {{1, 10, 4}, {1, 10, 7}},
                                                   {{1, 10, 8}, {1, 12, 0}},
                                                   {{1, 12, 1}, {1, 15, 6}}}};

}  // namespace

std::string to_text(const Version& version) {
  return fmt::format("{}.{}.{}", version[0], version[1], version[2]);
}

Version parse_version(const std::string& text, const std::string& where, bool or_later) {
  Version version = {};
  char first = 0, second = 0;
  std::istringstream in(text);
  in >> std::noskipws >> version[0] >> first >> version[1] >> second >> version[2];
  const bool is_version =
      in && first == '.' && second == '.' && *std::ranges::min_element(version) >= 0;
  if (!is_version) {
    throw ConfigError("{}: expected a version of dalle2-pytorch such as 1.1.0, got \"{}\"",
                      where,
                      printable(text));
  }
  if (or_later) version = std::min(version, kLastVersion);
  if (version < kFirstVersion || version > kLastVersion) {
    throw ConfigError(
        "{}: expected dalle2-pytorch {} to {}, got {}, whose layers are not known here\n  {}",
        where,
        to_text(kFirstVersion),
        to_text(kLastVersion),
        to_text(version),
        version < kFirstVersion ? "Take weights of a later version." : "Name one of those.");
  }
  return version;
}

std::string to_text(const VersionRange& range) {
  return range.from == range.to ? to_text(range.from)
                                : to_text(range.from) + " to " + to_text(range.to);
}

VersionRange same_network(const std::string& kind, const Version& version) {
  const std::span<const VersionRange> ranges = networks_of(kind);
  size_t i = ranges.size() - 1;
  while (i > 0 && version < ranges[i].from) --i;
  return ranges[i];
}

std::span<const VersionRange> networks_of(const std::string& kind) {
  if (kind == "prior") return kPriors;
  return kUnets;
}

}  // namespace dalle2
