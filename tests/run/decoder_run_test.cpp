// SPDX-License-Identifier: MIT
// What a decoder run logs, against values worked out beside it.
#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/module_state.h"
#include "run/decoder/decoder_data.h"
#include "run/kinds.h"
#include "run/shards/shard_run.h"
#include "run/tiny_decoder.h"
#include "run/toy_support.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

ShardData decoder_data_of(const LoadedDecoderConfig& loaded) {
  ShardData data(loaded.config.data, loaded.config.seed, decoder_needs(loaded.config, loaded.plan));
  data.deal();
  return data;
}

void train(const json& config) {
  const LoadedDecoderConfig loaded = parse_decoder_config(config.dump(), "test.json", {});
  const auto run = make_run(loaded, {.quiet = true});
  run->open();
  CHECK(run->run() == ExitCode::kDone);
}

/// The mean over the first `batches` batches of the mean loss of each, of the weights in a
/// checkpoint, with the draws that a validation takes.
double validation_loss(const json& config, size_t batches, int64_t unet = 1) {
  const LoadedDecoderConfig loaded = parse_decoder_config(config.dump(), "test.json", {});
  Decoder decoder(loaded.plan);
  const std::string out = config["tracker"]["data_path"];
  const Value checkpoint = read_checkpoint(out + "/checkpoint.pth");
  load_state_dict(*decoder, Cursor(checkpoint).at("model").as_state_dict());
  decoder->eval();
  const ShardData data = decoder_data_of(loaded);
  const auto loader = data.loader("val", loaded.config.data.batch_size, /*in_order=*/true);
  loader->start_epoch(0);
  const torch::NoGradGuard no_grad;
  const std::string purpose = fmt::format("validate unet {}", unet);
  double sum = 0;
  int64_t samples = 0;
  for (size_t i = 0; i < batches; ++i) {
    const std::optional<Batch> batch = loader->next();
    REQUIRE(batch);
    const at::Generator random =
        make_generator({.seed = 5, .purpose = purpose, .epoch = 0, .step = samples}, at::kCPU);
    sum += decoder->forward(to_inputs(*batch, at::kCPU), unet, random).item<double>();
    samples += batch->size();
  }
  return sum / static_cast<double>(batches);
}

TEST_CASE("the validation loss is the mean over all batches of the shards for validation") {
  const TempDir folder;
  const json config = tiny_decoder_config(folder.path());
  train(config);
  const auto logged_losses = logged(folder / "out", "Unet 0 Validation Loss");
  REQUIRE(logged_losses.size() == 1);
  // Seven samples in batches of 3: the last one of a single sample counts as much as the others.
  CHECK(logged_losses[0] == Approx(validation_loss(config, 3)).epsilon(1e-6));
  CHECK(Cursor(read_pth(folder / "out/checkpoint.pth")).at("validation_losses").at(0).as_double() ==
        Approx(logged_losses[0]).epsilon(1e-6));
}

/// With two unets, the first of pictures of 4 pixels.
void make_cascade(json& config) {
  config["decoder"]["unets"] = {tiny_unet(8), tiny_unet(8)};
  config["decoder"].erase("image_size");
  config["decoder"]["image_sizes"] = {4, 8};
  config["decoder"]["sample_timesteps"] = {3, 3};
}

TEST_CASE("each unet of a cascade is trained and validated as the stage that it is") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  make_cascade(config);
  train(config);
  for (const int64_t unet : {1, 2}) {
    CAPTURE(unet);
    CHECK(logged(folder / "out", fmt::format("Unet {} Training Loss", unet - 1)).size() == 1);
    const auto losses = logged(folder / "out", fmt::format("Unet {} Validation Loss", unet - 1));
    REQUIRE(losses.size() == 1);
    CHECK(losses[0] == Approx(validation_loss(config, 3, unet)).epsilon(1e-6));
  }
}

TEST_CASE("validation_samples ends a validation with the batch that reaches it") {
  for (const auto& [most, batches] : {std::pair<int64_t, size_t>{3, 1}, {4, 2}, {6, 2}, {7, 3}}) {
    const TempDir folder;
    json config = tiny_decoder_config(folder.path());
    config["train"]["validation_samples"] = most;
    train(config);
    CAPTURE(most);
    const auto losses = logged(folder / "out", "Unet 0 Validation Loss");
    REQUIRE(losses.size() == 1);
    CHECK(losses[0] == Approx(validation_loss(config, batches)).epsilon(1e-6));
  }
}

