// SPDX-License-Identifier: MIT
// The logger to Weights & Biases: which run it is, and whether it may log there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tracker/wandb/wandb_sink.h"

namespace dalle2 {

/// What the environment says is in net/wandb_api.h.
class WandbLogger : public Logger {
 public:
  explicit WandbLogger(const WandbLogConfig& config);

  /// A service that is away is a warning. @throws ConfigError, HttpStatusError the key is refused
  void check(Deadline deadline) override;
  std::unique_ptr<JournalSink> make_sink(const RunFacts& facts) override;
  /// As the reference has them; the id only if it is known already.
  std::vector<std::pair<std::string, std::string*>> attributes() override {
    return {{"entity", &entity_}, {"project", &project_}, {"run_id", &run_id_}};
  }
  std::string wandb_run() const override;

 private:
  std::string wanted_id() const;
  bool must_exist(const std::string& id) const;

  const WandbLogConfig config_;
  std::optional<WandbAccess> access_;
  bool is_away_ = false;  // the service, when it was asked
  std::string entity_, project_;
  std::string run_id_;  // of auto_resume.json or, after make_sink(), the run's; empty: not known
  std::string new_id_;  // of a run that has none
};

}  // namespace dalle2
