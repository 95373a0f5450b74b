// SPDX-License-Identifier: MIT
// `shards encode`: the shards of a decoder's config again, with the latents of its first unet.
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/module_state.h"
#include "data/pictures/planes.h"
#include "data/pictures/preprocess.h"
#include "data/shards/shard_walk.h"
#include "data/shards/shards.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "model/resize.h"
#include "net/http_stream.h"
#include "net/sha256.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"
#include "run/device/device.h"
#include "tracker/public_config.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// What a folder of shards was made with, in the file latents.json beside them.
constexpr const char* kManifest = "latents.json";

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
  double mean() const { return sum / count; }
  double deviation() const { return std::sqrt(std::max(0.0, squares / count - mean() * mean())); }
};

struct Encoded {
  int64_t samples = 0, left_out = 0, written = 0, kept = 0, lost = 0;
  Spread spread;
};

/// The samples of a shard to its end, or to where it cannot be read.
class WholeShard {
 public:
  WholeShard(const std::string& url, bool allow_pipe) : url_(url), allow_pipe_(allow_pipe) {}

  /// @throws StoppedError
  std::optional<GroupedSample> next() {
    try {
      if (!reader_) reader_ = open_shard(url_, {}, {.allow_pipe = allow_pipe_});
      return reader_->next();
    } catch (const NetworkError& error) {
      fault_ = error.what();
      is_unreachable_ = dynamic_cast<const HttpStatusError*>(&error) == nullptr;
    } catch (const DataError& error) {
      fault_ = error.what();
    }
    return std::nullopt;
  }
  /// Empty if all could be read.
  const std::string& fault() const { return fault_; }
  /// Nobody answered.
  bool is_unreachable() const { return is_unreachable_; }

 private:
  std::string url_, fault_;
  bool allow_pipe_, is_unreachable_ = false;
  std::unique_ptr<SampleReader> reader_;
};

class LatentShards {
 public:
  LatentShards(const LoadedDecoderConfig& loaded, const ShardsEncodeCommand& command)
      : data_(loaded.config.data),
        stage_(loaded.plan.stages.front()),
        device_(choose_device(command.device, "--device", WithoutGpu::kError)),
        vae_(load_latent_vae(*stage_.latent)),
        transforms_(nlohmann::ordered_json::parse(loaded.full_json)["data"]["preprocessing"]),
        preprocess_(data_.preprocessing,
                    {.apply_exif = data_.apply_exif, .fast_jpeg = data_.fast_jpeg},
                    data_.max_transform_pixels) {
    vae_->to(device_);
    vae_->eval();
  }

  /// What makes these latents what they are. @param base_url of the shards, as it may be shown
  std::string manifest(const nlohmann::ordered_json& base_url) const {
    std::string bytes;
    for (const auto& [name, tensor] : state_dict(*vae_)) {
      const at::Tensor plain = tensor.cpu().contiguous();
      bytes += name;
      bytes.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
    }
    nlohmann::ordered_json made_with;
    made_with["vae_sha256"] = to_hex(sha256(bytes));
    made_with["image_size"] = stage_.image_size;
    made_with["preprocessing"] = transforms_;
    made_with["webdataset_base_url"] = base_url;
    return made_with.dump(2) + "\n";
  }

  /// Writes the shard again, with latents. What cannot be decoded is left out; of a shard that cannot
  /// be read to its end nothing is written.
  void encode(const std::string& url, const std::string& out, WholeShard& shard, Encoded& all) {
    TarWriter tar(out);
    Encoded of_shard;
    std::vector<GroupedSample> waiting;
    std::vector<at::Tensor> images;
    const auto write = [&] {
      if (waiting.empty()) return;
      const at::Tensor latents = encode(images);
      of_shard.spread.add(latents);
      for (size_t i = 0; i < waiting.size(); ++i) {
        const at::Tensor latent = latents[static_cast<int64_t>(i)].contiguous();
        waiting[i].fields["latent.npy"] =
            format_npy_float32(latent.sizes().vec(), latent.const_data_ptr<float>());
        for (const auto& [field, content] : waiting[i].fields) {
          tar.add(waiting[i].key + "." + field, content);
        }
      }
      of_shard.samples += std::ssize(waiting);
      waiting.clear();
      images.clear();
    };
    while (std::optional<GroupedSample> sample = shard.next()) {
      try {
        images.push_back(picture_of(*sample));
      } catch (const DataError& error) {
        ++of_shard.left_out;
        log_warning("data", "{}: left out: {}", public_url(url), error.what());
        continue;
      }
      waiting.push_back(*std::move(sample));
      if (std::ssize(waiting) == data_.batch_size) write();
      log_live(fmt::format(
          "{}: {}", public_url(url), counted(all.samples + of_shard.samples, "latent")));
    }
    if (!shard.fault().empty()) return;
    write();
    tar.commit();
    ++all.written;
    all.samples += of_shard.samples;
    all.left_out += of_shard.left_out;
    all.spread.add(of_shard.spread);
  }

