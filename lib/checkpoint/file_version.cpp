// SPDX-License-Identifier: MIT
#include "checkpoint/file_version.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/pickle/pickle.h"

namespace dalle2 {
namespace {

/// "downs.0.4.1.weight" of "unets.1.downs.0.4.1.weight", and whether it is of an upper unet.
struct UnetName {
  std::string_view rest;
  bool is_upper = false;

  explicit UnetName(std::string_view name) {
    constexpr std::string_view kPrefix = "unets.";
    if (!name.starts_with(kPrefix)) return;
    const std::string_view numbered = name.substr(kPrefix.size());
    const size_t dot = numbered.find('.');
    if (dot == std::string_view::npos) return;
    is_upper = numbered.substr(0, dot) != "0";
    rest = numbered.substr(dot + 1);
  }
};

/// The parts of a name between its dots.
std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t dot = 0; dot != std::string_view::npos; name.remove_prefix(dot + 1)) {
    dot = name.find('.');
    parts.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) break;
  }
  return parts;
}

class Signs {
 public:
  void from(const Version& version) { range.from = std::max(range.from, version); }
  void to(const Version& version) { range.to = std::min(range.to, version); }
  /// The sign of two neighbours: it is there, or it is not.
  void from_or_to(bool is_newer, const Version& newer, const Version& older) {
    if (is_newer)
      from(newer);
    else
      to(older);
  }
  VersionRange range;
};

void read_level(const std::vector<std::string_view>& parts,
                const at::Tensor& tensor,
                Signs& signs) {
  const bool is_down = parts[0] == "downs";
  const std::string_view place = parts[2];
  const bool is_map = tensor.dim() == 4;
  if (is_down && parts.size() > 4 && parts[4] == "block1") {
    signs.from_or_to(place == "2", {0, 15, 3}, {0, 15, 2});
  }
  if (is_down && (place == "0" || place == "4") && is_map) {
    if (parts.size() == 5 && parts[3] == "1") signs.from({1, 10, 0});
    if (parts.size() == 4 && tensor.size(2) == 4) signs.to({1, 9, 0});
  }
  if (is_down || place != "3") return;
  if (parts[3] == "net") signs.from({0, 21, 0});
  if (parts[3] == "weight" && is_map) {
    signs.from({0, 15, 0});
    signs.to({0, 20, 1});
  }
}

VersionRange versions_of_unets(const StateDict& weights, const std::string& where) {
  Signs signs;
  bool has_gamma = false, has_unets = false, is_nearest = false;
  int64_t last_kernel = 1;
  for (const auto& [name, tensor] : weights) {
    const UnetName unet(name);
    const std::vector<std::string_view> parts = parts_of(unet.rest);
    if (unet.rest.empty()) continue;
    has_unets = true;
    has_gamma |= parts.back() == "gamma";
    if (parts[0] == "final_conv") {
      throw DataError(
          "{}: was written by dalle2-pytorch before {}, whose layers are not known here ({})",
          where,
          to_text(kFirstVersion),
          name);
    }
    if (parts[0] == "to_lowres_noise_cond") signs.from({0, 25, 0});
    if (parts[0] == "upsample_combiner") signs.from({1, 1, 0});
    if (const auto cross = std::find(parts.begin(), parts.end(), "cross_attn");
        cross != parts.end() && cross + 1 != parts.end()) {
      signs.from_or_to(*(cross + 1) != "fn", {1, 14, 0}, {1, 12, 4});
    }
    if ((parts[0] == "downs" || parts[0] == "ups") && parts.size() > 3) {
      read_level(parts, tensor, signs);
      is_nearest |= parts[0] == "ups" && parts[2] == "3" && parts[3] == "1";
    }
    if (unet.rest != "to_out.weight" || tensor.dim() != 4) continue;
    last_kernel = tensor.size(2);
    const std::string dim =
        name.substr(0, name.size() - unet.rest.size()) + "final_resnet_block.block2.project.weight";
    const at::Tensor* const block = find_tensor(weights, dim);
    if (unet.is_upper && block != nullptr) {
      signs.from_or_to(tensor.size(1) > block->size(0), {0, 24, 0}, {0, 23, 10});
    }
  }
  if (!has_unets) return signs.range;
  signs.from_or_to(!has_gamma, {0, 16, 0}, {0, 15, 4});
  if (signs.range.to <= Version{0, 15, 2}) {
    signs.from_or_to(!is_nearest || last_kernel == 1, {0, 15, 0}, {0, 14, 1});
  }
  return signs.range;
}

