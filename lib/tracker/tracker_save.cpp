// SPDX-License-Identifier: MIT
// How a tracker saves: its own files first, then what the savers copy or send.
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "tracker/places/model_card.h"
#include "tracker/public_config.h"
#include "tracker/tracker.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

}  // namespace

void Tracker::save(const SaveRequest& request) {
  if (dummy_ || (!request.is_best && !request.is_latest)) return;
  check_started();
  for (const auto& lock : locks_) lock->look();
  for (const char* name : {kCheckpointFile, kModelFile, kLoraFile}) {
    if (name != std::string_view(kLoraFile) || request.write_lora) {
      claim(in_data_path(name), name == std::string_view(kCheckpointFile));
    }
  }
  if (request.amid_skips) keep_last_good();
  log_upload_errors();
  request.write_checkpoint(in_data_path(kCheckpointFile));
  saved_->store(true);
  keep_snapshot(request);
  request.write_model(in_data_path(kModelFile));
  if (request.write_lora) request.write_lora(in_data_path(kLoraFile));
  log_info("track",
           "Saved {}, {}{} in {}",
           kCheckpointFile,
           kModelFile,
           request.write_lora ? fmt::format(", {}", kLoraFile) : "",
           config_.data_path);
  for (const auto& saver : savers_) {
    const SaveTargets& targets = saver->targets();
    if (request.is_latest && targets.save_latest_to)
      save_with(*saver, *targets.save_latest_to, request);
    if (request.is_best && targets.save_best_to) save_with(*saver, *targets.save_best_to, request);
  }
  if (++saves_ > 1) send_cards();
}

/// Not with the first save, which may come before there are pictures.
void Tracker::send_cards() {
  if (!uploads_ || std::exchange(sent_cards_, true)) return;
  CardFacts facts;
  for (const auto& [key, json] : metadata_) {
    if (key == "config") facts.config = public_config(json);
  }
  {
    const std::lock_guard lock(*log_mutex_);
    for (const StoredImage& image : last_pictures_) {
      facts.pictures.push_back({in_data_path(image.path), image.caption});
    }
  }
  for (const auto& saver : savers_) {
    try {
      saver->send_card(facts, in_data_path(kCardFile));
    } catch (const std::exception& error) {
      log_error(fmt::format("Error sending the model card: {}", error.what()));
    }
  }
}

/// The checkpoint so far stays under a second name, unless it was itself saved amid skips: then an
/// earlier save has kept the one before.
void Tracker::keep_last_good() {
  const std::string path = in_data_path(kCheckpointFile);
  std::error_code error;
  if (!saved_->load() && !goes_on_) return;
  if (!fs::exists(path, error) || !read_facts_) return;
  const std::optional<SavedFacts> facts = read_facts_(path);
  if (facts && !facts->amid_skips) snapshots_.keep_last_good(path);
}

void Tracker::keep_snapshot(const SaveRequest& request) {
  try {
    if (request.went_back) {
      snapshots_.remove_after(request.position, [&](const std::string& path) {
        const std::optional<SavedFacts> facts = read_facts_ ? read_facts_(path) : std::nullopt;
        return facts && facts->samples_seen > request.position.samples_seen;
      });
    }
    if (request.amid_skips) return;
    snapshots_.keep(in_data_path(kCheckpointFile), request.position, request.is_best);
    snapshots_.remove_last_good();
  } catch (const Error& error) {
    log_error(fmt::format("Error keeping a snapshot: {}", error.what()));
  }
}

void Tracker::save_with(Saver& saver,
                        const std::string& target_template,
                        const SaveRequest& request) {
  const SaveType type = saver.targets().save_type;
  const std::string source = in_data_path(own_file(type));
  try {
    save_as(saver,
            {source, save_type_name(type)},
            python_format(target_template, request.placeholders));
  } catch (const std::exception& error) {
    log_error(fmt::format("Error saving checkpoint: {}", error.what()));
  }
}

/// A service that cannot be reached costs its own files only.
void Tracker::log_upload_errors() {
  if (!uploads_) return;
  for (const std::string& error : uploads_->take_errors()) log_error(error);
}

void Tracker::finish_uploads() {
  finish_uploads(config_.upload_deadline_seconds);
}

void Tracker::finish_uploads(double seconds) {
  if (!uploads_) return;
  if (saves_ > 0) send_cards();
  const size_t left = uploads_->finish(std::min(seconds, config_.upload_deadline_seconds));
  log_upload_errors();
  if (left > 0) {
    log_warning("track",
                "{} could not be sent and {} in {}: the next start sends what is left, or "
                "`dalle2-train sync {}`",
                counted(static_cast<int64_t>(left), "file"),
                left == 1 ? "waits" : "wait",
                in_data_path(kOutboxFolder),
                config_.data_path);
  }
  uploads_.reset();
}

}  // namespace dalle2
