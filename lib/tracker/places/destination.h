// SPDX-License-Identifier: MIT
// A service that takes files.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "config/shared/tracker_config.h"
#include "net/http_call.h"

namespace dalle2 {

/// A file for a service.
struct FileToSend {
  std::string path;
  std::string target;           ///< its name there; may be a whole address that holds secrets
  std::string kind;             ///< for people: "checkpoint"
  bool only_if_absent = false;  ///< a file of that name stays as it is
};

class Destination {
 public:
  virtual ~Destination() = default;

  /// The place, for people and for records: an address without secrets. Places that differ have names
  /// that differ.
  virtual std::string name() const = 0;
  /// Where a target is, for people.
  virtual std::string place_of(const std::string& target) const { return name() + "/" + target; }
  /// Tells of a target of the config, with its placeholders: full_target() finds in it what records of an
  /// earlier process do not say.
  virtual void know_template(const std::string& /*target*/) {}
  /// What records may say of a target, without secrets. It is remembered for full_target().
  virtual std::string shown_target(const std::string& target) { return target; }
  /// The target behind what a record says of it.
  virtual std::string full_target(const std::string& shown) { return shown; }
  /// Whether it wants a page on what was trained; known after check_access().
  virtual bool wants_card() const { return false; }
  /// Asks the service whether it would take files. Sends none.
  /// @throws NetworkError (one that may_pass() if the service is away), ConfigError
  virtual void check_access(const HttpCallOptions& options) = 0;
  /// Sends a file, whole or not at all; it is not changed meanwhile.
  /// @param cancelled asked while waiting; true ends the transfer by an error
  /// @throws NetworkError, DataError
  virtual void send(const FileToSend& file, const std::function<bool()>& cancelled) = 0;
};

/// The service of a saver's config; null for files of this machine.
std::unique_ptr<Destination> make_destination(const SaveConfig& config);

/// A repository of the Hugging Face hub. @throws ConfigError
std::unique_ptr<Destination> make_hub_destination(const HuggingfaceSaveConfig& config);

/// A server that takes files by PUT. @throws ConfigError
std::unique_ptr<Destination> make_url_destination(const UrlSaveConfig& config);

/// A bucket of S3.
std::unique_ptr<Destination> make_s3_destination(const S3SaveConfig& config);

/// A run of Weights & Biases; without wandb_run_path it can be asked, and nothing can be sent yet.
/// @throws ConfigError
std::unique_ptr<Destination> make_wandb_destination(const WandbSaveConfig& config);

}  // namespace dalle2