VersionRange versions_of_prior(const StateDict& weights) {
  const auto has = [&](auto is) {
    return std::any_of(weights.begin(), weights.end(), [&](const auto& entry) {
      return std::string_view(entry.first).starts_with("net.") && is(entry.first);
    });
  };
  if (has([](const std::string& name) { return name.ends_with(".gamma"); })) {
    return {{0, 14, 0}, {0, 15, 4}};
  }
  if (has([](const std::string& name) { return name == "net.null_text_encodings"; })) {
    return {{1, 9, 0}, kLastVersion};
  }
  if (has([](const std::string& name) { return name == "net.null_text_embed"; })) {
    return {{0, 23, 0}, {1, 8, 4}};
  }
  return {{0, 16, 0}, {0, 22, 3}};
}

/// Whether the newest version of a range is to be taken for a file that says nothing.
bool is_newest_of(const VersionRange& fits, const StateDict& weights, const std::string& kind) {
  if (same_network(kind, fits.to).contains(fits.from)) return true;
  // Priors since 1.9.0 differ in what is dropped; and in times without a table, which are asked for.
  const bool has_table = find_tensor(weights, "net.to_time_embeds.0.weight") != nullptr;
  return kind == "prior" && fits.to == kLastVersion && has_table;
}

}  // namespace

VersionRange versions_of_tensors(const StateDict& weights,
                                 const std::string& kind,
                                 const std::string& where) {
  const VersionRange range =
      kind == "prior" ? versions_of_prior(weights) : versions_of_unets(weights, where);
  if (range.to < range.from) {
    throw DataError("{}: its tensors are those of no version of dalle2-pytorch from {} to {}",
                    where,
                    to_text(kFirstVersion),
                    to_text(kLastVersion));
  }
  return range;
}

std::optional<Version> said_version(const Cursor& checkpoint) {
  const std::optional<Cursor> entry =
      checkpoint.value().is_dict() ? checkpoint.find("version") : std::nullopt;
  const std::optional<std::string> text = entry ? version_text(entry->value()) : std::nullopt;
  if (!text) return std::nullopt;
  return std::min(kLastVersion, parse_version(*text, entry->where()));
}

Version version_of_file(const Cursor& checkpoint,
                        const StateDict& weights,
                        const std::string& kind,
                        const ToldVersion& told) {
  const std::string where = checkpoint.where();
  const VersionRange fits = versions_of_tensors(weights, kind, where);
  const std::optional<Version> said = said_version(checkpoint);
  std::optional<Version> named;
  if (!told.version.empty()) named = std::min(kLastVersion, parse_version(told.version, told.by));
  if (said && named && *said != *named) {
    throw ConfigError("{} {}: the file {} says that dalle2-pytorch {} wrote it\n  Leave it out.",
                      told.by,
                      to_text(*named),
                      where,
                      to_text(*said));
  }
  if (const std::optional<Version> version = said ? said : named) {
    if (fits.contains(*version)) return *version;
    throw ConfigError("{}: {} dalle2-pytorch {}, but its tensors are those of {}{}",
                      where,
                      said ? "says that it was written by" : told.by + " names",
                      to_text(*version),
                      to_text(fits),
                      said ? "" : "\n  Name one of those.");
  }
  if (!is_newest_of(fits, weights, kind)) {
    throw ConfigError(
        "{}: does not say which version of dalle2-pytorch wrote it, and its tensors are those of {}, "
        "which computed different things with them\n  Name the version: {} {}",
        where,
        to_text(fits),
        told.by,
        fits.contains({1, 1, 0}) ? "1.1.0" : to_text(fits.to));
  }
  if (fits.to != kLastVersion || !same_network(kind, fits.to).contains(fits.from)) {
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
