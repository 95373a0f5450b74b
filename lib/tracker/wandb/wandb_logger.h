// SPDX-License-Identifier: MIT
// The logger to Weights & Biases: which run it is, and whether it may log there.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "config/shared/tracker_config.h"
#include "net/wandb_api.h"
#include "tracker/log/logger.h"
#include "tracker/wandb/wandb_sink.h"

namespace dalle2 {

/// What the environment says is in net/wandb_api.h.
class WandbLogger : public Logger {
 public:
  explicit WandbLogger(const WandbLogConfig& config);

  std::string type_name() const override { return "WandbLogger"; }
  /// A service that is away is a warning. @throws ConfigError, HttpStatusError the key is refused
  void check(Deadline deadline) override;
  std::unique_ptr<JournalSink> make_sink(const RunFacts& facts) override;
  /// entity, project and run_id, as the reference has them; the id only if it is known already.
  std::map<std::string, std::string> resume_data() const override;
  bool set_attribute(const std::string& name, const std::string& value) override;

 private:
  std::string wanted_id() const;
  std::string id_of_run(const RunFacts& facts);

  const WandbLogConfig config_;
  std::optional<WandbAccess> access_;
  bool is_away_ = false;    // the service, when it was asked
  std::string resumed_id_;  // of auto_resume.json
  std::string new_id_;      // of a run that has none
  std::string begun_id_;    // after make_sink()
  std::string entity_, project_;
};

}  // namespace dalle2
