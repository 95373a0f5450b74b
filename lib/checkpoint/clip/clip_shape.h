// SPDX-License-Identifier: MIT
// What networks the weights of a CLIP belong to.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "checkpoint/state_dict.h"
#include "config/clip/clip_network_config.h"
#include "config/reading/reader.h"

namespace dalle2 {

/// What is wrong with a value is in the file, not in the user's config.
/// @param where precedes the text of the error @param root pointer of `json` in the file
/// @param image_keys what the file has for "/image_" of our keys
/// @throws DataError with the pointers of all that is wrong
template <class Config>
Config config_in_file(const Json& json,
                      const std::string& where,
                      const std::string& root = "",
                      const std::string& image_keys = "/image_") {
  ReadFindings findings;
  Reader reader(findings);
  Config config;
  reader.read_struct(json, root, config);
  if (findings.faults.errors().empty()) return config;
  std::vector<std::string> lines;
  for (Fault fault : findings.faults.errors()) {
    const std::string own = root + "/image_";
    if (fault.pointer.starts_with(own)) fault.pointer.replace(0, own.size(), image_keys);
    lines.push_back(fault_line(fault));
  }
  throw DataError("{}: no CLIP that can be built:{}", where, indented_list(lines));
}

/// Widths, layers and sizes from the shapes of the tensors. Heads are 64 wide, but for the image towers
/// of ViT-H-14, ViT-g-14 and ViT-bigG-14: shapes do not say it.
/// @param tensors under open_clip's names @param where precedes the text of errors
/// @throws DataError naming the tensor that is missing or of an impossible shape
ClipNetworkConfig clip_shape_of(const StateDict& tensors, const std::string& where);
/// Whether the weights are those of this network, as far as clip_shape_of() can tell: before anything is
/// allocated by a config. @param config_where, where of the config and of the tensors, for messages
/// @throws DataError with the pointer of the first value that differs
void check_shape(const ClipNetworkConfig& config,
                 const std::string& config_where,
                 const StateDict& tensors,
                 const std::string& where);

/// A model config of open_clip: the object itself, or that of an open_clip_config.json, with "model_cfg"
/// and "preprocess_cfg". @throws DataError with the pointer of what is wrong, of a key that open_clip does
/// not have, and of what is another network (timm, other poolings, ...)
ClipNetworkConfig clip_config_of_open_clip(const Json& json, const std::string& where);
/// The inverse, as an open_clip_config.json.
Json open_clip_config_of(const ClipNetworkConfig& config);

/// Takes over from the config.json of a Hugging Face CLIPModel what shapes do not say: heads,
/// activation, epsilon, the side of the pictures.
/// @throws DataError with the pointer of what is wrong, and of a key that no version of CLIPModel has
void apply_hugging_face_config(const Json& json,
                               const std::string& where,
                               ClipNetworkConfig& config);

}  // namespace dalle2
