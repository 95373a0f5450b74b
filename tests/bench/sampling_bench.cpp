// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include "benches.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/module_state.h"
#include "config/decoder/decoder_run_config.h"
#include "diffusion/decoder/decoder.h"
#include "optim/precision.h"

namespace dalle2 {
namespace {

constexpr int64_t kFirstTimesteps = 2;  ///< of the call that warms up

class SamplingBench final : public Bench {
 public:
  explicit SamplingBench(const SamplingSetting& setting)
      : samples_path_(setting.samples_path),
        timesteps_(setting.timesteps),
        precision_(setting.bf16 ? MixedPrecision::bf16 : MixedPrecision::no) {
    decoder_ = Decoder(load_decoder_config(setting.config_path, {}).plan);
    const SafetensorsFile given = read_safetensors(setting.given_path);
    load_state_dict(*decoder_, given.tensors, "decoder.");
    const auto tensor = [&](const std::string& name) {
      const at::Tensor* found = find_tensor(given.tensors, name);
      return found == nullptr ? at::Tensor() : *found;
    };
    options_.image_embeds = tensor("image_embed");
    options_.text_encodings = tensor("text_encodings");
    options_.init_noise = {tensor("init_noise")};
    options_.cond_scale = setting.cond_scale;
    options_.sampler = "ddim";
  }

  void step() override {
    options_.sample_timesteps = std::optional<int64_t>(warm_ ? timesteps_ : kFirstTimesteps);
    const Autocast autocast(at::kCPU, precision_);
    samples_ = decoder_->sample(options_);
    warm_ = true;
  }

  void finish() override { write_safetensors(samples_path_, {{"samples", samples_}}); }

 private:
  std::string samples_path_;
  int64_t timesteps_;
  MixedPrecision precision_;
  Decoder decoder_ = nullptr;
  DecoderSampleOptions options_;
  at::Tensor samples_;
  bool warm_ = false;
};

}  // namespace

std::unique_ptr<Bench> make_sampling_bench(const SamplingSetting& setting) {
  return std::make_unique<SamplingBench>(setting);
}

}  // namespace dalle2
