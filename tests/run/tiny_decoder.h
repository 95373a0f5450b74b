// SPDX-License-Identifier: MIT
// A decoder that trains in a second, and its shards.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

#include "run/device_of_tests.h"
#include "support/tiny_shards.h"

namespace dalle2::test {

inline nlohmann::json tiny_unet(int64_t dim) {
  return {{"dim", dim},
          {"dim_mults", {1, 2}},
          {"image_embed_dim", 3},
          {"cond_dim", 8},
          {"num_resnet_blocks", 1},
          {"resnet_groups", 4},
          {"num_image_tokens", 1},
          {"num_time_tokens", 1}};
}

/// Five shards of seven pictures: three to train on, one to validate with, one for pictures.
inline nlohmann::json tiny_decoder_config(const std::string& folder,
                                          const std::string& out = "out") {
  write_tiny_shards(folder, 5, 7, 8);
  return {
      {"decoder",
       {{"unets", {tiny_unet(8)}},
        {"image_size", 8},
        {"timesteps", 30},
        {"sample_timesteps", {3}},
        {"learned_variance", false}}},
      {"data",
       {{"webdataset_base_url", folder + "/shards/{}.tar"},
        {"img_embeddings_url", folder + "/img_emb"},
        {"batch_size", 3},
        {"num_workers", 0},
        {"shard_width", 5},
        {"end_shard", 4},
        {"splits", {{"train", 0.6}, {"val", 0.2}, {"test", 0.2}}},
        {"preprocessing", {{"ToTensor", true}}}}},
      {"train",
       {{"epochs", 1},
        {"device", device_of_tests()},
        {"n_sample_images", 1},
        {"ema_update_after_step", 0},
        {"ema_update_every", 1}}},
      {"evaluate", nlohmann::json::object()},
      {"tracker",
       {{"data_path", folder + "/" + out},
        {"overwrite_data_path", true},
        {"log", {{"log_type", "console"}}},
        {"save", {{"save_to", "local"}, {"save_latest_to", folder + "/" + out + "/latest.pth"}}}}},
      {"seed", 5}};
}

/// Writes FOLDER/OUT.json, a run of another kind on those shards that resumes by itself.
/// @param sections of that kind @return its path
inline std::string write_tiny_run(const std::string& folder,
                                  const std::string& out,
                                  const nlohmann::json& sections) {
  nlohmann::json config = tiny_decoder_config(folder, out);
  config.erase("decoder");
  config.erase("evaluate");
  config.update(sections);
  config["tracker"]["log"]["auto_resume"] = true;
  config["tracker"]["load"] = {{"load_from", "local"},
                               {"file_path", folder + "/" + out + "/checkpoint.pth"},
                               {"only_auto_resume", true}};
  const std::string path = folder + "/" + out + ".json";
  std::ofstream(path) << config.dump();
  return path;
}

}  // namespace dalle2::test
