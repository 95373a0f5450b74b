// SPDX-License-Identifier: MIT
#include "tracker/places/copies.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "io/files/atomic_file.h"
#include "io/files/writable.h"

namespace dalle2 {
namespace {

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

/// A saver that copies the model over the run's own checkpoint (or the other way round) would leave
/// nothing to resume from.
void check_against_own(const FilledTarget& filled, SaveType type, const std::string& data_path) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError("/tracker/save: '{}' {}", filled.target, what);
  };
  const fs::path path = fs::absolute(filled.path).lexically_normal();
  const fs::path target = canonical_folder(path), folder = canonical_folder(data_path);
  if (is_in_folder(folder, target)) {
    refuse(fmt::format(
        "is data_path or a folder above it; a file is expected, such as {}/latest.pth", data_path));
  }
  if (path.extension() == ".part")
    refuse("has the name of an unfinished file: choose another name");
  if (!is_in_folder(target, folder)) return;
  const fs::path below = target.lexically_relative(folder);
  const std::string name = below.string(), first = below.begin()->string();
  const bool is_own =
      std::find(std::begin(kOwnNames), std::end(kOwnNames), first) != std::end(kOwnNames) ||
      name == kRecordFile || name == kLockFile || name.ends_with("_config.json");
  if (!is_own || name == own_file(type)) return;
  refuse(fmt::format(
      "is a place of the run's own files, a {} cannot be saved there: choose another path",
      save_type_name(type)));
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
/// @throws ConfigError as filled_targets(); an empty one, `..` in a path, one that is taken by a file that
/// the run keeps in data_path
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
    refuse_if(std::find(path.begin(), path.end(), "..") != path.end(),
              service.empty()
                  ? "goes up, and '..' is refused: targets are relative to the working "
                    "directory; write an absolute path for one outside of it"
                  : "goes up, and '..' is refused: targets are names below the place of "
                    "the saver");
    refuse_if(!service.empty() && path.is_absolute(),
              "begins with '/': targets are names below " + service);
    if (service.empty() && filled.key != std::string_view("save_meta_to"))
      check_against_own(filled, targets.save_type, data_path);
  }
}

}  // namespace

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

void Copies::open(const std::string& wandb_run, LogError log_error) {
  log_error_ = std::move(log_error);
  uploads_ = std::make_unique<Uploads>(outbox());
  for (Saver& saver : savers_) {
    auto* const wandb = std::get_if<WandbSaveConfig>(&saver.config);
    if (wandb != nullptr && !wandb->wandb_run_path) {
      D2_CHECK(!wandb_run.empty(), "a W&B saver without a run");
      wandb->wandb_run_path = wandb_run;
      saver.destination = make_destination(saver.config);
    }
    if (saver.destination) uploads_->serve(saver.destination);
    log_info("track",
             "Saving {} {}",
             save_type_name(saver.targets.save_type),
             saver.destination ? "to " + saver.destination->name() : "locally");
  }
  uploads_->begin();
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
    folder_.check_token();
    ++failed_;
    log_error_(fmt::format("Error {}: {}", what, error.what()), /*leaves_out=*/true);
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
  }
}

/// On this machine a second name of bytes that were read back already: neither time nor space. Both are
/// only ever replaced, never changed.
void Copies::save_file(const Saver& saver,
                       const std::string& path,
                       const std::string& kind,
                       const std::string& target) {
  if (!saver.destination) return save_here(path, kind, target);
  send(saver, {.path = path, .target = target, .kind = kind});
}

/// A second name of bytes that were read back already: neither time nor space. Both are only ever
/// replaced, never changed.
void Copies::save_here(const std::string& path,
                       const std::string& kind,
                       const std::string& target) {
  std::error_code error;
  if (fs::equivalent(path, target, error)) return;  // the file in data_path is the target
  if (!link_new_file(path, target)) {
    const bool is_same = kind == "config" && fs::is_regular_file(target, error) &&
                         read_file(target) == read_file(path);
    if (!is_same && !folder_.owns(target)) {
      throw ConfigError(
          "{0}: a file lies there that this run has not saved, and it is not replaced\n  Move it "
          "away: mv {0} {0}.earlier",
          target);
    }
    link_file_atomically(path, target);
  }
  log_info("track", "Saved {} to local path {}", kind, target);
}

void Copies::send(const Saver& saver, FileToSend file) {
  file.to = saver.destination->name();
  uploads_->add(file);
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

void Copies::send_cards(const std::string& config, const std::vector<StoredImage>& pictures) {
  if (std::exchange(sent_cards_, true)) return;
  for (const Saver& saver : savers_)
    attempt("sending the model card", [&] { send_card(saver, config, pictures); });
}

void Copies::send_card(const Saver& saver,
                       const std::string& config,
                       const std::vector<StoredImage>& pictures) {
  const auto* hub = std::get_if<HuggingfaceSaveConfig>(&saver.config);
  if (hub == nullptr || !saver.destination->wants_card()) return;
  const std::vector<std::string> fixed = fixed_targets(saver.targets);
  CardFacts facts{.repo = hub->huggingface_repo,
                  .file = fixed.empty() ? "" : fixed.front(),
                  .revision = hub->revision == "main" ? "" : hub->revision,
                  .save_type = saver.targets.save_type,
                  .config = config};
  const auto send_new = [&](const std::string& path, const std::string& target, const char* kind) {
    send(saver, {.path = path, .target = target, .kind = kind, .only_if_absent = true});
  };
  for (const StoredImage& image : pictures) {
    facts.pictures.push_back({folder_.in(image.path), image.caption});
    send_new(facts.pictures.back().path, card_name_of(image), "picture");
  }
  const std::string scratch = (fs::path(outbox()) / kCardFile).string();
  write_file_atomically(scratch, model_card(facts));
  send_new(scratch, "README.md", "model card");
  remove_file(scratch);  // the outbox has it
}

void Copies::begin_end() {
  if (failed_ > 0) {  // the single errors may be far up in the log
    log_warning("track",
                "{} failed, as the errors above say; the newest checkpoint is {}",
                counted(failed_, "copy", "copies"),
                folder_.in(kCheckpointFile));
  }
  if (uploads_) uploads_->begin_end();
}

/// A service that cannot be reached costs its own files only.
void Copies::log_upload_errors() {
  if (!uploads_) return;
  for (const std::string& error : uploads_->take_errors()) {
    log_error_(error, /*leaves_out=*/false);  // it waits, and the end says so
  }
}

void Copies::end() {
  if (!uploads_) return;
  uploads_->end();
  log_upload_errors();
  if (const size_t left = uploads_->waiting().size(); left > 0) {
    log_warning("track",
                "{} could not be sent and {} in {}: the next start sends what is left, or "
                "`dalle2-train sync {}`",
                counted(static_cast<int64_t>(left), "file"),
                left == 1 ? "waits" : "wait",
                outbox(),
                folder_.path());
  }
  uploads_.reset();
}

}  // namespace dalle2