 private:
  /// @return [C, H, W] in [0, 1]
  at::Tensor picture_of(const GroupedSample& sample) const {
    const std::string* content = sample.find({"jpg", "jpeg", "png", "webp"});
    if (content == nullptr) {
      throw DataError("sample {}: no field jpg, jpeg, png or webp", printable(sample.key));
    }
    const Image picture = preprocess_.apply(*content, sample.key, [] { return 0U; });
    at::Tensor planes = at::empty({3, picture.height, picture.width}, at::kFloat);
    write_planes(picture, planes.mutable_data_ptr<float>());
    return planes;
  }

  /// @return [B, D, h, w] on the CPU, not scaled
  at::Tensor encode(const std::vector<at::Tensor>& images) {
    const torch::NoGradGuard no_grad;
    const at::Tensor all = resize_image_to(
        at::stack(images).to(device_), stage_.image_size, std::nullopt, /*nearest=*/true);
    return vae_->encode_unquantized(all).cpu();
  }

  const ShardDataConfig& data_;
  const UnetPlan& stage_;
  at::Device device_;
  VqganVae vae_;
  nlohmann::ordered_json transforms_;
  Preprocess preprocess_;
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
        "{}: /data/preprocessing/{}: makes something else of a picture each time, so it has no one "
        "latent\n  Leave the transform out, or encode while training (no data.latents_in_tar).",
        printable(command.config_path),
        enum_names<TransformKind>[static_cast<size_t>(transform.kind)]);
  }
  return loaded;
}

/// The shards that are there, each with the name that it gets. @throws ConfigError for two of one name
std::map<std::string, std::string> shards_by_name(const ShardDataConfig& data) {
  const ShardList list(data);
  std::vector<uint32_t> positions(static_cast<size_t>(list.size()));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<uint32_t>(i);
  std::map<std::string, std::string> shards;
  for (const uint32_t position : list.existing(positions)) {
    const std::string url = list.url(position);
    const int64_t number = shard_number(url);
    const std::string name = number < 0 ? fs::path(url).filename().string()
                                        : fmt::format("{:0{}}.tar", number, data.shard_width);
    if (const auto [other, is_new] = shards.emplace(name, url); !is_new) {
      throw ConfigError(
          "/data/webdataset_base_url: the shards {} and {} have the same number, and would be the "
          "same file\n  Encode them one after the other, into two folders.",
          public_url(other->second),
          public_url(url));
    }
  }
  if (shards.empty()) throw DataError("/data/webdataset_base_url: none of the shards is there");
  return shards;
}

