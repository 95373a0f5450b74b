// SPDX-License-Identifier: MIT
#include "config/run_config.h"

#include "base/error.h"
#include "config/cross_rules.h"
#include "config/parse_config.h"
#include "config/plan_rules.h"

namespace dalle2 {
namespace {

/// The sections of VAEs that only their checkpoints hold.
void fill_in_vaes(DecoderConfig& decoder, const ReadOptions& options, Faults& faults) {
  if (!decoder.vae || !options.vae_of_checkpoint) return;
  for (size_t i = 0; i < decoder.vae->size(); ++i) {
    std::optional<LatentConfig>& vae = (*decoder.vae)[i];
    if (!vae || vae->model) continue;
    try {
      vae->model = options.vae_of_checkpoint(vae->checkpoint);
    } catch (const ConfigError& error) {
      faults.error(fmt::format("/decoder/vae/{}/checkpoint", i), error.what());
    }
  }
}

void check_decoder(const ReadOptions& options, LoadedDecoderConfig& loaded, Faults& faults) {
  TrainDecoderConfig& config = loaded.config;
  if (!faults.has_error_under("/decoder")) fill_in_vaes(config.decoder, options, faults);
  // The reference takes an empty text as none.
  auto& text_url = config.data.text_embeddings_url;
  if (text_url && text_url->empty()) text_url.reset();
  if (!faults.has_error_under("/decoder")) loaded.plan = plan_decoder(config.decoder, faults);
  check_sections(config, loaded.plan, faults);
  if (!faults.has_error_under("/decoder") && !faults.has_error_under("/train")) {
    plan_losses(config.train, loaded.plan, faults);
  }
}

}  // namespace

LoadedDecoderConfig parse_decoder_config(const std::string& json,
                                         const std::string& origin,
                                         const ReadOptions& options) {
  return parse_config<LoadedDecoderConfig>(
      json, origin, options, [&](const Json&, LoadedDecoderConfig& loaded, Faults& faults) {
        check_decoder(options, loaded, faults);
      });
}

LoadedDecoderConfig load_decoder_config(const std::string& path, const ReadOptions& options) {
  return parse_decoder_config(read_config_file(path), path, options);
}

}  // namespace dalle2
