// SPDX-License-Identifier: MIT
#include "tracker/places/copies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "config/kinds.h"
#include "config/reading/reader.h"
#include "io/files/atomic_file.h"
#include "io/files/writable.h"
#include "tracker/places/remote_file.h"
#include "tracker/run_folder/run_record.h"
#include "tracker/wandb/wandb.h"

namespace dalle2 {
namespace {

/// A fence that no line of `text` ends.
std::string fenced(const std::string& text, const std::string& language) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += "`";
  return fence + language + "\n" + text + "\n" + fence + "\n";
}

namespace fs = std::filesystem;

/// A target, filled in.
struct FilledTarget {
  const char* key;
  std::string target;  ///< as the config has it
  std::string path;
};

/// "checkpoint", "model" or "lora".
std::string save_type_name(SaveType type) {
  return enum_names<SaveType>[static_cast<size_t>(type)];
}

/// The file of data_path that holds it.
const char* own_file(SaveType type) {
  constexpr const char* kFiles[] = {kCheckpointFile, kModelFile, kLoraFile};
  return kFiles[static_cast<size_t>(type)];
}

/// Why a file of this machine cannot be the target; empty: it can be one. A saver that copies the model over
/// the run's own checkpoint (or the other way round) would leave nothing to resume from.
std::string fault_of_path(const fs::path& given, SaveType type, const std::string& data_path) {
  const fs::path path = fs::absolute(given).lexically_normal();
  const fs::path target = canonical_folder(path), folder = canonical_folder(data_path);
  if (is_in_folder(folder, target)) {
    return fmt::format(
        "is data_path or a folder above it; a file is expected, such as {}/latest.pth", data_path);
  }
  if (path.extension() == ".part") return "has the name of an unfinished file: choose another name";
  if (!is_in_folder(target, folder)) return "";
  const fs::path below = target.lexically_relative(folder);
  const std::string name = below.string(), first = below.begin()->string();
  const bool is_own =
      std::find(std::begin(kOwnNames), std::end(kOwnNames), first) != std::end(kOwnNames) ||
      name == kRecordFile || name == kLockFile || name.ends_with("_config.json");
  if (!is_own || name == own_file(type)) return "";
  return fmt::format(
      "is a place of the run's own files, a {} cannot be saved there: choose another path",
      save_type_name(type));
}

/// @throws ConfigError an unknown placeholder, a bad format spec
std::vector<FilledTarget> filled_targets(const SaveTargets& targets, const FormatFields& example) {
  std::vector<FilledTarget> filled;
  const auto fill = [&](const char* key, const std::optional<std::string>& target) {
    if (!target) return;
    try {
      filled.push_back({key, *target, python_format_example(*target, example)});
    } catch (const ConfigError& error) {
      throw ConfigError("/tracker/save/{}: '{}': {}", key, public_url(*target), error.what());
    }
  };
  fill("save_latest_to", targets.save_latest_to);
  fill("save_best_to", targets.save_best_to);
  if (targets.save_meta_to) {
    filled.push_back(
        {"save_meta_to", *targets.save_meta_to, *targets.save_meta_to + "/config.json"});
  }
  return filled;
}

/// Of checkpoints those that are the same at every save: without placeholders.
std::vector<std::string> fixed_targets(const SaveTargets& targets) {
  std::vector<std::string> fixed;
  for (const auto& target : {targets.save_latest_to, targets.save_best_to}) {
    if (!target) continue;
    const std::vector<std::string> literals = python_format_literals(*target);
    if (literals.size() == 1) fixed.push_back(literals.front());
  }
  return fixed;
}

/// @param service that the targets are names at; empty: they are files on this machine
/// @throws ConfigError as filled_targets(); an empty one, `..` in a path, a place of the run's own files
void check_targets(const SaveTargets& targets,
                   const FormatFields& example,
                   const std::string& data_path,
                   const std::string& service) {
  for (const FilledTarget& filled : filled_targets(targets, example)) {
    const auto refuse_if = [&](bool is_so, const std::string& what) {
      if (is_so)
        throw ConfigError("/tracker/save/{}: '{}' {}", filled.key, public_url(filled.target), what);
    };
    const fs::path path(filled.path);
    // Records and messages show what is a path.
    refuse_if(
        filled.target.find("://") != std::string::npos,
        "is a whole address; expected a path\n  For a server, use the saver \"url\" with the folder as its "
        "`url`.");
    refuse_if(filled.path.empty() || filled.path.back() == '/',
              "names no file, e.g. 'checkpoints/latest.pth'");
    refuse_if(std::ranges::find(path, "..") != path.end(),
              service.empty()
                  ? "goes up, and '..' is refused: targets are relative to the working "
                    "directory; write an absolute path for one outside of it"
                  : "goes up, and '..' is refused: targets are names below the place of "
                    "the saver");
    refuse_if(!service.empty() && path.is_absolute(),
              "begins with '/': targets are names below " + service);
    if (!service.empty() || filled.key == std::string_view("save_meta_to")) continue;
    const std::string fault = fault_of_path(path, targets.save_type, data_path);
    refuse_if(!fault.empty(), fault);
  }
}

constexpr const char* kStays = "What waits stays: run `dalle2-train sync` again.";
constexpr double kForever = std::numeric_limits<double>::infinity();  // seconds

/// Of a folder that no run works in. @throws ConfigError
RunLock lock_at_once(const std::string& data_path) {
  try {
    return RunLock(data_path, {.here = {}, .elsewhere = {}});
  } catch (const Error& held) {
    throw ConfigError("{}\n  A run that works there sends by itself what waits.", held.what());
  }
}

/// The kind and the path of the config that the run has written, which has no secrets; null: there is none.
std::pair<const ConfigKind*, std::string> stored_config(const std::string& data_path) {
  for (const ConfigKind& kind : config_kinds()) {
    const fs::path path = fs::path(data_path) / (kind.key + "_config.json");
    std::error_code ignored;
    if (fs::exists(path, ignored)) return {&kind, path.string()};
  }
  return {};
}

/// With every default, as the run sends it; as it is where this version cannot read it.
std::string full_config(const std::string& data_path) {
  const auto [kind, path] = stored_config(data_path);
  if (kind == nullptr) return "";
  const std::string text = read_file(path);
  try {
    Json full = parse_untrusted_object(kind->fill_in(
        text, path, {.overrides = {}, .check_available = false, .no_commands = true}));
    const Json::json_pointer commands("/data/allow_pipe");  // which no_commands has set
    const Json stored = parse_untrusted_object(text);
    if (stored.contains(commands)) full[commands] = stored.at(commands);
    return public_config(full.dump());
  } catch (const Error&) {
    return text;
  }
}

/// @throws ConfigError
std::vector<SaveConfig> read_savers(const std::string& data_path, const RunRecord& run) {
  const auto [kind, path] = stored_config(data_path);
  const Json config = kind == nullptr ? Json() : parse_untrusted_object(read_file(path));
  const Json::json_pointer place("/tracker/save");
  std::vector<SaveConfig> savers;
  if (!config.contains(place)) return savers;
  ReadFindings findings;
  const Limits limits = any_value().one_is_list();
  Reader(findings).read(ValueAt{config.at(place), place.to_string(), limits}, savers);
  findings.faults.throw_if_any(path);
  for (SaveConfig& saver : savers) {
    auto* const wandb = std::get_if<WandbSaveConfig>(&saver);
    if (wandb != nullptr && !wandb->wandb_run_path)
      wandb->wandb_run_path = run.wandb.substr(0, run.wandb.find('\n'));
    auto* const hub = std::get_if<HuggingfaceSaveConfig>(&saver);
    if (hub != nullptr && hub->token_path)
      hub->token_path = (fs::path(run.started_in) / *hub->token_path).string();
  }
  return savers;
}

/// With the logins of this environment. @throws ConfigError
void sync_files(const std::string& data_path, const RunRecord& run, SyncReport& report) {
  const std::string outbox = (fs::path(data_path) / kOutboxFolder).string();
  const size_t before = Uploads(outbox, {}, nullptr).waiting().size();
  if (before == 0) return;
  std::vector<SaveConfig> savers;
  std::vector<std::shared_ptr<Destination>> services;
  std::vector<std::string> faults;
  const auto attempt = [&](const auto& part) {
    try {
      part();
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  };
  attempt([&] { savers = read_savers(data_path, run); });
  for (const SaveConfig& saver : savers) {
    attempt([&] {
      if (auto to = make_destination(saver)) services.push_back(std::move(to));
    });
  }
  std::vector<std::string> failed;  // as their threads say
  Uploads uploads(outbox, services, [&](const std::string& error) { failed.push_back(error); });
  const std::vector<OutboxEntry> others = uploads.unserved();
  for (const OutboxEntry& entry : others) {
    report.errors.push_back(
        fmt::format("{} for {} ({}): no saver of the run's config leads there, in this "
                    "environment\n  If its address has a login or a signature, which is not "
                    "stored, a start sends it. To give it up, remove its files from outbox/.",
                    entry.kind,
                    entry.to,
                    entry.target));
  }
  if (!others.empty()) report.errors.insert(report.errors.end(), faults.begin(), faults.end());
  uploads.begin_end();
  wait_until_sent([&] { return uploads.is_done(); }, [] { return false; }, kForever);
  uploads.end();
  report.errors.insert(report.errors.end(), failed.begin(), failed.end());
  report.left = uploads.waiting().size();
  report.sent = before - report.left;
}

/// Follows the log to its end for the W&B run of each logger, as a start would.
void sync_rows(const std::string& data_path, const RunRecord& run, SyncReport& report) {
  const WandbAccess found = find_wandb_access();
  const std::string log = (fs::path(data_path) / kLogFile).string();
  std::error_code ignored;
  if (run.wandb.empty() || !fs::exists(log, ignored)) return;
  // Whatever the runs of this environment do, and are called.
  const WandbAccess access{.mode = WandbMode::kOnline,
                           .base_url = found.base_url,
                           .api_key = found.api_key,
                           .console = false};
  const LogFile file(log);
  LogCursors cursors((fs::path(data_path) / kFollowersFile).string());
  const auto note = [&](const std::string& error) { report.errors.push_back(error); };
  const bool is_finished = !run.finished.empty();
  const RunEnd end{is_finished ? RunEnd::Outcome::kDone : RunEnd::Outcome::kStopped,
                   is_finished ? 0 : 75};
  std::string path;
  for (std::istringstream runs(run.wandb); std::getline(runs, path);) {
    try {
      if (found.api_key.empty())
        throw NetworkError(
            "{}: no API key was found.\n  {}", public_url(found.base_url), kWandbLogin);
      // A run that was logged offline may have no entity.
      if (path.starts_with('/')) path = WandbApi(access, {}).viewer() + path;
      const auto logger = std::make_shared<WandbLogger>(parse_wandb_run_path(path), access);
      logger->begin({.config = full_config(data_path),
                     .process = {run.process.begin(), run.process.end()},
                     .goes_on = true,
                     .first_line = run.first_line,
                     .data_path = data_path});
      Follower follower(logger, {.file = file, .log_error = note, .advice = kStays}, cursors);
      follower.connect_now(std::chrono::steady_clock::now() + std::chrono::seconds(300));
      report.rows_sent += follower.waiting();
      follower.start();
      follower.begin_end(end);
      wait_until_sent(
          [&] { return follower.is_done(); }, [&] { return follower.last_was_fault(); }, kForever);
      const int64_t left = follower.waiting();
      report.rows_left += left;
      report.rows_sent = std::max<int64_t>(report.rows_sent - left, 0);
    } catch (const NetworkError& refusal) {
      // What is in the folder of an offline run does not wait.
      const auto known = cursors.nearest(found.base_url + " " + path);
      const int64_t left = rows_between(known.value_or(LogCursor{}).line, file.lines());
      report.rows_left += left;
      if (left > 0 || !found.api_key.empty()) note(refusal.what());
    }
  }
}

}  // namespace

std::string model_card(const HuggingfaceSaveConfig& saver,
                       const std::string& file,
                       const std::string& config) {
  const Json content = parse_untrusted_object(config);
  const auto& kinds = config_kinds();
  const auto kind =
      std::ranges::find_if(kinds, [&](const auto& known) { return content.contains(known.key); });
  const std::string what = kind == kinds.end() ? "model" : kind->key;
  std::string use;
  if (kind != kinds.end() && kind->sample_input) {
    const std::string at = saver.revision == "main" ? "" : "@" + saver.revision;
    use = "## Use\n\n" +
          fenced(fmt::format("dalle2-train sample --checkpoint hf://{}{}/{} {} --out samples",
                             saver.huggingface_repo,
                             at,
                             file,
                             kind->sample_input(content)),
                 "sh") +
          "\n";
  }
  return fmt::format(
      "---\nlibrary_name: dalle2-train\ntags:\n- dalle2\n- {0}\n---\n\n# {1}\n\n"
      "A DALLE2 {0} that `dalle2-train` {2} trained.\n\n{3}## Config\n\n{4}",
      what,
      saver.huggingface_repo.substr(saver.huggingface_repo.find('/') + 1),
      program_version(),
      use,
      fenced(config, "json"));
}

Copies::Copies(const std::vector<SaveConfig>& savers, FormatFields example, RunFolder& folder)
    : folder_(folder), example_(std::move(example)) {
  for (const SaveConfig& config : savers) {
    const auto targets_of = [](const auto& saver) -> SaveTargets { return saver; };
    Saver saver{config, std::visit(targets_of, config), make_destination(config)};
    check_targets(
        saver.targets, example_, folder.path(), saver.destination ? saver.destination->name() : "");
    savers_.push_back(std::move(saver));
  }
}

void Copies::check_access(Deadline deadline) const {
  for (const Saver& saver : savers_) {
    if (!saver.destination) {
      for (const FilledTarget& filled : filled_targets(saver.targets, example_)) {
        const std::optional<std::string> why = why_file_not_writable(filled.path);
        if (!why) continue;
        throw ConfigError(
            "/tracker/save/{}: '{}' cannot be saved: {}\n"
            "  Choose another target, or make that place writable for this user.",
            filled.key,
            filled.path,
            *why);
      }
      continue;
    }
    try {
      saver.destination->check_access({.deadline = deadline});
    } catch (const NetworkError& error) {
      const bool is_away = may_pass(error) || std::chrono::steady_clock::now() >= deadline;
      if (!is_away) throw NetworkError("/tracker/save: {}", error.what());
      log_warning("track",
                  "{}\n  The run continues: what it saves waits in its data_path until {} is back.",
                  error.what(),
                  saver.destination->name());
    }
  }
}

void Copies::check_targets_are_free() const {
  std::set<std::string> moves;
  for (const Saver& saver : savers_) {
    if (saver.destination) continue;
    for (const std::string& path : fixed_targets(saver.targets)) {
      std::error_code error;
      if (fs::exists(fs::symlink_status(path, error)) && !folder_.owns(path))
        moves.insert(fmt::format("mv {0} {0}.earlier", path));
    }
  }
  if (moves.empty()) return;
  throw ConfigError(
      "/tracker/save: {} there that this run has not saved, and does not replace\n  Move {} away, "
      "or choose other targets:\n    {}",
      moves.size() == 1 ? "a file lies" : "files lie",
      moves.size() == 1 ? "it" : "them",
      fmt::join(moves, "\n    "));
}

std::vector<std::string> Copies::intact() const {
  std::vector<std::string> found;
  for (const Saver& saver : savers_) {
    if (saver.destination || saver.targets.save_type != SaveType::checkpoint) continue;
    for (const std::string& path : fixed_targets(saver.targets)) {
      if (folder_.has_saved(path)) found.push_back(path);
    }
  }
  return found;
}

void Copies::open(const std::string& wandb_run,
                  const std::string& config,
                  LogError log_error,
                  LogError on_upload_error) {
  config_ = config;
  log_error_ = std::move(log_error);
  std::vector<std::shared_ptr<Destination>> services;
  for (Saver& saver : savers_) {
    auto* const wandb = std::get_if<WandbSaveConfig>(&saver.config);
    if (wandb != nullptr && !wandb->wandb_run_path) {
      D2_CHECK(!wandb_run.empty(), "a W&B saver without a run");
      wandb->wandb_run_path = wandb_run;
      saver.destination = make_destination(saver.config);
    }
    if (saver.destination) services.push_back(saver.destination);
    log_info("track",
             "Saving {} {}",
             save_type_name(saver.targets.save_type),
             saver.destination ? "to " + saver.destination->name() : "locally");
  }
  uploads_ = std::make_unique<Uploads>(outbox(), services, std::move(on_upload_error));
  if (const auto others = uploads_->unserved(); !others.empty()) {
    log_warning("track",
                "{}: {} for {} stay here, because no saver of the config is for that place",
                outbox(),
                counted(static_cast<int64_t>(others.size()), "file"),
                others.front().to);
  }
}

/// What fails is an error in the log, and the run continues.
void Copies::attempt(const std::string& what, const std::function<void()>& part) {
  folder_.check_token();
  try {
    part();
  } catch (const std::exception& error) {
    log_error_(fmt::format("Error {}: {}", what, error.what()));
  }
}

void Copies::save(bool is_best, bool is_latest, const FormatFields& placeholders) {
  for (const Saver& saver : savers_) {
    const SaveTargets& targets = saver.targets;
    for (const auto& [wanted, target] :
         {std::pair(is_latest, targets.save_latest_to), std::pair(is_best, targets.save_best_to)}) {
      if (!wanted || !target) continue;
      attempt("saving checkpoint", [&, &to = *target] {
        save_file(saver,
                  folder_.in(own_file(targets.save_type)),
                  save_type_name(targets.save_type),
                  python_format(to, placeholders));
      });
    }
    if (!sent_cards_) attempt("sending the model card", [&] { send_card(saver); });
  }
  sent_cards_ = true;
}

/// On this machine a second name of bytes that were read back already, and that are never changed.
void Copies::save_file(const Saver& saver,
                       const std::string& path,
                       const std::string& kind,
                       const std::string& target) {
  if (saver.destination) return uploads_->add({path, saver.destination->name(), target, kind});
  std::error_code error;
  if (fs::equivalent(path, target, error)) return;  // the file in data_path is the target
  if (!link_new_file(path, target)) {
    if (!folder_.owns(target)) {
      throw ConfigError(
          "{0}: a file lies there that this run has not saved, and it is not replaced\n  Move it "
          "away: mv {0} {0}.earlier",
          target);
    }
    link_file_atomically(path, target);
  }
  log_info("track", "Saved {} to local path {}", kind, target);
}

void Copies::save_config(const std::string& name, const std::string& content) {
  for (const Saver& saver : savers_) {
    if (!saver.targets.save_meta_to) continue;
    const std::string target = (fs::path(*saver.targets.save_meta_to) / name).string();
    attempt("saving " + name, [&] {
      save_file(saver, folder_.in(name), "config", target);
      if (!saver.destination) folder_.note_copy(target, content);
    });
  }
}

/// A page that somebody has written stays.
void Copies::send_card(const Saver& saver) {
  const auto* hub = std::get_if<HuggingfaceSaveConfig>(&saver.config);
  if (hub == nullptr || !hub->model_card) return;
  const std::vector<std::string> fixed = fixed_targets(saver.targets);
  const std::string scratch = (fs::path(outbox()) / kCardFile).string();
  write_file_atomically(scratch, model_card(*hub, fixed.empty() ? "FILE" : fixed.front(), config_));
  uploads_->add({scratch, saver.destination->name(), "README.md", "model card", true});
  remove_file(scratch);  // the outbox has it
}

size_t Copies::end() {
  if (!uploads_) return 0;
  uploads_->end();
  const size_t left = uploads_->waiting().size();
  uploads_.reset();
  return left;
}

SyncReport sync_run(const std::string& data_path) {
  const std::optional<RunRecord> run = read_run_record(data_path);
  if (!run) {
    throw ConfigError("{}: not the folder of a run; expected the tracker.data_path of one",
                      data_path);
  }
  const RunLock lock = lock_at_once(data_path);
  std::error_code ignored;
  const bool is_home = fs::equivalent(run->home, data_path, ignored);
  const std::optional<RunRecord> at_home = is_home ? std::nullopt : read_run_record(run->home);
  if (at_home && at_home->id == run->id) {
    throw ConfigError(
        "{}: is a copy of {}, and what waits in it is the original's to send\n  Give the original's "
        "folder.",
        data_path,
        run->home);
  }
  SyncReport report;
  sync_files(data_path, *run, report);
  sync_rows(data_path, *run, report);
  return report;
}

}  // namespace dalle2
