// SPDX-License-Identifier: MIT
#include "config/run_config.h"

#include "config/cross_rules.h"
#include "config/parse_config.h"
#include "config/plan_rules.h"

namespace dalle2 {
namespace {

void check_decoder(const Json&, LoadedDecoderConfig& loaded, Faults& faults) {
  TrainDecoderConfig& config = loaded.config;
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
  return parse_config<LoadedDecoderConfig>(json, origin, options, check_decoder);
}

LoadedDecoderConfig load_decoder_config(const std::string& path, const ReadOptions& options) {
  return parse_decoder_config(read_config_file(path), path, options);
}

}  // namespace dalle2
