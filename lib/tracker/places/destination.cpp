// SPDX-License-Identifier: MIT
// The services that take files: the hub, servers that take them by HTTP PUT, stores with S3's interface,
// Weights & Biases.
#include "tracker/places/uploads.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/public_url.h"
#include "net/http_call.h"
#include "net/hub/hub_api.h"
#include "net/s3/s3.h"
#include "net/url.h"
#include "net/wandb_api.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {
namespace {

class HubDestination : public Destination {
 public:
  explicit HubDestination(const HuggingfaceSaveConfig& config)
      : is_private_(config.is_private),
        wants_card_(config.model_card),
        repository_(find_hub_access(config.token_path, config.allow_plain_http),
                    {.repo = config.huggingface_repo, .revision = config.revision}) {}

  std::string name() const override { return repository_.name(); }
  bool wants_card() const override { return wants_card_; }
  void check_access(const HttpOptions& options) override {
    repository_.set_options(options);
    repository_.check_token();
    // A page that somebody has written stays, and gets no samples beside it.
    if (!wants_card_ || !repository_.exists()) return;
    wants_card_ = !repository_.find("README.md");
  }
  void send(const FileToSend& file, UploadNotes& notes, const HttpOptions& options) override {
    repository_.set_options(options);
    if (!made_) repository_.create(is_private_);
    made_ = true;
    repository_.upload({.local_path = file.path,
                        .path = file.target,
                        .summary = "Upload " + file.kind + " " + file.target,
                        .only_if_absent = file.only_if_absent},
                       notes);
  }

 private:
  bool is_private_, wants_card_;
  bool made_ = false;  // the repository
  HubRepository repository_;
};

/// PUT of whole files below a folder.
class UrlDestination : public Destination {
 public:
  explicit UrlDestination(const UrlSaveConfig& config) : plain_http_(config.allow_plain_http) {
    const size_t query = std::min(config.url.find('?'), config.url.size());
    folder_ = without_slash(config.url.substr(0, query));
    query_ = config.url.substr(query);
    shown_ = without_slash(public_url(config.url));
    if (public_url(folder_) != shown_) {
      throw ConfigError(
          "/tracker/save/url: {}: a \"?\" in a login ends the address.\n  Write it as %3F, or put the "
          "login into ~/.netrc.",
          shown_);
    }
    check_plain_http(folder_, plain_http_, "/tracker/save/url: " + shown_);
  }

  /// The folder without its secrets takes nothing that was for the one with them.
  std::string name() const override {
    return shown_ + (shown_ == folder_ ? "" : " (with a login)") +
           (query_.empty() ? "" : " (with a query)");
  }
  std::string place_of(const std::string& target) const override { return shown_ + "/" + target; }

  /// A server of files need not know other requests, and a presigned address is good for one.
  void check_access(const HttpOptions& options) override {
    if (!query_.empty()) return;
    HttpCall look = call("OPTIONS", folder_ + "/");
    look.accepted = {400, 403, 404, 405, 409, 501};
    http_call(look, options);
  }

  void send(const FileToSend& file, UploadNotes& /*notes*/, const HttpOptions& options) override {
    const std::string address = folder_ + "/" + uri_encode(file.target, /*keep_slash=*/true);
    HttpCall put = call("PUT", address + query_);
    put.file = HttpFilePart{file.path};
    put.headers.emplace_back("Content-Type: application/octet-stream");
    if (query_.empty()) make_folders(address, options);
    http_call(put, options);
  }

 private:
  HttpCall call(const std::string& method, const std::string& url) const {
    HttpCall call{.method = method, .url = url};
    call.plain_http = plain_http_;
    call.netrc = true;
    call.explain = [](const HttpAnswer& answer) -> std::string {
      if (answer.status() == 401) {
        return "The server asks for a login: write one into ~/.netrc (chmod 600)";
      }
      if (answer.status() == 403) {
        return "The login may not write there, or the signature of the address has expired";
      }
      if (answer.status() == 405) return "The server takes no files at this address";
      return status_advice(answer.status());
    };
    return call;
  }
  /// Those above a file, one by one: WebDAV makes none by itself, and some servers say so when they have
  /// the whole file. What cannot be made may be there, and servers that know only PUT refuse: the PUT tells.
  void make_folders(const std::string& address, const HttpOptions& options) const {
    const size_t path = address.find('/', address.find("://") + 3);
    for (size_t at = address.find('/', path + 1); at != std::string::npos;
         at = address.find('/', at + 1)) {
      HttpCall make = call("MKCOL", address.substr(0, at + 1));
      make.accepted = {400, 401, 403, 404, 405, 409, 410, 501};
      try {
        http_call(make, options);
      } catch (const HttpStatusError& refused) {
        if (refused.status() == 429) throw;
      }
    }
  }

  std::string folder_, query_;  // query_: with its "?", behind each address
  std::string shown_;           // the folder without what is secret
  bool plain_http_;
};

class S3Destination : public Destination {
 public:
  explicit S3Destination(const S3SaveConfig& config)
      : url_(without_slash(config.url)), plain_http_(config.allow_plain_http) {}

  std::string name() const override { return url_; }
  void check_access(const HttpOptions& options) override {
    s3_check_bucket(url_, {.http = options, .plain_http = plain_http_});
  }
  void send(const FileToSend& file, UploadNotes& notes, const HttpOptions& options) override {
    s3_upload(
        file.path, url_ + "/" + file.target, notes, {.http = options, .plain_http = plain_http_});
  }
  bool stores_notes() const override { return true; }

 private:
  std::string url_;
  bool plain_http_;
};

/// A run; without wandb_run_path it can be asked, and nothing can be sent yet.
class WandbDestination : public Destination {
 public:
  explicit WandbDestination(const WandbSaveConfig& config) : access_(find_wandb_access()) {
    if (config.wandb_run_path) run_ = parse_wandb_run_path(*config.wandb_run_path);
  }

  std::string name() const override {
    return run_ ? wandb_page(access_, *run_) : public_url(access_.base_url);
  }
  std::string place_of(const std::string& target) const override {
    return name() + "/files/" + target;
  }
  void check_access(const HttpOptions& options) override {
    if (access_.mode != WandbMode::kOnline) {
      throw NetworkError("{}: nothing can be saved there: {}.\n  {} Or choose another saver.",
                         name(),
                         access_.mode_reason,
                         kWandbLogin);
    }
    WandbApi(access_, options).viewer();
  }
  void send(const FileToSend& file, UploadNotes& /*notes*/, const HttpOptions& options) override {
    D2_CHECK(run_.has_value(), "the run of a saver is known when the loggers have begun");
    WandbApi(access_, options).upload(*run_, {{.name = file.target, .path = file.path}});
  }

 private:
  WandbAccess access_;
  std::optional<WandbRunPath> run_;
};

struct MakeDestination {
  using Made = std::unique_ptr<Destination>;
  Made operator()(const LocalSaveConfig&) { return nullptr; }
  Made operator()(const HuggingfaceSaveConfig& c) { return std::make_unique<HubDestination>(c); }
  Made operator()(const UrlSaveConfig& c) { return std::make_unique<UrlDestination>(c); }
  Made operator()(const S3SaveConfig& c) { return std::make_unique<S3Destination>(c); }
  Made operator()(const WandbSaveConfig& c) { return std::make_unique<WandbDestination>(c); }
};

}  // namespace

std::unique_ptr<Destination> make_destination(const SaveConfig& config) {
  return std::visit(MakeDestination{}, config);
}

}  // namespace dalle2
