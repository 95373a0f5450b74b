// SPDX-License-Identifier: MIT
#include "config/shared/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

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

UnetLayout unet_layout(const Version& v) {
  return {.norm = {.gamma = v < Version{0, 16, 0},
                   .by_max = v >= Version{0, 16, 2} && v < Version{0, 23, 3}},
          .attention_first = v < Version{0, 15, 3},
          .strided_down = v < Version{1, 10, 0},
          .transposed_up = v >= Version{0, 15, 0} && v < Version{0, 21, 0},
          .lowres_at_end = v >= Version{0, 24, 0},
          .unit_values = v >= Version{1, 4, 0},
          .mean_values = v >= Version{1, 2, 0},
          .twice_scaled = v >= Version{1, 4, 3},
          .wrapped_cross_attn = v < Version{1, 14, 0}};
}

PriorLayout prior_layout(const Version& v) {
  using enum PriorLayout::Nulls;
  PriorLayout layout;
  layout.norm = {.gamma = v < Version{0, 16, 0},
                 .by_max = v >= Version{0, 16, 2} && v < Version{0, 23, 3}};
  layout.last_norm_by_max = v >= Version{0, 16, 2};
  layout.cosine_attention = v >= Version{1, 4, 3};
  if (v >= Version{0, 16, 1}) layout.bias_factor = 1024;
  if (v >= Version{0, 23, 3}) layout.bias_factor = 128;
  if (layout.cosine_attention) layout.bias_factor = 1;
  layout.nulls = v < Version{0, 23, 0} ? none : v < Version{1, 9, 0} ? encodings : all;
  layout.drops_text_embeds = v >= Version{1, 10, 4};
  layout.truncated_times = v >= Version{0, 16, 9} && v < Version{1, 10, 8};
  layout.query_of_self_cond = v >= Version{1, 12, 1};
  return layout;
}

DdimLayout::Noise noise_of(const Version& v, const Version& first_of_clipped) {
  using enum DdimLayout::Noise;
  return v < Version{0, 25, 2} ? negative_of_raw : v < first_of_clipped ? of_raw : of_clipped;
}

DecoderLoopLayout decoder_loop_layout(const Version& v) {
  DecoderLoopLayout layout;
  layout.ddim.exists = v >= Version{0, 19, 3};
  if (layout.ddim.exists) {
    layout.ddim.previous_levels = v < Version{1, 10, 2};
    layout.ddim.of_x_start = noise_of(v, {1, 11, 0});
    layout.ddim.predicted_noise = v < Version{1, 12, 3};
    layout.normalized_in_ddim = v >= Version{0, 23, 4};
  }
  layout.nearest = v >= Version{0, 23, 10};
  layout.clamped = v >= Version{0, 16, 16};
  layout.plain_in_eval = v < Version{0, 23, 5};
  return layout;
}

/// The walks of 0.19.0 to 0.19.4 gave back the noise that they began with; theirs is that of 0.19.5.
DdimLayout prior_loop_layout(const Version& v) {
  DdimLayout ddim;
  ddim.previous_levels = true;
  ddim.exists = v >= Version{0, 19, 0};
  if (!ddim.exists) return ddim;
  ddim.to_zero = v < Version{1, 10, 3};
  ddim.of_x_start = noise_of(v, {1, 10, 5});
  ddim.predicted_noise = v < Version{1, 12, 3};
  return ddim;
}

}  // namespace

std::string to_text(const Version& version) {
  return fmt::format("{}.{}.{}", version[0], version[1], version[2]);
}

Version parse_version(const std::string& text, const std::string& where, bool or_later) {
  Version version = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool is_version = true;
  for (size_t i = 0; i < version.size() && is_version; ++i) {
    if (i > 0) is_version = at != end && *at++ == '.';
    const auto [rest, error] = std::from_chars(at, end, version[i]);
    is_version = is_version && error == std::errc() && version[i] >= 0;
    at = rest;
  }
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

Layout layout_of(const Version& version) {
  return {unet_layout(version),
          prior_layout(version),
          decoder_loop_layout(version),
          prior_loop_layout(version)};
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
