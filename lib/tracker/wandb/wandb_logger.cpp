// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_logger.h"

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
    : Logger(config.auto_resume, config.verbose),
      config_(config),
      entity_(config.wandb_entity.value_or("")),
      project_(config.wandb_project.value_or("")) {}

/// The id of the config or the environment; empty: a new one.
std::string WandbLogger::wanted_id() const {
  return config_.wandb_run_id.value_or(access_->run_id);
}

/// Whether the login sees the project, and the run that is to be continued there. Which run a start
/// continues may change with its checkpoint.
void WandbLogger::check(Deadline deadline) {
  access_ = find_wandb_access();
  check_name("the id of the run (wandb_run_id, WANDB_RUN_ID)", wanted_id(), ":;,#?/'\\");
  check_name("wandb_project", project_, "/\\#?%:");
  check_name("wandb_entity", entity_, "/\\ #?%:");
  is_away_ = false;
  if (access_->mode != WandbMode::kOnline) return;
  if (new_id_.empty()) new_id_ = make_wandb_id();
  const std::string named = resumed_id_.empty() ? wanted_id() : resumed_id_;
  const WandbRunPath path{entity_, project_, named.empty() ? new_id_ : named};
  try {
    const WandbApi api(*access_, {.deadline = deadline});
    api.viewer();
    if (!api.find_run(path) && config_.resume && resumed_id_.empty()) {
      throw ConfigError(
          "/tracker/log/wandb_run_id: there is no run {} to continue\n  Give the id of one, or leave "
          "out \"resume\" for a new run.",
          path.text());
    }
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

std::string WandbLogger::id_of_run(const RunFacts& facts) {
  std::string id = facts.goes_on && !resumed_id_.empty() ? resumed_id_ : wanted_id();
  if (facts.is_copy && id == resumed_id_ && !config_.resume && !id.empty()) {
    id.clear();
    log_info(
        "track",
        "The Weights & Biases run {} is that of the folder this one is a copy of: a new run begins",
        resumed_id_);
  }
  if (id.empty()) id = new_id_.empty() ? make_wandb_id() : new_id_;
  return id;
}

std::unique_ptr<JournalSink> WandbLogger::make_sink(const RunFacts& facts) {
  if (!access_) access_ = find_wandb_access();
  if (access_->mode == WandbMode::kDisabled) {
    log_info("track", "Nothing is logged to Weights & Biases: {}", access_->mode_reason);
    if (facts.is_copy) resumed_id_.clear();  // it is that of the folder this one is a copy of
    return nullptr;
  }
  WandbBegin begin;
  begin.goes_on = facts.goes_on && !resumed_id_.empty();
  begin.first_line = facts.is_copy ? facts.lines : 0;
  begin.data_path = facts.data_path;
  begin.is_away = is_away_;
  WandbRun& run = begin.run;
  run.resumed = begin.goes_on || config_.resume;
  begun_id_ = id_of_run(facts);
  run.info = {.path = {.entity = entity_, .project = project_, .run_id = begun_id_},
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

std::map<std::string, std::string> WandbLogger::resume_data() const {
  const std::string id = first_of({begun_id_, resumed_id_, config_.wandb_run_id.value_or("")});
  std::map<std::string, std::string> data = {{"entity", entity_}, {"project", project_}};
  if (!id.empty()) data["run_id"] = id;
  return data;
}

bool WandbLogger::set_attribute(const std::string& name, const std::string& value) {
  if (name != "entity" && name != "project" && name != "run_id") return false;
  if (value.empty() && name == "entity") return true;  // of an offline run: the config's counts
  if (value.empty()) throw ConfigError("\"{}\" is empty, a name is expected", name);
  (name == "entity" ? entity_ : name == "project" ? project_ : resumed_id_) = value;
  return true;
}

}  // namespace dalle2