TEST_CASE("an update weighs each of its batches by its samples, the last short one, too") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  config["data"]["batch_size"] = 4;
  config["train"]["grad_accum_every"] = 6;
  train(config);
  const auto losses = logged(folder / "out", "Unet 0 Training Loss");
  REQUIRE(losses.size() == 1);

  const LoadedDecoderConfig loaded = parse_decoder_config(config.dump(), "test.json", {});
  torch::manual_seed(5);
  Decoder decoder(loaded.plan);
  const ShardData data = decoder_data_of(loaded);
  const auto loader = data.loader("train", 4, /*in_order=*/false);
  loader->start_epoch(0);
  const torch::NoGradGuard no_grad;
  double sum = 0;
  int64_t samples = 0;
  std::vector<int64_t> sizes;
  while (const std::optional<Batch> batch = loader->next()) {
    const at::Generator random = make_generator(
        {.seed = 5, .purpose = "train unet 1", .epoch = 0, .step = samples}, at::kCPU);
    const double loss = decoder->forward(to_inputs(*batch, at::kCPU), 1, random).item<double>();
    sum += loss * static_cast<double>(batch->size());
    samples += batch->size();
    sizes.push_back(batch->size());
  }
  REQUIRE(sizes == std::vector<int64_t>{4, 4, 4, 4, 4, 1});
  CHECK(losses[0] == Approx(sum / 21).epsilon(1e-6));
}

TEST_CASE("the best validation loss is the least") {
  ShardPosition position;
  CHECK_FALSE(position.is_best());  // there is none
  position.validation_loss = 0.4;
  CHECK(position.is_best());
  position.validation_losses = {0.5, 0.6};
  CHECK(position.is_best());
  position.validation_losses = {0.5, 0.3};
  CHECK_FALSE(position.is_best());
  position.validation_losses = {0.4};
  CHECK_FALSE(position.is_best());
}

TEST_CASE("a run keeps the slices that it has dealt where its data are others than a file's") {
  ShardPosition position;
  position.slices = 7;
  position.restart_with_other_data();
  CHECK(position.slices == 0);  // a start deals as one that begins
  position.dealt = 3;
  position.reset();
  position.slices = 7;
  position.restart_with_other_data();
  CHECK(position.slices == 3);
}

TEST_CASE("a mask that leaves the second of two unets out trains and draws with the first alone") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  make_cascade(config);
  config["train"]["unet_training_mask"] = {true, false};
  train(config);
  CHECK(logged(folder / "out", "Unet 0 Training Loss").size() == 1);
  CHECK(logged(folder / "out", "Unet 1 Training Loss").empty());
  CHECK(logged(folder / "out", "Unet 1 Validation Loss").empty());
  const Value checkpoint = read_pth(folder / "out/checkpoint.pth");
  CHECK(Cursor(checkpoint).at("optim1").is_none());
  CHECK_FALSE(Cursor(checkpoint).at("optim0").is_none());
  for (const auto& [name, tensor] : Cursor(checkpoint).at("model").as_state_dict())
    CHECK_FALSE(name.starts_with("unets.1."));
  // Pairs "real | drawn" of 4 pixels, with a border of 2 about each.
  size_t pictures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "out/images")) {
    if (entry.path().filename().string().find("Grid") != std::string::npos) continue;
    const Image picture = decode_image(read_file(entry.path().string()), entry.path().string());
    CHECK(picture.width == 2 + 2 * (4 + 2));
    CHECK(picture.height == 4 + 2 * 2);
    ++pictures;
  }
  CHECK(pictures == 2);  // one of the training shards, one of the test shards
}

TEST_CASE("the config of a run is in its folder as it was, and in its checkpoints in full") {
  const TempDir folder;
  const json config = tiny_decoder_config(folder.path());
  train(config);
  CHECK(json::parse(read_file(folder / "out/decoder_config.json")) == config);
  const Value checkpoint = read_pth(folder / "out/checkpoint.pth");
  const Cursor full = Cursor(checkpoint).at("config");
  CHECK(full.at("train").at("max_grad_norm").as_double() == 0.5);  // a default
  CHECK(full.at("seed").as_int() == 5);
}

TEST_CASE("the state at the end of an epoch is saved before its pictures are drawn") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  config["train"]["async_save"] = false;
  train(config);
  const auto saved = std::filesystem::last_write_time(folder / "out/checkpoint.pth");
  size_t pictures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "out/images")) {
    CHECK(entry.last_write_time() >= saved);
    ++pictures;
  }
  CHECK(pictures == 4);
}

}  // namespace
}  // namespace dalle2::test
