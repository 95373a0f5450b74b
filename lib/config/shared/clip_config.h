// SPDX-License-Identifier: MIT
// `clip` of a decoder or prior: a frozen CLIP that makes what the data do not hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/clip/x_clip_config.h"
#include "config/kinds.h"
#include "config/reading/faults.h"
#include "config/reading/reflect.h"

namespace dalle2 {

struct ClipConfig {
  static constexpr const char* kDoc =
      "A frozen CLIP. In `decoder` and `prior`, it computes the embeddings that the data lack, and "
      "checkpoints hold its weights, as in the reference. In `evaluate.clip_score`, it computes "
      "the metric.";

  std::string make = "openai";
  std::string model = "ViT-L/14";
  std::optional<XClipConfig> base_model_kwargs;
  std::optional<std::string> sha256;
  std::optional<bool> quick_gelu;
  std::optional<std::vector<int64_t>> heads;

  /// Whether the file of the CLIP does not say all that it was made with.
  bool needs_arguments() const { return make == XClipConfig::kTag; }

  void fields(auto& f) {
    D2_FIELD(make,
             "Origin of the model. Only `x-clip` matters: other files describe their networks "
             "themselves.",
             one_of({"openai", "open_clip", "x-clip"}));
    D2_FIELD(
        model,
        "File of the CLIP: a checkpoint or model file of a run, or a file of OpenAI, open_clip or "
        "Hugging Face; with `x-clip`, a state dict. Or the name of an OpenAI model that OpenAI's "
        "package has downloaded into `~/.cache/clip`.",
        not_empty());
    D2_FIELD(base_model_kwargs, "Needed with `x-clip`: the arguments of the CLIP.");
    D2_FIELD(
        sha256,
        "Extension: SHA-256 of the file. The run sets it, and does not resume with another CLIP.",
        not_empty());
    D2_FIELD(
        quick_gelu,
        "Extension, for a CLIP without a config beside its file: whether it uses QuickGELU. Null: "
        "true for files of OpenAI and Hugging Face.");
    D2_FIELD(heads,
             "Extension, for a CLIP without a config beside its file: attention heads of the image "
             "tower and the text tower. Null: 64 wide.",
             within(1, most::kHeads).entries(2));
    f.check(!needs_arguments() || (!quick_gelu && !heads),
            quick_gelu ? "quick_gelu" : "heads",
            "has no meaning with \"make\": \"x-clip\": give base_model_kwargs");
    f.check(needs_arguments() || !base_model_kwargs,
            "base_model_kwargs",
            fmt::format("has a meaning with \"make\": \"x-clip\" alone, and it is \"{}\": the file "
                        "says what its networks are; leave it out",
                        make));
  }
};

/// Asks the file for its sha256 and compares it with that of the config, if there is one; what is
/// wrong goes to `faults`. Without `options.check_available` the CLIP may be nowhere.
/// @param pointer of the section, "/prior/clip"
void fill_in_clip(std::optional<ClipConfig>& clip,
                  const std::string& pointer,
                  const ReadOptions& options,
                  Faults& faults);

}  // namespace dalle2
