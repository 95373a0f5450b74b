// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/reading/reflect.h"

namespace dalle2 {

/// Where a file is: LoadLocation of dalle2-laion.
struct PipelineFile {
  std::string load_type = "local";
  std::string path;

  void fields(auto& f) {
    D2_FIELD(load_type, "No effect: the path says it.", one_of({"local", "url"}));
    D2_REQUIRED(path, "Path or URL.", not_empty());
  }
};

/// The unets that a file gives.
struct PipelineSource {
  std::vector<int64_t> unet_numbers;
  std::vector<double> default_cond_scale;
  std::vector<std::optional<int64_t>> default_sample_timesteps;
  PipelineFile load_model_from;
  std::optional<PipelineFile> load_config_from;

  void fields(auto& f) {
    D2_REQUIRED(unet_numbers, "Numbers of the unets, from 1.", at_least(1).not_empty());
    D2_FIELD(default_cond_scale, "Guidance of each of them; empty: 1.");
    D2_FIELD(default_sample_timesteps,
             "Steps of each of them; empty or null: the config's.",
             at_least(1));
    D2_REQUIRED(load_model_from, "The checkpoint.");
    D2_FIELD(load_config_from, "Its config, if it holds none.");
  }
};

struct PipelineDecoder {
  std::vector<PipelineSource> unet_sources;

  void fields(auto& f) { D2_REQUIRED(unet_sources, "Files of decoders.", not_empty()); }
};

struct PipelinePrior {
  PipelineFile load_model_from;
  std::optional<PipelineFile> load_config_from;
  double default_cond_scale = 1.0;
  std::optional<int64_t> default_sample_timesteps;

  void fields(auto& f) {
    D2_REQUIRED(load_model_from, "The checkpoint.");
    D2_FIELD(load_config_from, "Its config, if it holds none.");
    D2_FIELD(default_cond_scale, "Guidance.");
    D2_FIELD(default_sample_timesteps, "Steps; null: the config's.", at_least(1));
  }
};

/// The file that dalle2-laion draws by: which checkpoints draw together, stage by stage.
struct PipelineConfig {
  PipelineDecoder decoder;
  std::optional<PipelinePrior> prior;

  void fields(auto& f) {
    D2_REQUIRED(decoder, "The stages.");
    D2_FIELD(prior, "The prior, for texts.");
  }
};

/// The unets of all sources are 1 to their number, each given once. Keys that say how that program loads have no effect,
/// which a warning says.
/// @throws ConfigError listing every fault
PipelineConfig load_pipeline_config(const std::string& path);

}  // namespace dalle2
