// SPDX-License-Identifier: MIT
// Finding a checkpoint and resuming from it, and what is saved.
#include "run/checkpoints/run_checkpoints.h"

#include <fmt/ranges.h>
#include <torch/types.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/this_process.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/atomic_file.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/compute_threads.h"

namespace dalle2 {
namespace {

/// Whether the checkpoint's samples, their order or their splits differ from this config's.
bool gives_other_samples(const ConfigChanges& changes) {
  const auto is_of_data = [](const std::string& line) {
    return line.starts_with("/data/") || line.starts_with("/data:") || line.starts_with("/seed");
  };
  return std::ranges::any_of(changes.meaning, is_of_data);
}

void check_loaded(const Trainer& trainer, const std::string& path) {
  const std::optional<std::string> part = trainer.non_finite_part();
  if (!part) return;
  throw DataError(
      "{}: the {} are not finite, and a run that resumes from them would stop at once\n  Load "
      "another checkpoint; `dalle2-train fsck` shows which are intact.",
      path,
      *part);
}

/// A run of another kind is in the folder. @throws ConfigError
void check_fits_kind(const Cursor& root, const std::string& kind) {
  try {
    check_kind(root, kind);
  } catch (const DataError& error) {
    throw ConfigError("{}\n  Choose another /tracker/data_path, or begin a new run with --fresh.",
                      error.what());
  }
}

/// The same bits need the same number of threads, which a run on a GPU does not record.
void take_threads(const Cursor& root, RunSession& session) {
  const std::optional<Cursor> own = root.find(kOwnState);
  if (!session.device().is_cpu() || !own || !own->has("threads")) return;
  const ComputedWith saved = {own->at("threads").as_int(), own->at("processor").as_string()};
  const std::string difference = resume_threads(saved, session.group().world());
  if (difference.empty() || !session.group().is_main()) return;
  log_warning("ckpt",
              "{}: {}: the last bits of what follows are not those of a run without a stop",
              root.where(),
              difference);
}

Extras with_config(Extras extras, const std::string& json) {
  extras.emplace_back("config", value_of_json(json));
  return extras;
}

}  // namespace

RunCheckpoints::RunCheckpoints(RunSession& session,
                               Trainer& trainer,
                               RunPosition& position,
                               LossWindow& losses,
                               const SharedTrainConfig& config,
                               ConfigTexts texts)
    : session_(session),
      trainer_(trainer),
      position_(position),
      losses_(losses),
      config_(config),
      texts_(std::move(texts)) {}

void RunCheckpoints::start() {
  ProcessGroup& group = session_.group();
  Tracker& tracker = session_.tracker();
  // The whole config, and what the reference's W&B logger adds to it.
  const char* several = session_.device().is_cuda() ? R"("MULTI_GPU")" : R"("MULTI_CPU")";
  const auto precision = static_cast<size_t>(trainer_.precision().precision);
  tracker.describe({.config = texts_.full_json,
                    .process = {{"Distributed", group.is_alone() ? "false" : "true"},
                                {"DistributedType", group.is_alone() ? R"("NO")" : several},
                                {"NumProcesses", std::to_string(group.size())},
                                {"MixedPrecision",
                                 fmt::format(R"("{}")", enum_names<MixedPrecision>[precision])}},
                    .files = {{texts_.kind + "_config.json", public_config(texts_.raw_json)}}});
  // Rank 0 moves files: the others look when it has looked, and it begins when they have.
  session_.together("looking at what an earlier run left", [&] {
    if (group.is_main()) tracker.open([this] { session_.throw_if_signalled(); });
  });
  const StartPlan plan = plan_of_main();
  session_.together("loading a checkpoint", [&] { take_up(plan); });
  check_same_start();
}

bool RunCheckpoints::begin() {
  Tracker& tracker = session_.tracker();
  const bool resumes = found_ && found_->reason.empty();
  session_.together("beginning the run", [&] {
    if (found_ && !resumes) log_info("ckpt", "Starting from zero: {}", found_->reason);
    tracker.begin(resumes ? loaded_from(found_->path) : LoadedState{});
  });
  tracker.save_config(texts_.kind + "_config.json", public_config(texts_.raw_json));
  return resumes;
}

LoadedState RunCheckpoints::loaded_from(const std::string& path) const {
  return {.path = path,
          .position = {.samples_seen = position_.samples_seen,
                       .step = trainer_.first_steps(),
                       .epoch = position_.epoch},
          .log_lines = log_lines_};
}

/// All ranks read the files by themselves: they have to find the same.
void RunCheckpoints::check_same_start() {
  ProcessGroup& group = session_.group();
  const std::string own = found_ ? found_->path : "no checkpoint";
  const std::vector<std::string> paths = group.gather_texts(own, "checkpoint to start from");
  for (size_t rank = 0; rank < paths.size(); ++rank) {
    if (paths[rank] == paths.front()) continue;
    throw DataError(
        "rank 0 starts from {}, rank {} from {}\n  All ranks must read the same files: "
        "/tracker/data_path and /tracker/load must be on a file system that all machines share.",
        paths.front(),
        rank,
        paths[rank]);
  }
  check_same_weights();
}

void RunCheckpoints::check_same_weights() {
  ProcessGroup& group = session_.group();
  if (group.is_alone()) return;
  const auto sums = group.exchange({trainer_.checksum()}, "checksum of the weights");
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    if (sums[rank] == sums.front()) continue;
    throw DataError(
        "the weights of rank {} differ from those of rank 0 (epoch {}, sample {})\n  This state "
        "was not saved. Memory or a network card may be faulty, or the machines compute "
        "differently: look at the machine of that rank, and resume from the last checkpoint.",
        rank,
        position_.epoch,
        position_.loader.row);
  }
}

