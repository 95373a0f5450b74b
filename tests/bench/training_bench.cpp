// SPDX-License-Identifier: MIT
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>

#include "benches.h"
#include "config/prior/prior_run_config.h"
#include "model/random.h"
#include "trainer/decoder_trainer.h"
#include "trainer/prior_trainer.h"

namespace dalle2 {
namespace {

using nlohmann::json;

constexpr int64_t kTextTokens = 77;

class DecoderBench final : public Bench {
 public:
  DecoderBench(const std::string& text, const std::string& path, bool bf16) {
    LoadedDecoderConfig loaded = parse_decoder_config(text, path, {});
    loaded.config.train.mixed_precision = bf16 ? MixedPrecision::bf16 : MixedPrecision::no;
    torch::manual_seed(0);
    Decoder decoder(loaded.plan);
    trainer_ = std::make_unique<DecoderTrainer>(decoder, loaded.config.train, at::kCPU);
    const json config = json::parse(text);
    const json& unet = config["decoder"]["unets"][0];
    const auto batch = config["data"]["batch_size"].get<int64_t>();
    const int64_t side = config["decoder"].contains("image_size")
                             ? config["decoder"]["image_size"].get<int64_t>()
                             : config["decoder"]["image_sizes"].back().get<int64_t>();
    inputs_.images = at::rand({batch, 3, side, side});
    inputs_.image_embeds = at::randn({batch, unet["image_embed_dim"].get<int64_t>()});
    if (unet.contains("text_embed_dim")) {
      inputs_.text_encodings =
          at::randn({batch, kTextTokens, unet["text_embed_dim"].get<int64_t>()});
    }
  }

  void step() override {
    ++number_;
    for (int64_t unet = 1; unet <= trainer_->num_unets(); ++unet) {
      trainer_->step(inputs_, unet, make_generator({0, "train", 0, number_}, at::kCPU));
      RECORD_USER_SCOPE(kUpdateScope);
      trainer_->update(unet);
    }
  }

 private:
  std::unique_ptr<DecoderTrainer> trainer_;
  DecoderInputs inputs_;
  int64_t number_ = 0;
};

class PriorBench final : public Bench {
 public:
  PriorBench(const std::string& text, const std::string& path, bool bf16) {
    LoadedPriorConfig loaded = parse_prior_config(text, path, {});
    loaded.config.train.mixed_precision = bf16 ? MixedPrecision::bf16 : MixedPrecision::no;
    torch::manual_seed(0);
    trainer_ =
        std::make_unique<PriorTrainer>(DiffusionPrior(loaded.plan), loaded.config.train, at::kCPU);
    const PriorConfig& prior = loaded.config.prior;
    const int64_t batch = loaded.config.data.batch_size;
    inputs_.image_embeds = at::randn({batch, prior.image_embed_dim});
    inputs_.text.embeds = at::randn({batch, prior.image_embed_dim});
    if (prior.condition_on_text_encodings) {
      inputs_.text.encodings = at::randn({batch, prior.net.text_len(), prior.image_embed_dim});
    }
  }

  void step() override {
    ++number_;
    trainer_->step(inputs_, make_generator({0, "train", 0, number_}, at::kCPU));
    RECORD_USER_SCOPE(kUpdateScope);
    trainer_->update();
  }

 private:
  std::unique_ptr<PriorTrainer> trainer_;
  PriorInputs inputs_;
  int64_t number_ = 0;
};

}  // namespace

std::unique_ptr<Bench> make_training_bench(const std::string& path, bool bf16) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (json::parse(text).contains("prior")) return std::make_unique<PriorBench>(text, path, bf16);
  return std::make_unique<DecoderBench>(text, path, bf16);
}

}  // namespace dalle2
