// SPDX-License-Identifier: MIT
#include "config/prior/prior_run_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/reading/parse_config.h"
#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

const NetworkName kPrior = {"the prior", "prior", "embedding"};

void check_network(const PriorConfig& config, Faults& faults) {
  const PriorNetworkConfig& net = config.net;
  if (net.dim != config.image_embed_dim) {
    faults.error("/prior/net/dim",
                 fmt::format("must equal prior.image_embed_dim ({}), got {}: the embeddings are "
                             "tokens of the transformer",
                             config.image_embed_dim,
                             net.dim));
  }
  if (net.num_timesteps && *net.num_timesteps != config.timesteps) {
    faults.error("/prior/net/num_timesteps",
                 fmt::format("must equal prior.timesteps ({}), got {}; null embeds any time",
                             config.timesteps,
                             *net.num_timesteps));
  }
  if (!net.num_timesteps && (net.dim < 4 || net.dim % 2 != 0)) {
    faults.error("/prior/net/dim",
                 fmt::format("must be even and 4 or more for times as sines and cosines, got {}; "
                             "net.num_timesteps takes any width",
                             net.dim));
  }
  if (net.rotary_emb && std::min<int64_t>(32, net.dim_head) % 2 != 0) {
    faults.error(
        "/prior/net/dim_head",
        fmt::format("must be even with rotary_emb, which turns pairs; got {}", net.dim_head));
  }
  if (static_cast<int64_t>(net.ff_mult * static_cast<double>(net.dim)) < 1) {
    faults.error(
        "/prior/net/ff_mult",
        fmt::format("leaves the feed-forward layers no width: {} times {}", net.ff_mult, net.dim));
  }
}

// jsd keeps nothing of the embedding at t = T-1.
void check_last_step(const PriorConfig& config, Faults& faults) {
  const bool whole_chain = config.sample_timesteps.value_or(config.timesteps) == config.timesteps;
  if (config.objective() == Objective::eps && whole_chain) {
    faults.error("/prior/beta_schedule",
                 fmt::format("the jsd schedule leaves nothing of the embedding at the last step, "
                             "so noise prediction cannot be undone there: set predict_v or "
                             "predict_x_start to true, or sample_timesteps below {}",
                             config.timesteps));
  }
}

void check_schedule(const PriorConfig& config, Faults& faults) {
  if (config.sample_timesteps && *config.sample_timesteps > config.timesteps) {
    faults.error("/prior/sample_timesteps",
                 fmt::format("must not exceed prior.timesteps ({}), got {}",
                             config.timesteps,
                             *config.sample_timesteps));
  }
  if (config.beta_schedule == BetaSchedule::jsd) return check_last_step(config, faults);
  check_betas(config.beta_schedule, config.timesteps, kPrior, faults);
}

/// With a CLIP, what it makes has to come from it alone: of two CLIPs nothing fits together.
void check_captions(const PriorDataConfig& data, Faults& faults) {
  if (!data.meta_url) {
    faults.error(
        "/data/meta_url",
        "must be given with prior.clip: the captions that belong to image_url, row by row");
  }
  const auto redundant = [&](const auto& url, const char* pointer) {
    if (!url) return;
    faults.error(pointer,
                 "is redundant beside prior.clip, which makes it of the captions: remove it, or "
                 "prior.clip");
  };
  redundant(data.text_url, "/data/text_url");
  redundant(data.text_encodings_url, "/data/text_encodings_url");
}

void check_embeddings(const TrainPriorConfig& config, Faults& faults) {
  const PriorDataConfig& data = config.data;
  if (!data.text_url) {
    faults.error("/data/text_url",
                 "must be given: the folder of the text embeddings that belong to image_url, row "
                 "by row. (For captions give prior.clip and data.meta_url.)");
  }
  const bool wanted = config.prior.condition_on_text_encodings;
  if (wanted && !data.text_encodings_url) {
    faults.error("/data/text_encodings_url",
                 "must be given: the prior is conditioned on text encodings; set "
                 "prior.condition_on_text_encodings to false to train without");
  }
  if (!wanted && data.text_encodings_url) {
    faults.error("/data/text_encodings_url",
                 "text encodings are being loaded, but not conditioned on: remove it, or set "
                 "prior.condition_on_text_encodings to true");
  }
  if (data.meta_url) {
    faults.warn("/data/meta_url",
                "has no effect without prior.clip: the embeddings of the texts are read");
  }
}