/// What rank 0 has decided: it alone looks at the folder.
StartPlan RunCheckpoints::plan_of_main() {
  StartPlan plan = session_.tracker().open();
  check_readable(plan.files);
  if (session_.group().is_alone()) return plan;
  const nlohmann::json own = {{"action", static_cast<int>(plan.action)},
                              {"files", plan.files},
                              {"elsewhere", plan.elsewhere}};
  const auto of_main =
      nlohmann::json::parse(session_.group().text_of_main(own.dump(), "what the start does"));
  plan.action = static_cast<StartAction>(of_main["action"].get<int>());
  of_main["files"].get_to(plan.files);
  of_main["elsewhere"].get_to(plan.elsewhere);
  return plan;
}

void RunCheckpoints::take_up(const StartPlan& plan) {
  const auto take = [&](const std::string& path) {
    const Value checkpoint = read_checkpoint(path);
    const Cursor root(checkpoint, path);
    const HeldStages held = held_stages(root, std::bind_front(&Trainer::has, &trainer_));
    (plan.resumes() ? check_fits_kind : check_kind)(root, texts_.kind);
    check_version(root, texts_.kind, texts_.full_json);
    if (!plan.resumes() && is_base(root, held)) {
      load_base(checkpoint, path, held);
      found_ = {.path = path,
                .reason = trainer_.uses_lora() ? "adapters on the weights of " + path
                          : held.only_untrained()
                              ? path + " gives the stages that this run does not train"
                              : "with the weights of " + path};
      return;
    }
    load(checkpoint, path, config_.allow_changed_config);
    found_ = {.path = path};
  };
  const bool is_found = take_first(plan, session_.tracker().data_path(), take).has_value();
  if (!is_found && trainer_.uses_lora()) throw_no_base(trainer_.model_name());
}

/// @param allows_changes of the config since the file was saved, where they are of meaning
void RunCheckpoints::load(const Value& checkpoint, const std::string& path, bool allows_changes) {
  const Cursor root(checkpoint, path);
  const ConfigChanges changes = compare_config(root, texts_, data_size_, allows_changes);
  trainer_.load_state(checkpoint, /*only_model=*/false, /*strict=*/true, path);
  check_loaded(trainer_, path);
  if (held_stages(root, std::bind_front(&Trainer::has, &trainer_)).untrained) carry_untrained(root);
  read_own(root);
  if (gives_other_samples(changes)) {
    // A place in the old order of samples means nothing in the new one.
    log_warning("ckpt", "the samples have changed: epoch {} starts over", position_.epoch);
    position_.restart_with_other_data();
    position_.actions_due = 0;  // that was of other data
  } else if (!changes.order.empty()) {
    log_warning(
        "ckpt", "the order of the samples has changed: epoch {} starts over", position_.epoch);
    position_.restart_epoch();
  }
  if (!changes.meaning.empty()) position_.forget_losses();
  session_.group().set_step(trainer_.first_steps());
  take_threads(root, session_);
  if (const auto own = root.find(kOwnState)) trainer_.take_choices(*own);
  log_info("ckpt", "Loaded model from {} on {}", path, position_.description());
  warn_if_nothing_is_left(position_, config_.epochs, path);
}

