// SPDX-License-Identifier: MIT
#include "run/vae/vae_run.h"

#include <torch/script.h>

#include "dist/ranks_in_threads.h"
#include "run/decoder/decoder_data.h"
#include "run/loop/run_position.h"
#include "run/toy_support.h"
#include "support/captured_log.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "tracker/log/log_file.h"

namespace dalle2::test {
namespace {

constexpr int64_t kCodes = 4, kLength = 3;

VaeLosses losses_of(double value, std::vector<int64_t> indices) {
  const at::Tensor loss = at::scalar_tensor(value, at::kFloat);
  return {.total = loss,
          .reconstruction = loss,
          .perceptual = {},
          .generator = {},
          .gan_weight = {},
          .quantizer = loss * 2,
          .indices = at::tensor(indices, at::kLong).view({1, 1, -1})};
}

void update(VaeDiagnostics& diagnostics, double value, std::vector<int64_t> indices) {
  ProcessGroup alone;
  diagnostics.add(losses_of(value, std::move(indices)), kCodes);
  diagnostics.end_update(alone, at::kCPU, kCodes, kLength);
}

std::string record_of(VaeDiagnostics diagnostics) {
  ProcessGroup alone;
  std::string text;
  for (const auto& [name, value] : diagnostics.take(alone))
    text += fmt::format("{} {:.4g}; ", name, std::get<double>(value));
  return text;
}

/// What a checkpoint has of a position.
Value saved(VaePosition& position) {
  Dict own, root;
  for (auto& [key, value] : position_entries(position, own)) root.set(key, value);
  root.set(kOwnState, own);
  return root;
}

TEST_CASE("a VAE's log has means of the last updates and the use of codes since the last record") {
  VaeDiagnostics diagnostics;
  CHECK(record_of(diagnostics).empty());
  for (const double value : {9.0, 1.0, 2.0, 3.0}) update(diagnostics, value, {0, 0, 1, 1});
  CHECK(record_of(diagnostics) ==
        "reconstruction_loss 2; quantizer_loss 4; codebook_usage 0.5; codebook_perplexity 2; ");
  ProcessGroup alone;
  diagnostics.take(alone);
  update(diagnostics, 4, {3, 3});
  CHECK(record_of(diagnostics) ==
        "reconstruction_loss 3; quantizer_loss 6; codebook_usage 0.25; codebook_perplexity 1; ");
}

TEST_CASE("an update that is not finite has no part in what a VAE's log says") {
  VaeDiagnostics diagnostics;
  update(diagnostics, 1, {0, 1});
  update(diagnostics, NAN, {2, 3});
  update(diagnostics, 3, {0, 1});
  CHECK(record_of(diagnostics) ==
        "reconstruction_loss 2; quantizer_loss 4; codebook_usage 0.5; codebook_perplexity 2; ");
}

TEST_CASE("a VAE's position takes what its log says through a checkpoint, and back") {
  ProcessGroup alone;
  VaePosition position;
  position.step = 7;
  position.best_validation_loss = 0.5;
  update(position.diagnostics, 1, {0, 1});
  position.gather(alone);
  const Value checkpoint = saved(position);
  VaePosition other;
  update(other.diagnostics, 100, {3, 3});
  read_position(other, Cursor(checkpoint));
  CHECK(other.best_validation_loss == 0.5);
  for (VaePosition* each : {&position, &other}) update(each->diagnostics, 2, {1, 1});
  CHECK(record_of(position.diagnostics) == record_of(other.diagnostics));
  CHECK(record_of(other.diagnostics).starts_with("reconstruction_loss 1.5; "));
  other.reset();
  CHECK(record_of(other.diagnostics).empty());
}

TEST_CASE("what a VAE's checkpoint has for its log in another form is refused by its entry") {
  const auto refusal = [](const char* key, const at::Tensor& tensor) {
    Dict own, root;
    own.set(key, tensor);
    root.set(kOwnState, own);
    const Value checkpoint(root);
    VaePosition position;
    return test::message_of<DataError>(
        [&] { read_position(position, Cursor(checkpoint, "vae.pth")); });
  };
  CHECK(refusal("recent_diagnostics", at::zeros({2, 3})) ==
        "vae.pth: /dalle2_train/recent_diagnostics: expected a tensor [-1, 5] (-1: of any extent), "
        "got [2, 3]");
  CHECK(refusal("code_uses", at::zeros({4, 1})) ==
        "vae.pth: /dalle2_train/code_uses: expected a tensor [-1] (-1: of any extent), got [4, 1]");
}

TEST_CASE("a perceptual network whose features are not finite is an error before a VAE trains") {
  const TempDir folder;
  TrainVaeConfig config;
  config.vae.use_vgg_and_gan = true;
  config.data.image_size = 8;
  config.train.vgg_path = folder.path() + "/vgg.pt";
  const auto save = [&](const char* body) {
    torch::jit::Module module("Features");
    module.define(std::string("def forward(self, images):\n  return ") + body + "\n");
    module.save(*config.train.vgg_path);
  };
  save("images.flatten(1) * 2");
  CHECK(perceptual_features(config, at::kCPU) != nullptr);
  save("images.flatten(1).sub(9).log()");
  CHECK_THROWS_WITH(perceptual_features(config, at::kCPU),
                    Catch::Contains("expected features [2, F], got features that are not finite "
                                    "(NaN or infinite)\n  scripts/export_vgg.py"));
}

PartValues values_of(int64_t part, double loss, double rate) {
  PartValues values;
  values.part = part;
  values.loss.mean = loss;
  values.learning_rate = rate;
  values.grad_norm = 0.42;
  return values;
}

TEST_CASE("the line of a step has loss, rate, gradient and speed") {
  CHECK(record_line(shown_step({values_of(1, 0.30651, 0.00198)}, 108.2), 110) ==
        "step 110  loss 0.3065  lr 1.98e-3  grad 0.42  108 samples/s");
}

TEST_CASE("of several parts the line has a value each, one rate where it is the same") {
  std::vector<PartValues> parts = {values_of(1, 0.5, 1e-4),
                                   values_of(2, std::numeric_limits<double>::quiet_NaN(), 1e-4)};
  parts[1].skipped_updates = 2;
  parts[1].grad_norm = 1234.5;
  CHECK(record_line(shown_step(parts, 1234), 3) ==
        "step 3  loss 0.5 nan  lr 1e-4  grad 0.42 1,235  1,234 samples/s  2 skipped");
  parts[1].learning_rate = 2e-4;
  CHECK(record_line(shown_step(parts, 5), 3) ==
        "step 3  loss 0.5 nan  lr 1e-4 2e-4  grad 0.42 1,235  5 samples/s  2 skipped");
}

TEST_CASE("before the first update there is no gradient, and the log has what there is") {
  PartValues values = values_of(1, std::numeric_limits<double>::quiet_NaN(), 1e-4);
  values.grad_norm.reset();
  values.loss.left_out = 3;
  CHECK(record_line(shown_step({values}, 5), 0) == "step 0  loss nan  lr 1e-4  5 samples/s");
  PartMetricNames names;
  names.prefix = "Part 0 ";
  LogRecord record;
  add_part_values(record, {values}, {names});
  CHECK(
      format_record(record, 0, 0) ==
      R"({"Part 0 Losses Not Finite": 3, "Part 0 Learning Rate": 0.0001, "step": 0, "time": 0.000})");
}

TEST_CASE("the names of a part are a prefix and words in a style") {
  CHECK(PartMetricNames{"Unet 0 "}.of("EMA decay") == "Unet 0 EMA Decay");
  CHECK(PartMetricNames{"Unet 1 "}.of("validation loss") == "Unet 1 Validation Loss");
  CHECK(PartMetricNames{"tracking/", NameStyle::kHyphen}.of("EMA decay") == "tracking/ema-decay");
  CHECK(PartMetricNames{"discr_", NameStyle::kUnderscore}.of("losses not finite") ==
        "discr_losses_not_finite");
}

TEST_CASE("a run prints a line a record of its steps, and with --quiet none of them") {
  for (const bool quiet : {false, true}) {
    CAPTURE(quiet);
    const test::TempDir folder;
    test::ToyConfig config = test::toy_config(folder.path());
    config.quiet = quiet;
    config.train.log_every_n_updates = 2;
    test::CapturedLog log;
    test::ToyRun(config).run();
    std::vector<std::string> steps;
    for (const auto& line : log.lines()) {
      CHECK(line.text.find_first_of("{}\"") == std::string::npos);
      if (line.text.starts_with("step ")) steps.push_back(line.text);
    }
    const auto training = std::count_if(steps.begin(), steps.end(), [](const auto& line) {
      return line.find("  loss ") != std::string::npos;
    });
    CHECK(training == (quiet ? 0 : 3 * config.train.epochs));
    REQUIRE_FALSE(steps.empty());
    CHECK(log.count("Validation Loss") == config.train.epochs);
    if (quiet) continue;
    CHECK_THAT(
        steps.front(),
        Catch::Matches(R"(step 1  loss [\d.,]+  lr 0\.05  grad [\d.,]+  [\d.,]+ samples/s)"));
  }
}

LossWindow window_of(const std::vector<double>& losses) {
  LossWindow window(2, 10, at::kCPU);
  for (const double loss : losses) window.push(2, at::scalar_tensor(loss, at::kFloat));
  return window;
}

TEST_CASE("the mean is of the last ten losses of a part") {
  LossWindow window = window_of({100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(window.average(2).mean == 5.5);
  CHECK(window.average(2).left_out == 0);
  CHECK(std::isnan(window.average(1).mean));
}

TEST_CASE("losses that are not finite are counted and have no part in the mean") {
  const LossAverage average = window_of({1, NAN, 3, INFINITY}).average(2);
  CHECK(average.mean == 2);
  CHECK(average.left_out == 2);
  CHECK(std::isnan(window_of({NAN}).average(2).mean));
}

TEST_CASE("a sum of losses has the digits of a double, and each loss counts as often as it says") {
  LossSum sum;
  CHECK(sum.value() == 0);
  sum.add(at::scalar_tensor(0.1, at::kFloat), 3);
  sum.add(at::scalar_tensor(1e-9, at::kFloat));
  CHECK(sum.value() == 3 * double{0.1F} + double{1e-9F});
  sum.add(at::scalar_tensor(NAN, at::kFloat));
  CHECK(std::isnan(sum.value()));
}

TEST_CASE("losses go into a checkpoint and come back") {
  const Value saved = window_of({1, 2, 3}).state();
  LossWindow window = window_of({7});
  window.load(Cursor(saved));
  CHECK(window.average(2).mean == 2);
  CHECK(std::isnan(window.average(1).mean));
}

Batch batch_with(const std::vector<std::string>& captions,
                 const at::Tensor& images,
                 const at::Tensor& embeds) {
  Batch batch;
  batch.images = images;
  batch.image_embeds = embeds;
  batch.captions = captions;
  for (size_t i = 0; i < captions.size(); ++i) batch.keys.push_back("key " + std::to_string(i));
  return batch;
}

TEST_CASE("the examples are rank 0's on all ranks, whatever the others have read") {
  const at::Tensor images = at::arange(24, at::kFloat).view({2, 3, 2, 2});
  const at::Tensor embeds = at::arange(6, at::kFloat).view({2, 3});
  std::array<std::optional<Batch>, 3> found;
  as_ranks(3, [&](ProcessGroup& group) {
    std::optional<Batch> own;  // rank 2 could read none
    if (group.is_main()) own = batch_with({"a", ""}, images, embeds);
    if (group.rank() == 1) own = batch_with({""}, images.narrow(0, 1, 1), {});
    found[static_cast<size_t>(group.rank())] = batch_of_main(group, std::move(own));
  });
  for (const std::optional<Batch>& each : found) {
    REQUIRE(each);
    CHECK(at::equal(each->images, images));
    CHECK(at::equal(each->image_embeds, embeds));
    CHECK_FALSE(each->text_encodings.defined());
    CHECK(each->captions == std::vector<std::string>{"a", ""});
    CHECK(each->keys == std::vector<std::string>{"key 0", "key 1"});
  }
}

TEST_CASE("where rank 0 has no example no rank has") {
  std::array<bool, 2> found = {true, true};
  as_ranks(2, [&](ProcessGroup& group) {
    std::optional<Batch> own;
    if (!group.is_main()) own = batch_with({""}, at::zeros({1, 3, 2, 2}), {});
    found[static_cast<size_t>(group.rank())] = batch_of_main(group, std::move(own)).has_value();
  });
  CHECK(found == std::array<bool, 2>{false, false});
}

}  // namespace
}  // namespace dalle2::test
