// SPDX-License-Identifier: MIT
#include <memory>

#include "net/hub/hub_api.h"
#include "tracker/places/destination.h"

namespace dalle2 {
namespace {

class HubDestination : public Destination {
 public:
  explicit HubDestination(const HuggingfaceSaveConfig& config)
      : is_private_(config.is_private),
        wants_card_(config.model_card),
        repository_(find_hub_access(config.token_path, config.allow_plain_http),
                    config.huggingface_repo,
                    config.revision) {}

  std::string name() const override { return repository_.name(); }
  bool wants_card() const override { return wants_card_; }
  void check_access(const HttpCallOptions& options) override {
    repository_.check_token(options);
    // A page that somebody has written stays, and gets no samples beside it.
    if (!wants_card_ || !repository_.exists(options)) return;
    wants_card_ = !repository_.find("README.md", options);
  }
  void send(const FileToSend& file,
            UploadNotes& notes,
            const std::function<bool()>& cancelled) override {
    const HttpCallOptions options{.ends_at_stop = false, .cancelled = cancelled};
    if (!made_) repository_.create(is_private_, options);
    made_ = true;
    repository_.upload({.local_path = file.path,
                        .path = file.target,
                        .summary = "Upload " + file.kind + " " + file.target,
                        .only_if_absent = file.only_if_absent},
                       options,
                       &notes);
  }

 private:
  bool is_private_, wants_card_;
  bool made_ = false;  // the repository
  HubRepository repository_;
};

}  // namespace

std::unique_ptr<Destination> make_hub_destination(const HuggingfaceSaveConfig& config) {
  return std::make_unique<HubDestination>(config);
}

}  // namespace dalle2
