// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "config/prior/prior_config.h"
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

}  // namespace

PriorPlan plan_prior(const PriorConfig& config, const LossPlan& loss, Faults& faults) {
  check_network(config, faults);
  check_schedule(config, faults);
  check_dream(loss.dream, config.objective(), kPrior, faults);
  const Layout layout = layout_of(config.written_by);
  PriorPlan plan{config, loss, layout.prior_loop};
  plan.config.net.layout = layout.prior;
  return plan;
}

PriorPlan plan_prior(const PriorConfig& config, const LossPlan& loss) {
  Faults faults;
  PriorPlan plan = plan_prior(config, loss, faults);
  faults.throw_if_any("prior");
  return plan;
}

}  // namespace dalle2
