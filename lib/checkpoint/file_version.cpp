// SPDX-License-Identifier: MIT
#include "checkpoint/file_version.h"

#include <fmt/ranges.h>
#include <fnmatch.h>
#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/pickle/pickle.h"

namespace dalle2 {
namespace {

/// What the name of a unet's tensor says of the version that wrote it.
struct Sign {
  const char* name;  ///< behind "unets.N.", a pattern of fnmatch()
  VersionRange versions;
  int64_t kernel = 0;  ///< of filters of that side alone; 0: of any tensor
};
constexpr Sign kSigns[] = {{"downs.?.3.?.block1.*", {.to = {0, 15, 2}}},
                           {"downs.?.2.?.block1.*", {.from = {0, 15, 3}}},
                           {"ups.?.3.weight", {{0, 15, 0}, {0, 20, 1}}, 4},
                           {"ups.?.3.net.*", {.from = {0, 21, 0}}},
                           {"to_lowres_noise_cond.*", {.from = {0, 25, 0}}},
                           {"upsample_combiner.*", {.from = {1, 1, 0}}},
                           {"downs.?.[04].weight", {.to = {1, 9, 0}}, 4},
                           {"downs.?.[04].1.weight", {.from = {1, 10, 0}}, 1},
                           {"*.cross_attn.fn.null_kv", {.to = {1, 12, 4}}},
                           {"*.cross_attn.null_kv", {.from = {1, 14, 0}}}};

bool matches(const std::string& name, const char* pattern) {
  return ::fnmatch(pattern, name.c_str(), 0) == 0;
}

VersionRange versions_of_unets(const StateDict& weights, const std::string& where) {
  VersionRange range;
  const auto narrow = [&](const VersionRange& versions) {
    range.from = std::max(range.from, versions.from);
    range.to = std::min(range.to, versions.to);
  };
  constexpr std::string_view kPrefix = "unets.";
  bool has_gamma = false, has_unets = false, is_nearest = false;
  int64_t last_kernel = 1;
  for (const auto& [name, tensor] : weights) {
    const size_t dot = name.find('.', kPrefix.size());
    if (!name.starts_with(kPrefix) || dot == std::string::npos) continue;
    const std::string rest = name.substr(dot + 1);
    has_unets = true;
    has_gamma |= rest.ends_with(".gamma");
    is_nearest |= matches(rest, "ups.?.3.1.*");
    if (rest.starts_with("final_conv.")) {
      throw DataError(
          "{0}: was written by dalle2-pytorch before {1}, whose layers are not known here ({2})\n  Draw "
          "with the version that wrote it, or take a decoder of {1} or later.",
          where,
          to_text(kFirstVersion),
          name);
    }
    const int64_t kernel = tensor.dim() == 4 ? tensor.size(2) : 0;
    for (const Sign& sign : kSigns) {
      if (matches(rest, sign.name) && (sign.kernel == 0 || sign.kernel == kernel))
        narrow(sign.versions);
    }
    if (rest != "to_out.weight" || kernel == 0) continue;
    last_kernel = kernel;
    const at::Tensor* const block =
        find_tensor(weights, name.substr(0, dot + 1) + "final_resnet_block.block2.project.weight");
    if (name.starts_with("unets.0.") || block == nullptr) continue;
    const bool sees_lowres = tensor.size(1) > block->size(0);
    narrow(sees_lowres ? VersionRange{.from = {0, 24, 0}} : VersionRange{.to = {0, 23, 10}});
  }
  if (!has_unets) return range;
  narrow(has_gamma ? VersionRange{.to = {0, 15, 4}} : VersionRange{.from = {0, 16, 0}});
  if (range.to <= Version{0, 15, 2}) {
    const bool is_first = is_nearest && last_kernel != 1;
    narrow(is_first ? VersionRange{.to = {0, 14, 1}} : VersionRange{.from = {0, 15, 0}});
  }
  return range;
}

VersionRange versions_of_prior(const StateDict& weights) {
  constexpr std::pair<const char*, VersionRange> kOfNames[] = {
      {"net.*.gamma", {.to = {0, 15, 4}}},
      {"net.null_text_encodings", {.from = {1, 9, 0}}},
      {"net.null_text_embed", {{0, 23, 0}, {1, 8, 4}}}};
  for (const auto& [pattern, versions] : kOfNames) {
    for (const auto& [name, tensor] : weights)
      if (matches(name, pattern)) return versions;
  }
  return {{0, 16, 0}, {0, 22, 3}};
}

/// "0.16.0 to 0.16.1, 0.16.2 to 0.20.1": the versions of a range, those with the same networks together.
std::string networks_within(const VersionRange& range, const std::string& kind) {
  std::vector<std::string> names;
  for (const VersionRange& same : networks_of(kind)) {
    const VersionRange both = {std::max(same.from, range.from), std::min(same.to, range.to)};
    if (both.from <= both.to) names.push_back(to_text(both));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

VersionRange versions_of_tensors(const StateDict& weights,
                                 const std::string& kind,
                                 const std::string& where) {
  const VersionRange range =
      kind == "prior" ? versions_of_prior(weights) : versions_of_unets(weights, where);
  if (range.to < range.from) {
    throw DataError(
        "{0}: its tensors are those of no version of dalle2-pytorch from {1} to {2}\n  Give a file as one "
        "version wrote it. `dalle2-train inspect {0}` lists the tensors.",
        where,
        to_text(kFirstVersion),
        to_text(kLastVersion));
  }
  return range;
}

std::optional<Version> said_version(const Cursor& checkpoint) {
  const std::optional<Cursor> entry = checkpoint.find("version");
  const std::optional<std::string> text = entry ? version_text(entry->value()) : std::nullopt;
  if (!text) return std::nullopt;
  return parse_version(*text, entry->where(), /*or_later=*/true);
}

Version version_of_file(const Cursor& checkpoint,
                        const StateDict& weights,
                        const std::string& kind,
                        const ToldVersion& told) {
  const std::string where = checkpoint.where();
  const VersionRange fits = versions_of_tensors(weights, kind, where);
  const std::optional<Version> said = said_version(checkpoint);
  std::optional<Version> named;
  if (!told.version.empty()) named = parse_version(told.version, told.by);
  if (said && named && *said != *named) {
    throw ConfigError(
        "{0} {1}: the file {2} says that dalle2-pytorch {3} wrote it\n  Set {0} to {3}.",
        told.by,
        to_text(*named),
        where,
        to_text(*said));
  }
  if (const std::optional<Version> version = said ? said : named) {
    if (fits.contains(*version)) return *version;
    throw ConfigError(
        "{}: {} dalle2-pytorch {}, but its tensors are those of {}{}",
        where,
        said ? "says that it was written by" : told.by + " names",
        to_text(*version),
        to_text(fits),
        said ? "\n  Get the file anew, or take its entry \"version\" out (in Python), and "
               "name one of those by " +
                   told.by + "."
             : "\n  Name one of those.");
  }
  const bool is_one_network = same_network(kind, fits.to).contains(fits.from);
  // Priors since 1.9.0 differ in what is dropped; and in times without a table, which are asked for.
  const bool is_last = kind == "prior" && fits.to == kLastVersion &&
                       find_tensor(weights, "net.to_time_embeds.0.weight") != nullptr;
  if (!is_one_network && !is_last) {
    throw ConfigError(
        "{}: does not say which version of dalle2-pytorch wrote it, and its tensors are those of {}, "
        "which computed different things with them: {}\n  Set {} to the version that wrote it: whoever "
        "published the file names it on its page (model card), in requirements.txt or in setup.py of "
        "that time. Another one draws wrong pictures without an error.",
        where,
        to_text(fits),
        networks_within(fits, kind),
        told.by);
  }
  if (fits.to != kLastVersion || !is_one_network) {
    log_info(
        "ckpt",
        "{}: does not say its version of dalle2-pytorch; by its tensors it is one of {}, and is "
        "taken for {} ({} says otherwise)",
        where,
        to_text(fits),
        to_text(fits.to),
        told.by);
  }
  return fits.to;
}

}  // namespace dalle2
