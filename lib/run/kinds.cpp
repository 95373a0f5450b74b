// SPDX-License-Identifier: MIT
#include "run/kinds.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/vae/vae_run_config.h"
#include "run/commands/sample_command.h"
#include "run/init/first_config.h"

namespace dalle2 {

std::vector<RunKind>& run_kinds() {
  static std::vector<RunKind> kinds = {{.key = TrainDecoderConfig::kKind,
                                        .tensor_prefixes = {"unets.", "noise_schedulers."},
                                        .load = load_run<parse_decoder_config>,
                                        .first_config = decoder_first_config,
                                        .sample = sample_decoder},
                                       {.key = TrainVaeConfig::kKind,
                                        .tensor_prefixes = {"enc_dec."},
                                        .load = load_run<parse_vae_config>,
                                        .first_config = vae_first_config},
                                       {.key = TrainPriorConfig::kKind,
                                        .tensor_prefixes = {"net.", "noise_scheduler."},
                                        .load = load_run<parse_prior_config>,
                                        .first_config = prior_first_config,
                                        .sample = sample_prior},
                                       {.key = TrainClipConfig::kKind,
                                        .tensor_prefixes = {"visual.",
                                                            "positional_embedding",
                                                            "text_projection",
                                                            "logit_scale",
                                                            "transformer.resblocks.",
                                                            "token_embedding.",
                                                            "ln_final."},
                                        .load = load_run<parse_clip_config>,
                                        .first_config = clip_first_config}};
  return kinds;
}

const RunKind& run_kind_of(const std::string& key) {
  for (const RunKind& kind : run_kinds()) {
    if (kind.key == key) return kind;
  }
  throw ConfigError("no kind of run is called \"{}\"; known kinds are {}", key, available_kinds());
}

}  // namespace dalle2
