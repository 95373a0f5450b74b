// SPDX-License-Identifier: MIT
// A service that takes files.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "config/shared/tracker_config.h"
#include "net/http_call.h"

namespace dalle2 {

/// A file for a service. It holds no secret: it is stored while it waits.
struct FileToSend {
  std::string path;
  std::string to = {};          ///< Destination::name()
  std::string target;           ///< its name there
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
  /// Whether it wants a page on what was trained; known after check_access().
  virtual bool wants_card() const { return false; }
  /// Asks the service whether it would take files. Sends none.
  /// @throws NetworkError (one that may_pass() if the service is away), ConfigError
  virtual void check_access(const HttpCallOptions& options) = 0;
  /// Sends a file that it takes, whole or not at all; it is not changed meanwhile.
  /// @param notes of this file
  /// @param cancelled asked while waiting; true ends the transfer by an error
  /// @throws NetworkError, DataError
  virtual void send(const FileToSend& file,
                    UploadNotes& notes,
                    const std::function<bool()>& cancelled) = 0;
  /// Whether the notes hold no secret, so that they may be on the disk.
  virtual bool stores_notes() const { return false; }
  /// Gives up an upload of which there are notes.
  virtual void abandon(const FileToSend& /*file*/, const std::string& /*notes*/) const {}
};

/// The service of a saver's config; null for files of this machine. A W&B run without wandb_run_path can
/// be asked, and nothing can be sent yet. @throws ConfigError
std::unique_ptr<Destination> make_destination(const SaveConfig& config);

}  // namespace dalle2