void RunCheckpoints::read_own(const Cursor& root) {
  read_position(position_, root);
  losses_.clear();
  averages_saved_at_ = roll_backs_ = 0;
  log_lines_ = facts_of(root).log_lines;
  const std::optional<Cursor> own = root.find(kOwnState);
  if (!own) return;
  losses_.load(own->at("recent_losses"));
  if (!own->has("roll_backs")) return;
  const int64_t count = own->at("roll_backs").as_int();
  if (count < 0)
    throw DataError("{}: expected 0 or more, got {}", own->at("roll_backs").where(), count);
  roll_backs_ = count;
  trainer_.set_learning_rate_factor(own->at("learning_rate_factor").as_double());
}

void RunCheckpoints::load_base(const Value& checkpoint,
                               const std::string& path,
                               const HeldStages& held) {
  const Cursor root(checkpoint, path);
  check_same_model(root, texts_, config_.allow_changed_config);
  if (trainer_.uses_lora() || !held.only_untrained()) {
    trainer_.load_base(model_weights(root, texts_.kind, /*use_ema=*/true), path);
    trainer_.take_companions(root);
    check_loaded(trainer_, path);
  }
  if (held.untrained) carry_untrained(root);
}

bool RunCheckpoints::is_base(const Cursor& root, const HeldStages& held) const {
  if (trainer_.uses_lora()) return !has_lora(root);
  return is_weights_alone(root) || held.only_untrained();
}

/// The weights of stages that this run does not train, averaged where the file has averages.
void RunCheckpoints::carry_untrained(const Cursor& root) {
  StateDict weights = model_weights(root, texts_.kind, /*use_ema=*/true);
  std::erase_if(weights,
                [&](const auto& entry) { return !trainer_.has(entry.first, /*trained=*/false); });
  const std::vector<std::string> taken =
      trainer_.carry(with_adapters(weights, root, {}), root.where());
  log_info("ckpt",
           "{}: the weights of {}, which this run does not train, go into its files unchanged",
           root.where(),
           fmt::join(taken, ", "));
}

void RunCheckpoints::tell_resuming() const {
  const std::string next = position_.resumes_with();
  if (!next.empty()) log_info("ckpt", "Resuming with {}", next);
}

ExitCode RunCheckpoints::finish(ExitCode code) {
  session_.together("the last save", [this] {
    saving_.wait();
    // Nothing can be saved afterwards.
    if (full_disks_ > 0) throw DiskFullError("{}", full_disk_);
    session_.end_quiet();  // what is still to be sent may take minutes
  });
  if (code == ExitCode::kDone) {
    log_info("train",
             "done: {}, {}",
             counted(position_.epochs_trained(), "epoch"),
             counted(position_.samples_seen, "sample"));
  }
  return code;
}

std::string RunCheckpoints::newest_good() {
  saving_.wait();
  return session_.group().text_of_main(session_.tracker().newest_good(), "own checkpoints");
}

void RunCheckpoints::go_back() {
  const ProcessGroup::BusyScope busy(session_.group(), "going back to a checkpoint");
  const std::string path = newest_good();
  // What the checkpoint says of these is older than what has happened since.
  const int64_t roll_backs = roll_backs_;
  const double factor = trainer_.learning_rate_factor();
  // A file from before a change that the user has allowed: the start took the change too.
  load(read_checkpoint(path), path, /*allows_changes=*/true);
  tell_resuming();
  check_same_weights();
  session_.tracker().go_back(loaded_from(path));
  roll_backs_ = roll_backs + 1;
  trainer_.set_learning_rate_factor(factor);
}

bool RunCheckpoints::is_amid_skips() const {
  const std::vector<int64_t> parts = trainer_.trained_parts();
  return std::ranges::any_of(
      parts, [this](int64_t part) { return trainer_.skipped_updates(part).in_a_row > 0; });
}

void RunCheckpoints::check() {
  session_.tracker().check();
  saving_.check();
}

