// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb.h"

#include <fmt/format.h>

#include <random>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/formats/event_file.h"
#include "net/login_files.h"

namespace dalle2 {
namespace {
/// Eight letters and digits, as the service's own client makes them.
std::string make_wandb_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[device() % kLetters.size()];
  return id;
}

/// The service refuses such a name, and an offline run would show it only when it is sent.
void check_name(const char* what, const std::string& name, const char* forbidden) {
  const size_t at = name.find_first_of(forbidden);
  if (at == std::string::npos) return;
  throw ConfigError(
      "/tracker/log: {} is \"{}\": Weights & Biases allows no '{}' in it", what, name, name[at]);
}

}  // namespace

WandbLogger::WandbLogger(const WandbLogConfig& config)
    : Logger("WandbLogger", config.auto_resume, config.verbose),
      config_(config),
      entity_(config.wandb_entity.value_or("")),
      project_(config.wandb_project.value_or("")) {}

/// The id of the config or the environment; empty: a new one.
std::string WandbLogger::wanted_id() const {
  return config_.wandb_run_id.value_or(access_->run_id);
}

/// Whether the config names the run as one to continue.
bool WandbLogger::must_exist(const std::string& id) const {
  return config_.resume && id == wanted_id();
}

/// Whether the login sees the project, and the run that is to be continued there. Which run a start
/// continues may change with its checkpoint.
void WandbLogger::check(Deadline deadline) {
  access_ = find_wandb_access();
  check_name("the id of the run (wandb_run_id, WANDB_RUN_ID)", wanted_id(), ":;,#?/'\\");
  check_name("wandb_project", project_, "/\\#?%:");
  check_name("wandb_entity", entity_, "/\\ #?%:");
  is_away_ = false;
  if (new_id_.empty()) new_id_ = make_wandb_id();
  if (access_->mode != WandbMode::kOnline) return;
  const WandbRunPath path{entity_, project_, first_of({run_id_, wanted_id(), new_id_})};
  try {
    const WandbApi api(*access_, {.deadline = deadline});
    api.viewer();
    if (!api.find_run(path) && must_exist(path.run_id))
      throw ConfigError("{}", no_run_to_continue(path));
  } catch (const NetworkError& error) {
    const auto* status = dynamic_cast<const HttpStatusError*>(&error);
    if (status != nullptr && !may_pass(error))
      throw HttpStatusError(status->status(), "/tracker/log: {}", error.what());
    is_away_ = true;
    log_warning(
        "track",
        "Weights & Biases: {}\n  The run begins. Its rows wait in log.jsonl until the service "
        "answers.",
        error.what());
  }
}

std::unique_ptr<JournalSink> WandbLogger::make_sink(const RunFacts& facts) {
  D2_CHECK(access_.has_value(), "WandbLogger::check comes first");
  const std::string known = facts.is_copy ? "" : run_id_;  // else that of another folder
  if (access_->mode == WandbMode::kDisabled) {
    log_info("track", "Nothing is logged to Weights & Biases: {}", access_->mode_reason);
    run_id_ = known;
    return nullptr;
  }
  WandbBegin begin;
  begin.goes_on = facts.goes_on && !known.empty();
  begin.first_line = facts.is_copy ? facts.lines : 0;
  begin.data_path = facts.data_path;
  begin.is_away = is_away_;
  std::string id = begin.goes_on ? known : wanted_id();
  if (facts.is_copy && id == run_id_ && !config_.resume && !id.empty()) {
    id.clear();
    log_info(
        "track",
        "The Weights & Biases run {} is that of the folder this one is a copy of: a new run begins",
        run_id_);
  }
  run_id_ = first_of({id, new_id_});
  begin.must_exist = must_exist(run_id_);
  WandbRun& run = begin.run;
  run.resumed = begin.goes_on || config_.resume;
  run.info = {.path = {.entity = entity_, .project = project_, .run_id = run_id_},
              .name = config_.wandb_run_name.value_or(access_->name),
              .notes = access_->notes,
              .group = access_->group,
              .job_type = access_->job_type,
              .host = host_name(),
              .tags = access_->tags};
  run.config = wandb_items(facts.config);
  run.config.insert(run.config.end(), facts.process.begin(), facts.process.end());
  run.start_unix_seconds = wall_time_seconds();
  return std::make_unique<WandbSink>(*access_, std::move(begin));
}

std::string WandbLogger::wandb_run() const {
  const std::string id = first_of({run_id_, config_.wandb_run_id.value_or("")});
  return id.empty() ? "" : WandbRunPath{entity_, project_, id}.text();
}

}  // namespace dalle2