/// Writes the manifest into the folder, unless it is there. @throws ConfigError for a folder that
/// holds shards which no call with this manifest wrote
void claim_folder(const ShardsEncodeCommand& command,
                  const std::string& manifest,
                  const std::map<std::string, std::string>& shards) {
  const std::string& folder = command.out_folder;
  const std::string path = (fs::path(folder) / kManifest).string();
  std::ifstream in(path, std::ios::binary);
  const std::string there{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (there == manifest) return;
  const std::vector<std::string> others = names_ending(folder, ".tar");
  if (!command.overwrite && !others.empty()) {
    throw ConfigError(
        "--out {}: expected no shards but those that this call makes, found {}, {}\n  Choose another "
        "folder, or remove them with --overwrite.",
        printable(folder),
        short_list(others),
        in ? fmt::format("with latents of another VAE, image size, preprocessing or set ({})",
                         kManifest)
           : fmt::format("and no {} beside {}", kManifest, others.size() == 1 ? "it" : "them"));
  }
  for (const std::string& name : others) {
    const fs::path path_there = fs::path(folder) / name;
    for (const auto& [of_result, url] : shards) {
      std::error_code ignored;
      if (!is_local_url(url) || !fs::equivalent(local_path(url), path_there, ignored)) continue;
      throw ConfigError(
          "--out {}: holds {}, which is one of the shards to encode\n  Choose another folder.",
          printable(folder),
          printable(name));
    }
  }
  if (!others.empty()) std::printf("removing: %s\n", short_list(others).c_str());
  for (const std::string& name : others) remove_file((fs::path(folder) / name).string());
  write_file_atomically(path, manifest);
}

/// Encodes what is not in the folder yet. A shard that cannot be read is passed over, as in a
/// training. @return whether a signal stopped it
/// @throws NetworkError (shard after shard is out of reach), DataError (not one can be read)
bool encode_all(LatentShards& encoder,
                const std::map<std::string, std::string>& shards,
                const ShardsEncodeCommand& command,
                bool allow_pipe,
                Encoded& all) {
  const int64_t most_unreachable = std::min(kMostUnreachable, std::ssize(shards));
  int64_t unreachable_in_a_row = 0;
  for (const auto& [name, url] : shards) {
    if (stop_requested() != 0) return true;
    const std::string out = (fs::path(command.out_folder) / name).string();
    if (fs::exists(out)) {
      ++all.kept;
      continue;
    }
    WholeShard shard(url, allow_pipe);
    try {
      encoder.encode(url, out, shard, all);
    } catch (const StoppedError&) {  // it waited for the network
      return true;
    }
    if (shard.fault().empty()) {
      unreachable_in_a_row = 0;
      continue;
    }
    ++all.lost;
    unreachable_in_a_row = shard.is_unreachable() ? unreachable_in_a_row + 1 : 0;
    if (unreachable_in_a_row == most_unreachable) throw NetworkError("{}", shard.fault());
    if (all.lost == std::ssize(shards)) throw DataError("{}", shard.fault());
    log_warning(
        "data", "{}\n  The shard is passed over: no latents of it are written.", shard.fault());
  }
  return false;
}

void print_result(const Encoded& all) {
  std::printf(
      "%s in %s", counted(all.samples, "latent").c_str(), counted(all.written, "shard").c_str());
  if (all.kept > 0)
    std::printf(", %s there already", counted(all.kept, "shard is", "shards are").c_str());
  if (all.left_out > 0) std::printf(", %s left out", counted(all.left_out, "sample").c_str());
  if (all.lost > 0) std::printf(", %s passed over", counted(all.lost, "shard").c_str());
  std::printf("\n");
  if (all.samples == 0) return;
  std::printf("mean %s, standard deviation %s: /decoder/vae/0/scale %s brings them to 1\n",
              short_number(all.spread.mean()).c_str(),
              short_number(all.spread.deviation()).c_str(),
              short_number(1 / all.spread.deviation()).c_str());
}

}  // namespace

ExitCode run_shards_encode(const ShardsEncodeCommand& command) {
  const LoadedDecoderConfig loaded = load_latent_config(command);
  const auto shards = shards_by_name(loaded.config.data);
  LatentShards encoder(loaded, command);
  const auto shown = nlohmann::ordered_json::parse(public_config(loaded.full_json));
  const bool allow_pipe = loaded.config.data.allow_pipe;
  const auto held = hold_shards_folder(command.out_folder);
  claim_folder(command, encoder.manifest(shown["data"]["webdataset_base_url"]), shards);
  Encoded all;
  const bool stopped = encode_all(encoder, shards, command, allow_pipe, all);
  log_live("");
  print_result(all);
  if (stopped) {
    std::printf("stopped by a signal; the same command continues with the next shard\n");
    return ExitCode::kStopped;
  }
  std::printf("train with \"webdataset_base_url\": \"%s\" and \"latents_in_tar\": true\n",
              printable((fs::path(command.out_folder) / "{}.tar").string()).c_str());
  return ExitCode::kDone;
}

}  // namespace dalle2