void check_sources(const TrainPriorConfig& config, Faults& faults) {
  if (!config.prior.clip && !config.data.image_url) {
    faults.error("/data/image_url", "required, but missing");
  }
  if (config.prior.clip) {
    check_captions(config.data, faults);
  } else {
    check_embeddings(config, faults);
  }
}

void check_splits(const PriorDataConfig& data, Faults& faults) {
  if (data.splits.train + data.splits.val >= 1) {
    faults.error("/data/splits",
                 fmt::format("train and val must leave something for test: {} + {} is not below 1",
                             data.splits.train,
                             data.splits.val));
  }
  if (data.splits.train == 0) {
    faults.error("/data/splits/train", "must be above 0: there is nothing to train on");
  }
}

void check_eval_timesteps(const TrainPriorConfig& config, Faults& faults) {
  const int64_t least = std::max<int64_t>(2, config.prior.sample_timesteps.value_or(2));
  for (size_t i = 0; i < config.train.eval_timesteps.size(); ++i) {
    const int64_t steps = config.train.eval_timesteps[i];
    if (steps >= least && steps <= config.prior.timesteps) continue;
    faults.error(
        fmt::format("/train/eval_timesteps/{}", i),
        fmt::format("must be between prior.sample_timesteps ({}) and prior.timesteps ({}), got {}",
                    least,
                    config.prior.timesteps,
                    steps));
  }
}

// The root's `seed` and the reference's `train.random_seed` are one value.
void unite_seeds(const Json& root, TrainPriorConfig& config, Faults& faults) {
  int64_t& seed = config.seed;
  int64_t& random_seed = config.train.random_seed;
  const auto train = root.find("train");
  const bool seed_given = root.contains("seed");
  const bool random_given = train != root.end() && train->contains("random_seed");
  if (seed_given && random_given && seed != random_seed) {
    faults.error("/seed",
                 fmt::format("{} differs from train.random_seed, {}: both are the seed of "
                             "everything random; leave one of them out, or give both one value",
                             seed,
                             random_seed));
  }
  if (seed_given) {
    random_seed = seed;
  } else {
    seed = random_seed;
  }
}

void check_prior(const Json& root,
                 const ReadOptions& options,
                 LoadedPriorConfig& loaded,
                 Faults& faults) {
  TrainPriorConfig& config = loaded.config;
  Faults of_clip;  // a file that is missing hides no fault of the config
  if (!faults.has_error_under("/prior/clip"))
    fill_in_clip(config.prior.clip, "/prior/clip", options, of_clip);
  // The reference builds no prior from a null of these.
  if (!config.prior.image_size) config.prior.image_size = 224;
  config.prior.net.max_text_len = config.prior.net.text_len();
  const bool is_trained = options.part == ConfigPart::whole;
  const bool train = !faults.has_error_under("/train");
  if (train && !faults.has_error_under("/seed")) unite_seeds(root, config, faults);
  if (train && !faults.has_error_under("/prior")) {
    if (config.written_by) {
      config.prior.written_by = parse_version(*config.written_by, "/written_by");
    }
    loaded.plan = plan_prior(config.prior, config.train.loss_plan(), faults);
    if (is_trained) check_eval_timesteps(config, faults);
  }
  if (train) check_train_rules(config, faults);
  if (!faults.has_error_under("/data")) {
    if (is_trained && !faults.has_error_under("/prior/clip")) check_sources(config, faults);
    check_splits(config.data, faults);
  }
  faults.add(of_clip);
}

}  // namespace

PriorPlan plan_prior(const PriorConfig& config, const LossPlan& loss, Faults& faults) {
  check_network(config, faults);
  check_schedule(config, faults);
  check_dream(loss.dream, config.objective(), kPrior, faults);
  PriorPlan plan{config, loss, {config.written_by, /*is_prior=*/true}};
  plan.config.net.layout = {config.written_by};
  return plan;
}

LoadedPriorConfig parse_prior_config(const std::string& json,
                                     const std::string& origin,
                                     const ReadOptions& options) {
  return parse_config<LoadedPriorConfig>(
      json, origin, options, [&](const Json& root, LoadedPriorConfig& loaded, Faults& faults) {
        check_prior(root, options, loaded, faults);
      });
}

}  // namespace dalle2
