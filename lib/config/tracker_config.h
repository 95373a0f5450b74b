// SPDX-License-Identifier: MIT
// `tracker` and `evaluate` (config.md, sections 7 and 8).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "config/types.h"

namespace dalle2 {

struct ConsoleLogConfig {
  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;
};
struct WandbLogConfig {
  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;
  std::optional<std::string> wandb_entity, wandb_project, wandb_run_id, wandb_run_name;
};
using LogConfig = std::variant<ConsoleLogConfig, WandbLogConfig>;  // tag key log_type

struct LocalLoadConfig {
  std::string file_path;  // required
  bool only_auto_resume = false;
};
struct UrlLoadConfig {
  std::string url;  // required
  bool only_auto_resume = false;
};
struct WandbLoadConfig {
  std::string wandb_file_path;  // required
  std::optional<std::string> wandb_run_path;
  bool only_auto_resume = false;
};
using LoadConfig = std::variant<LocalLoadConfig, UrlLoadConfig, WandbLoadConfig>;  // tag key load_from

enum class SaveType { checkpoint, model };

struct SaveTargets {
  std::optional<std::string> save_latest_to, save_best_to, save_meta_to;  // false and null: off
  SaveType save_type = SaveType::checkpoint;
};
struct LocalSaveConfig : SaveTargets {};
struct WandbSaveConfig : SaveTargets {
  std::optional<std::string> wandb_run_path;
};
struct HuggingfaceSaveConfig : SaveTargets {
  std::string huggingface_repo;  // required
  std::optional<std::string> token_path;
};
using SaveConfig = std::variant<LocalSaveConfig, WandbSaveConfig, HuggingfaceSaveConfig>;  // tag key save_to

struct TrackerConfig {
  std::string data_path = ".tracker_data";
  bool overwrite_data_path = false;
  LogConfig log = ConsoleLogConfig{};   // required
  std::optional<LoadConfig> load;       // load_from null: none
  std::vector<SaveConfig> save;         // required, one or many
};

struct FidConfig {
  int64_t feature = 2048;
};
struct DecoderEvaluateConfig {
  int64_t n_evaluation_samples = 1000;
  // FID, IS, KID, LPIPS: object or null. The metrics are a later part: any but null is refused.
};

}  // namespace dalle2
