// SPDX-License-Identifier: MIT
// `shards encode`: the shards of a decoder's config again, with the latents of its first unet.
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "model/resize.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/commands/several_processes.h"
#include "run/commands/shard_copies.h"
#include "run/decoder/decoder_data.h"
#include "run/device/device.h"

namespace dalle2 {
namespace {

/// Mean and spread of all values so far.
struct Spread {
  double count = 0, sum = 0, squares = 0;
  void add(const at::Tensor& values) {
    const at::Tensor all = values.to(at::kDouble);
    count += static_cast<double>(all.numel());
    sum += all.sum().item<double>();
    squares += all.square().sum().item<double>();
  }
  void add(const Spread& other) {
    count += other.count;
    sum += other.sum;
    squares += other.squares;
  }
  /// Of the ranks together.
  Spread over(ProcessGroup& group) const {
    const std::vector<double> all = group.sum({count, sum, squares}, "spread of the latents");
    return {all[0], all[1], all[2]};
  }
  double mean() const { return sum / count; }
  double deviation() const { return std::sqrt(std::max(0.0, squares / count - mean() * mean())); }
};

class Latents : public ShardAddition {
 public:
  Latents(const LoadedDecoderConfig& loaded, const std::string& device, const World& world)
      : stage_(loaded.plan.stages.front()),
        device_(device_of_rank(device, "--device", WithoutGpu::kError, world)),
        vae_(load_latent_vae(*stage_.latent)),
        data_(nlohmann::ordered_json::parse(loaded.full_json)["data"]) {
    vae_->to(device_);
    vae_->eval();
  }

  /// What makes these latents what they are. @param base_url of the shards, as it may be shown
  std::string manifest(const nlohmann::ordered_json& base_url) const {
    nlohmann::ordered_json made_with;
    made_with[kVaeOfLatents] = weights_sha256(*vae_);
    made_with["image_size"] = stage_.image_size;
    made_with["preprocessing"] = data_["preprocessing"];
    add_reading(made_with, data_);
    made_with["webdataset_base_url"] = base_url;
    return made_with.dump(2) + "\n";
  }
  /// Of the latents of whole shards.
  const Spread& spread() const { return spread_; }

  void begin_shard() override { of_shard_ = {}; }
  void add(std::vector<GroupedSample>& samples, const at::Tensor& images) override {
    const at::Tensor latents = encode(images);
    of_shard_.add(latents);
    for (size_t i = 0; i < samples.size(); ++i) {
      const at::Tensor latent = latents[static_cast<int64_t>(i)].contiguous();
      samples[i].fields["latent.npy"] =
          format_npy_float32(latent.sizes().vec(), latent.const_data_ptr<float>());
    }
  }
  std::vector<std::string> end_shard(const std::string& /*path*/) override {
    spread_.add(of_shard_);
    return {};
  }

 private:
  /// @return [B, D, h, w] on the CPU, not scaled
  at::Tensor encode(const at::Tensor& images) {
    const torch::NoGradGuard no_grad;
    const at::Tensor all =
        resize_image_to(images.to(device_), stage_.image_size, std::nullopt, /*nearest=*/true);
    return vae_->encode_unquantized(all).cpu();
  }

  const UnetPlan& stage_;
  at::Device device_;
  VqganVae vae_;
  nlohmann::ordered_json data_;  // of the config
  Spread spread_, of_shard_;
};

LoadedDecoderConfig load_latent_config(const ShardsEncodeCommand& command) {
  // Whether the config already asks for latents in its shards does not matter here.
  LoadedDecoderConfig loaded =
      load_decoder_config(command.config_path, with_checkpoints({.overrides = command.overrides}));
  if (!loaded.plan.stages.front().latent) {
    throw ConfigError("{}: /decoder/vae: expected a VAE before the first unet, found none",
                      printable(command.config_path));
  }
  for (const TransformConfig& transform : loaded.config.data.preprocessing) {
    if (!transform.is_random()) continue;
    throw ConfigError(
        "{}: /data/preprocessing/{}: gives a different picture each time, so there is no single "
        "latent\n  Leave the transform out, or encode while training (no data.latents_in_tar).",
        printable(command.config_path),
        enum_names<TransformKind>[static_cast<size_t>(transform.kind)]);
  }
  return loaded;
}

ExitCode encode(const ShardsEncodeCommand& command,
                const LoadedDecoderConfig& loaded,
                ProcessGroup& group) {
  Latents latents(loaded, command.device, group.world());
  const auto shown = nlohmann::ordered_json::parse(public_config(loaded.full_json));
  ShardCopyCounts counts;
  const ExitCode code =
      copy_shards({.data = loaded.config.data,
                   .out_folder = command.out_folder,
                   .device = command.device,
                   .overwrite = command.overwrite,
                   .noun = "latent",
                   .manifest_name = kLatentsManifest,
                   .manifest = latents.manifest(
                       shown["data"][loaded.config.data.folder ? "folder" : "webdataset_base_url"]),
                   .channels = loaded.config.decoder.channels},
                  latents,
                  group,
                  counts);
  if (code == ExitCode::kStopped) return code;
  const Spread spread = latents.spread().over(group);
  if (!group.is_main()) return code;
  if (counts.samples > 0) {
    std::printf("mean %s, standard deviation %s: /decoder/vae/0/scale %s brings them to 1\n",
                short_number(spread.mean()).c_str(),
                short_number(spread.deviation()).c_str(),
                short_number(1 / spread.deviation()).c_str());
  }
  std::printf("train with \"webdataset_base_url\": \"%s\" and \"latents_in_tar\": true\n",
              printable((std::filesystem::path(command.out_folder) / "{}.tar").string()).c_str());
  return code;
}

}  // namespace

ExitCode run_shards_encode(const ShardsEncodeCommand& command) {
  const LoadedDecoderConfig loaded = load_latent_config(command);
  if (command.processes > 1) return launch(command.processes);
  return as_one_of_several(command.device,
                           [&](ProcessGroup& group) { return encode(command, loaded, group); });
}

}  // namespace dalle2