void RunCheckpoints::check_state() const {
  const std::optional<std::string> part = trainer_.non_finite_part();
  if (!part) return;
  throw NonFiniteError(
      "the {} are not finite (epoch {}, sample {})\n  This state was not saved: the last "
      "checkpoint is from before, unless the run began with such weights. Lower /train/lr, or "
      "start from another checkpoint; `dalle2-train fsck` shows which are intact.",
      *part,
      position_.epoch,
      position_.loader.row);
}

void RunCheckpoints::save(bool is_best, bool is_latest) {
  check_state();
  position_.gather(session_.group());
  check_same_weights();
  // Of a state that is spread over the ranks each gives its part; rank 0 writes.
  if (!session_.group().is_main() && !trainer_.is_sharded()) return;
  const ProcessGroup::BusyScope busy(session_.group(), "saving");
  session_.times().begin(StepPhase::kSave);
  const HeldAverages averages = trainer_.hold_averages();
  Dict own;
  own.set("version", program_version());
  // Which facts_of() reads.
  const std::string run_id = session_.tracker().run_id();
  const bool amid_skips = is_amid_skips();
  own.set("run_id", run_id);
  own.set("first_steps", trainer_.first_steps());
  if (amid_skips) own.set("amid_skips", true);
  own.set("log_lines", session_.tracker().log_lines());
  Extras extras = position_entries(position_, own);
  own.set("recent_losses", losses_.state());
  if (roll_backs() > 0) {
    own.set("roll_backs", roll_backs());
    own.set("learning_rate_factor", trainer_.learning_rate_factor());
  }
  if (data_size_.count > 0) own.set("data_size", data_size_.count);
  if (session_.device().is_cpu()) {
    const ComputedWith computed = computing_with();
    own.set("threads", computed.threads);
    own.set("processor", computed.processor);
  }
  trainer_.add_choices(own);
  if (!data_size_.names.empty()) own.set("data_names", data_size_.names);
  extras.emplace_back(kOwnState, std::move(own));
  Value checkpoint = trainer_.state(with_config(std::move(extras), texts_.full_json));
  Dict own_of_model;
  own_of_model.set("run_id", run_id);
  Extras of_model = {{kOwnState, std::move(own_of_model)}};
  Value model = trainer_.model_state(with_config(std::move(of_model), texts_.full_json));
  if (session_.group().is_main()) {
    start_saving({.is_best = is_best,
                  .is_latest = is_latest,
                  .amid_skips = amid_skips,
                  .position = {.samples_seen = position_.samples_seen,
                               .step = trainer_.first_steps(),
                               .epoch = position_.epoch},
                  .placeholders = position_placeholders(position_)},
                 std::move(checkpoint),
                 std::move(model));
  }
  session_.times().end(StepPhase::kSave);
}

/// @param checkpoint, model with the live tensors
void RunCheckpoints::start_saving(SaveRequest request, Value checkpoint, Value model) {
  if (std::optional<LoraFile> lora = trainer_.lora_state()) {
    // Adapters are small: a copy is made in any case.
    for (auto& [name, tensor] : lora->tensors)
      tensor = tensor.to(at::kCPU, at::kFloat, false, true);
    lora->run_id = session_.tracker().run_id();
    request.write_lora = [file = std::move(*lora)](const std::string& path) {
      write_lora_file(path, file);
    };
  }
  saving_.start(saves_in_background(),
                {std::move(checkpoint), std::move(model)},
                [this, request = std::move(request)](const auto& writers) {
                  SaveRequest with_writers = request;
                  with_writers.write_checkpoint = writers[0];
                  with_writers.write_model = writers[1];
                  save_or_wait(with_writers);
                });
}

/// The memory has what a full disk does not take, and the next save may find room. The best state is not
/// saved again.
void RunCheckpoints::save_or_wait(const SaveRequest& request) {
  constexpr int kMostFullDisks = 3;  // in a row
  try {
    session_.tracker().save(request);
    full_disks_ = 0;
  } catch (const DiskFullError& error) {
    if (request.is_best || ++full_disks_ == kMostFullDisks) throw;
    full_disk_ = error.what();
    log_warning(
        "ckpt",
        "epoch {}, step {}: the state is not saved, and the run continues: the next save tries "
        "again. {}",
        request.position.epoch,
        request.position.step,
        full_disk_);
  }
}

