// SPDX-License-Identifier: MIT
// Decoders of the fixtures: from the `decoder` section of a config, with the fixtures' weights.
#pragma once

#include <torch/torch.h>

#include "config/decoder/decoder_run_config.h"
#include "diffusion/decoder/decoder.h"
#include "support/fixture.h"

namespace dalle2::test {

/// Plan of a `decoder` and a `train` section, read as a whole training file is.
inline DecoderPlan plan_of(const nlohmann::json& decoder,
                           const nlohmann::json& train = nlohmann::json::object()) {
  nlohmann::json file = {
      {"decoder", decoder},
      {"data",
       {{"webdataset_base_url", "shards/{}.tar"},
        {"img_embeddings_url", "embeddings"},
        {"splits", {{"train", 1.0}, {"val", 0.0}, {"test", 0.0}}}}},
      {"train", train},
      {"evaluate", nlohmann::json::object()},
      {"tracker",
       {{"log", {{"log_type", "console"}}},
        {"save",
         nlohmann::json::array({{{"save_to", "local"}, {"save_latest_to", "latest.pth"}}})}}}};
  for (const nlohmann::json& unet : decoder.at("unets")) {
    if (unet.value("cond_on_text_encodings", false)) file["data"]["text_embeddings_url"] = "text";
  }
  return parse_decoder_config(file.dump(), "fixture.json", {}).plan;
}

/// The decoder with the weights that the fixtures' makers give every unet.
inline Decoder decoder_of(const nlohmann::json& config,
                          const nlohmann::json& train = nlohmann::json::object()) {
  Decoder decoder(plan_of(config, train));
  for (int64_t i = 1; i <= decoder->num_unets(); ++i) fill_parameters(*decoder->unet(i));
  return decoder;
}

/// The noise of the fixtures: the k-th call gives wave(shape, 0.83, 0.5 k, 1.2).
inline NoiseSource wave_noise() {
  return [calls = 0](at::IntArrayRef shape) mutable {
    ++calls;
    return wave(shape, 0.83, 0.5 * calls, 1.2);
  };
}

/// Draws of a step at these times, which leave all conditions in.
inline DecoderStepNoise draws_at(const std::vector<int64_t>& times) {
  const auto batch = static_cast<int64_t>(times.size());
  DecoderStepNoise draws;
  draws.times = at::tensor(times, at::kLong);
  draws.noise = wave({batch, 3, 16, 16}, 0.83, 0.5, 1.2);
  draws.image_keep_mask = draws.text_keep_mask = at::ones({batch}, at::kBool);
  return draws;
}

/// The small unet D1 of the golden values.
inline nlohmann::json d1_unet() {
  return {{"dim", 8},
          {"dim_mults", {1, 2}},
          {"image_embed_dim", 12},
          {"cond_dim", 10},
          {"attn_dim_head", 4},
          {"attn_heads", 2},
          {"resnet_groups", 4}};
}

/// A decoder section with one D1 unet of 16 px, no conditional dropout, and `more` on top.
inline nlohmann::json d1_decoder(const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json config = {{"unets", {d1_unet()}},
                           {"image_size", 16},
                           {"timesteps", 30},
                           {"image_cond_drop_prob", 0.0},
                           {"text_cond_drop_prob", 0.0}};
  config.update(more);
  return config;
}

/// A decoder section with two D1 stages, 8 and 16 px, unconditional, and `more` on top.
inline nlohmann::json cascade(const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json unet = d1_unet();
  unet.erase("image_embed_dim");
  nlohmann::json config = {{"unets", {unet, unet}},
                           {"image_sizes", {8, 16}},
                           {"timesteps", 25},
                           {"unconditional", true}};
  config.update(more);
  return config;
}

}  // namespace dalle2::test
