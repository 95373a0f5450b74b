// SPDX-License-Identifier: MIT
#include "tracker/places/copies.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "tracker/places/model_card.h"

namespace dalle2 {

namespace fs = std::filesystem;

Copies::Copies(const std::vector<SaveConfig>& savers,
               const FormatFields& example,
               RunFolder& folder)
    : folder_(folder) {
  for (const SaveConfig& save : savers) {
    savers_.push_back(make_saver(save, folder));
    savers_.back()->check_targets(example, folder.path());
  }
  if (!savers_.empty()) return;
  throw ConfigError(
      "/tracker/save: `savers` must be set: a run without one saves nothing, e.g. {{\"save_to\": "
      "\"local\", \"save_latest_to\": \"latest.pth\"}}");
}

void Copies::check_access(const FormatFields& example, Deadline deadline) const {
  for (const auto& saver : savers_) saver->check_access(example, deadline);
}

void Copies::check_targets_are_free() const {
  std::vector<std::string> moves;
  for (const auto& saver : savers_) {
    for (const std::string& path : saver->fixed_local_targets()) {
      std::error_code error;
      const std::string move = fmt::format("mv {0} {0}.earlier", path);
      const bool is_known = std::find(moves.begin(), moves.end(), move) != moves.end();
      if (fs::exists(fs::symlink_status(path, error)) && !saver->may_replace(path) && !is_known)
        moves.push_back(move);
    }
  }
  if (moves.empty()) return;
  throw ConfigError(
      "/tracker/save: {} there that this run has not saved: it would be lost\n  Move {} away, or "
      "choose other targets:\n    {}",
      moves.size() == 1 ? "a file lies" : "files lie",
      moves.size() == 1 ? "it" : "them",
      fmt::join(moves, "\n    "));
}

std::vector<std::string> Copies::intact() const {
  std::vector<std::string> found;
  for (const auto& saver : savers_) {
    if (saver->targets().save_type != SaveType::checkpoint) continue;
    for (const std::string& path : saver->fixed_local_targets()) {
      if (folder_.has_saved(path)) found.push_back(path);
    }
  }
  return found;
}

bool Copies::is_remote() const {
  return std::any_of(
      savers_.begin(), savers_.end(), [](const auto& saver) { return saver->is_remote(); });
}

void Copies::open(const std::optional<std::string>& wandb_run, LogError log_error) {
  log_error_ = std::move(log_error);
  if (is_remote() || Outbox::is_used(outbox())) uploads_ = std::make_unique<Uploads>(outbox());
  for (const auto& saver : savers_) saver->init(uploads_.get(), wandb_run);
  if (!uploads_) return;
  uploads_->begin();
  if (const auto others = uploads_->unserved(); !others.empty()) {
    log_warning("track",
                "{}: {} for {} stay here, because no saver of the config is for that place",
                outbox(),
                counted(static_cast<int64_t>(others.size()), "file"),
                others.front().to);
  }
}

void Copies::save(bool is_best, bool is_latest, const FormatFields& placeholders) {
  for (const auto& saver : savers_) {
    const SaveTargets& targets = saver->targets();
    if (is_latest && targets.save_latest_to)
      save_with(*saver, *targets.save_latest_to, placeholders);
    if (is_best && targets.save_best_to) save_with(*saver, *targets.save_best_to, placeholders);
  }
}

void Copies::save_with(Saver& saver,
                       const std::string& target_template,
                       const FormatFields& placeholders) {
  const SaveType type = saver.targets().save_type;
  const auto find_failures = [&] {
    return std::find_if(failures_.begin(), failures_.end(), [&](const Failures& of) {
      return of.saver == &saver && of.target_template == target_template;
    });
  };
  folder_.check_token();
  try {
    saver.save_file({folder_.in(own_file(type)),
                     save_type_name(type),
                     python_format_values(target_template, placeholders)},
                    python_format(target_template, placeholders));
    if (const auto known = find_failures(); known != failures_.end()) known->last_failed = false;
  } catch (const std::exception& error) {
    folder_.check_token();
    auto failed = find_failures();
    if (failed == failures_.end()) failed = failures_.insert(failed, {&saver, target_template});
    ++failed->count;
    failed->last_failed = true;
    log_error_(fmt::format("Error saving checkpoint: {}", error.what()), /*leaves_out=*/true);
  }
}

void Copies::save_config(const std::string& name, const std::string& content) {
  for (const auto& saver : savers_) {
    if (!saver->targets().save_meta_to) continue;
    const std::string target = (fs::path(*saver->targets().save_meta_to) / name).string();
    try {
      saver->save_file({folder_.in(name), "config", {name}}, target);
      if (!saver->is_remote()) folder_.note_copy(target, content);
    } catch (const std::exception& fault) {
      log_error_(fmt::format("Error saving {}: {}", name, fault.what()), /*leaves_out=*/true);
    }
  }
}

void Copies::send_cards(const std::string& config, const std::vector<StoredImage>& pictures) {
  if (!uploads_ || std::exchange(sent_cards_, true)) return;
  CardFacts facts;
  facts.config = config;
  for (const StoredImage& image : pictures) {
    facts.pictures.push_back({folder_.in(image.path), image.caption});
  }
  for (const auto& saver : savers_) {
    try {
      saver->send_card(facts, (fs::path(outbox()) / kCardFile).string());
    } catch (const std::exception& error) {
      log_error_(fmt::format("Error sending the model card: {}", error.what()),
                 /*leaves_out=*/true);
    }
  }
}

void Copies::tell_failures() const {
  for (const Failures& failed : failures_) {
    const SaveTargets& targets = failed.saver->targets();
    const bool is_state = targets.save_type == SaveType::checkpoint &&
                          targets.save_latest_to == failed.target_template;
    const std::string newest =
        is_state ? fmt::format(": the newest checkpoint is {}", folder_.in(kCheckpointFile)) : "";
    log_warning("track",
                "{} to '{}' failed{}",
                counted(failed.count, "save"),
                public_text(failed.target_template),
                failed.last_failed ? ", the last one too" + newest : "; the last one succeeded");
  }
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
  if (const size_t left = uploads_->waiting_count(); left > 0) {
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