void RunCheckpoints::save_averages_if_due() {
  const std::optional<int64_t> every = config_.post_hoc_ema.save_every_n_steps;
  const auto is_due = [&](bool settled) { return trainer_.first_steps(settled) % *every == 0; };
  // The device is waited for only where the last update, if it was made, makes them due.
  if (every && is_due(/*settled=*/false) && is_due(/*settled=*/true)) save_averages();
}

void RunCheckpoints::save_averages() {
  const int64_t step = trainer_.first_steps();
  if (!config_.post_hoc_ema.save_every_n_steps || step == averages_saved_at_) return;
  check_state();
  averages_saved_at_ = step;
  if (!session_.group().is_main() && !trainer_.is_sharded()) return;
  const ProcessGroup::BusyScope busy(session_.group(), "saving averages");
  session_.times().begin(StepPhase::kSave);
  Value averages = trainer_.post_hoc_state(with_config({}, texts_.full_json));
  if (session_.group().is_main()) {
    const std::string path =
        session_.tracker().in_data_path(kAveragesFolder) + "/" + averages_name(step);
    saving_.start(saves_in_background(), {std::move(averages)}, [this, path](const auto& writers) {
      session_.tracker().store(path, writers.front());
    });
  }
  session_.times().end(StepPhase::kSave);
}

void PthSaving::start(bool in_background, std::vector<Value> values, Job job) {
  wait();
  std::vector<Write> writers;
  if (!in_background) {
    for (const Value& value : values)
      writers.push_back([&value](const std::string& path) { write_pth(path, value); });
    return job(writers);
  }
  if (copies_.size() < values.size()) copies_.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    copies_[i].take(values[i]);
    writers.push_back([copy = &copies_[i]](const std::string& path) { copy->write(path); });
  }
  work_ =
      std::async(std::launch::async, [this, job = std::move(job), writers = std::move(writers)] {
        job(writers);
        for (PthSnapshot& copy : copies_) copy.clear();
      });
}

PthSaving::~PthSaving() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_line(LogLevel::kError, "", error.what());
  }
}

void PthSaving::check() {
  if (work_.valid() && work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) wait();
}

HeldStages held_stages(const Cursor& root,
                       const std::function<bool(const std::string& name, bool trained)>& has) {
  HeldStages held;
  const Cursor model = root.value().is_dict() && root.has("model") ? root.at("model") : root;
  if (!model.value().is_dict()) return held;
  for (const auto& [key, value] : model.as_dict().items) {
    if (!key.is_string()) continue;
    held.trained = held.trained || has(key.as_string(), true);
    held.untrained = held.untrained || has(key.as_string(), false);
  }
  return held;
}

void check_readable(const std::vector<std::string>& checkpoints) {
  for (const std::string& path : checkpoints) {
    if (::access(path.c_str(), R_OK) == 0 || errno != EACCES) continue;
    throw ConfigError(
        "{}: cannot be opened: {}\n  Make it readable for this user, or move it away to resume from "
        "an older state.",
        path,
        errno_text(EACCES));
  }
}

std::optional<std::string> take_first(const StartPlan& plan,
                                      const std::string& data_path,
                                      const std::function<void(const std::string& path)>& take) {
  for (size_t i = 0; i < plan.files.size(); ++i) {
    try {
      take(plan.files[i]);
      return plan.files[i];
    } catch (const DataError& error) {
      const std::string fault = error.what();
      if (i + 1 < plan.files.size()) {  // what to do about it is for those who have no other
        log_warning("ckpt",
                    "{}\n  Falling back to {}",
                    fault.substr(0, fault.find('\n')),
                    plan.files[i + 1]);
      } else if (!plan.resumes()) {
        throw;  // the file of /tracker/load has a fault, and no other takes its place
      } else {
        throw DataError("{}\n  {}", fault, nothing_intact(data_path, plan.elsewhere));
      }
    }
  }
  return std::nullopt;
}

