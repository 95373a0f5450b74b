// SPDX-License-Identifier: MIT
// Priors of the fixtures: from the `prior` section of a config, with the fixtures' weights.
#pragma once

#include <torch/torch.h>

#include "config/reading/reader.h"
#include "diffusion/prior/prior.h"
#include "support/fixture.h"
#include "support/plans.h"

namespace dalle2::test {

inline PriorPlan prior_plan(const nlohmann::json& section, const LossPlan& loss = {}) {
  ReadFindings findings;
  PriorConfig config;
  Reader(findings).read_struct(Json::parse(section.dump()), "/prior", config);
  PriorPlan plan = plan_prior(config, loss, findings.faults);
  findings.faults.throw_if_any("fixture.json");
  return plan;
}

/// The prior with the weights that the fixtures' makers give it.
inline DiffusionPrior prior_of(const nlohmann::json& section, const LossPlan& loss = {}) {
  DiffusionPrior prior(prior_plan(section, loss));
  fill_parameters(*prior->net());
  return prior;
}

/// A `prior` section of the golden values, and `net` on top of its network.
inline nlohmann::json golden_prior(const nlohmann::json& net,
                                   const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json section = {
      {"net", {{"dim", 16}, {"dim_head", 8}, {"heads", 2}, {"max_text_len", 5}, {"depth", 2}}},
      {"image_embed_dim", 16},
      {"timesteps", 30},
      {"cond_drop_prob", 0.1}};
  if (!net.is_null()) section["net"].update(net);
  if (!more.is_null()) section.update(more);
  return section;
}

/// The networks of model.md, section 12.
inline nlohmann::json p1_net() {
  return {{"num_time_embeds", 2},
          {"num_image_embeds", 2},
          {"num_text_embeds", 2},
          {"normformer", true},
          {"norm_in", true}};
}
inline nlohmann::json p2_net() {
  return {{"depth", 1},
          {"num_timesteps", 30},
          {"rotary_emb", false},
          {"final_proj", false},
          {"norm_out", false}};
}
inline nlohmann::json p3_net() {
  return {{"num_timesteps", 30}, {"self_cond", true}};
}

/// Embeddings of the golden values: two texts, the first a token shorter.
inline PriorInputs golden_inputs() {
  PriorInputs inputs = {wave({2, 16}, 0.31),
                        {wave({2, 16}, 0.77, 0.2), wave({2, 3, 16}, 0.5, 0.1)}};
  inputs.text.encodings[0][2].zero_();
  return inputs;
}

/// The noise of the fixtures: the k-th call gives wave(shape, 0.83, 0.5 k, 1.2).
inline NoiseSource prior_wave_noise() {
  // Copies of the source go on counting together: a sampler takes one for each chunk.
  return [calls = std::make_shared<int>(0)](at::IntArrayRef shape) {
    ++*calls;
    return wave(shape, 0.83, 0.5 * *calls, 1.2);
  };
}

}  // namespace dalle2::test