static void compare_data_size(const Cursor& root, const DataSize& now, ConfigChanges& changes) {
  const std::optional<Cursor> own = root.find(kOwnState);
  if (!own || !own->has("data_size") || now.count == 0) return;
  const int64_t saved = own->at("data_size").as_int();
  const std::string count = counted(now.count, now.unit);
  std::string change = fmt::format(
      "the checkpoint has a data set of {}, now there are {}", counted(saved, now.unit), count);
  if (saved == now.count) {
    if (now.names.empty() || !own->has("data_names")) return;
    if (own->at("data_names").as_string() == now.names) return;
    change = fmt::format("the names of the {} have changed since the checkpoint was made", count);
  }
  changes.meaning.push_back(fmt::format(
      "/data: {}: the splits are made again, and what was kept for validation may be trained on",
      change));
}

/// Whether a checkpoint was made while its epoch was trained on.
static bool is_amid_epoch(const Cursor& root) {
  const std::optional<Cursor> own = root.find(kOwnState);
  if (const auto place = own ? own->find("loader_position") : std::nullopt)
    return place->at("row").as_int() > 0;
  const std::optional<Cursor> sample = root.find("sample"), task = root.find("next_task");
  return sample && sample->as_int() > 0 && (!task || task->as_string() == "train");
}

ConfigChanges compare_config(const Cursor& root,
                             const ConfigTexts& texts,
                             const DataSize& data_size,
                             bool allow_changed_config) {
  ConfigChanges changes = changes_since(root, texts.full_json);
  compare_data_size(root, data_size, changes);
  if (!changes.other.empty()) {
    log_info("ckpt",
             "{}: the config has changed since: {}",
             root.where(),
             fmt::join(changes.other, "; "));
  }
  if (!is_amid_epoch(root)) changes.order.clear();
  std::vector<std::string> told = changes.meaning;
  for (const std::string& line : changes.order) {
    told.push_back(
        line + ": it was saved within an epoch, and this would change the order of its samples");
  }
  if (told.empty()) return changes;
  const std::string list = fmt::format("{}", fmt::join(told, "\n  "));
  if (!allow_changed_config) {
    throw ConfigError(
        "{}: the config gives this checkpoint's weights or data another meaning:\n  {}\n  Use the "
        "values it was made with, begin a new run in another /tracker/data_path (and with other targets in /tracker/save), or "
        "set /train/allow_changed_config to true if that is what you want and the weights still fit.",
        root.where(),
        list);
  }
  log_warning("ckpt",
              "{}: continuing although the config gives it another meaning "
              "(/train/allow_changed_config):\n  {}",
              root.where(),
              list);
  return changes;
}

void warn_of_other_splits(const Cursor& root, const ConfigTexts& texts, const DataSize& data_size) {
  ConfigChanges changes = changes_since(root, texts.full_json);
  std::erase_if(changes.meaning, [](const std::string& line) {
    return !line.starts_with("/data") && !line.starts_with("/seed");
  });
  compare_data_size(root, data_size, changes);
  if (changes.meaning.empty()) return;
  log_warning(
      "eval",
      "{}: expected the splits of the run that saved it, but the figures may be of samples that it "
      "was trained on:\n  {}",
      root.where(),
      fmt::join(changes.meaning, "\n  "));
}

void check_same_model(const Cursor& root, const ConfigTexts& texts, bool allow_changed_config) {
  if (allow_changed_config) return;
  const std::vector<std::string> changes = model_changes(root, texts.kind, texts.full_json);
  if (changes.empty()) return;
  throw ConfigError(
      "{}: this run would build on its weights, but it is of another {}:\n  {}\n  Use the values "
      "it was made with, or another file in /tracker/load, or set /train/allow_changed_config to "
      "true if that is what you want.",
      root.where(),
      texts.kind,
      fmt::join(changes, "\n  "));
}

void throw_no_base(const std::string& model_name) {
  throw ConfigError(
      "/train/lora: adapters need the weights of a trained {0}, and no checkpoint was loaded: "
      "without one they would be trained on random weights that stay as they are\n  Name the {0}'s "
      "checkpoint in /tracker/load (load_from \"local\", file_path), or set /train/lora/rank to 0 "
      "to train the whole network.",
      model_name);
}

void warn_if_nothing_is_left(const RunPosition& position, int64_t epochs, const std::string& path) {
  if (position.epochs_trained() <= epochs) return;
  log_warning("ckpt",
              "{} has been trained for {} and /train/epochs is {}: nothing is left to train. Give "
              "more epochs to train on.",
              path,
              counted(position.epochs_trained(), "epoch"),
              epochs);
}

}  // namespace dalle2
