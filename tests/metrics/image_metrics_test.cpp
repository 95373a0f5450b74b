// SPDX-License-Identifier: MIT
#include "metrics/image_metrics.h"

#include <torch/version.h>
#include <csignal>

#include "base/stop_signal.h"
#include "dist/ranks_in_threads.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

/// A stop signal that came, as long as it lives.
class RequestedStop {
 public:
  RequestedStop() {
    install_stop_signals();
    std::raise(SIGTERM);
  }
  ~RequestedStop() {
    clear_stop_request();
    uninstall_stop_signals();
  }
  RequestedStop(const RequestedStop&) = delete;
  RequestedStop& operator=(const RequestedStop&) = delete;
};

DecoderEvaluateConfig all_metrics() {
  DecoderEvaluateConfig config;
  config.FID.emplace().feature = InceptionFeature::k64;
  config.FID->feature_extractor_weights_path = fixture_folder("feature_networks") + "/ours.pt";
  config.IS.emplace().splits = 3;
  config.KID.emplace().subset_size = 6;
  config.KID->subsets = 4;
  config.PR.emplace();
  config.FD.emplace().feature_extractor_weights_path =
      fixture_folder("feature_networks") + "/encoder.pt";
  config.FD->image_size = 40;
  config.LPIPS.emplace().weights_path = fixture_folder("feature_networks") + "/lpips.pt";
  return config;
}

struct Pairs {
  at::Tensor index, real, generated;
  Pairs rows(std::vector<int64_t> chosen) const {
    const at::Tensor at = torch::tensor(chosen, at::kLong);
    return {index.index_select(0, at), real.index_select(0, at), generated.index_select(0, at)};
  }
};

Pairs make_pairs(int64_t count, int64_t channels = 3) {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(9);
  return {torch::arange(count),
          torch::rand({count, channels, 12, 12}, random),
          torch::rand({count, channels, 12, 12}, random)};
}

void show(ImageMetrics& metrics, const Pairs& pairs) {
  metrics.update(pairs.index, pairs.real, pairs.generated);
}

void check_same(const MetricValues& found, const MetricValues& expected) {
  REQUIRE(found.values.size() == expected.values.size());
  for (size_t i = 0; i < found.values.size(); ++i) {
    INFO(expected.values[i].first);
    CHECK(found.values[i].first == expected.values[i].first);
    CHECK(found.values[i].second == Approx(expected.values[i].second).epsilon(1e-6));
  }
}

TEST_CASE("the CLIP score is that of torchmetrics, over the pictures with a caption") {
  DecoderEvaluateConfig config;
  config.clip_score.emplace();
  const Pairs pairs = make_pairs(5);
  const auto score_of = [&](std::vector<float> cosines) {
    ImageMetrics metrics(config, 12, at::kCPU, 3);
    metrics.update(pairs.index, pairs.real, pairs.generated, torch::tensor(cosines));
    return metrics.compute();
  };
  // max(100 * mean, 0): a negative cosine counts as it is.
  const MetricValues found = score_of({0.3F, 0.2F, -0.1F, 0.25F, 0.15F});
  REQUIRE(found.values.size() == 1);
  CHECK(found.values[0].first == "CLIP_score");
  CHECK(found.values[0].second == Approx(16).epsilon(1e-6));
  CHECK(found.notes.empty());
  CHECK(score_of({-0.3F, 0.1F, -0.1F, 0, 0}).values.at(0).second == 0);
  const MetricValues some = score_of({0.3F, NAN, 0.1F, NAN, NAN});
  CHECK(some.images == 5);
  CHECK(some.values.at(0).second == Approx(20).epsilon(1e-6));
  CHECK(some.notes == std::vector<std::string>{"CLIP_score: of 2 images, as 3 have no caption"});
  const MetricValues none = score_of({NAN, NAN, NAN, NAN, NAN});
  CHECK(none.values.empty());
  CHECK(none.faults == std::vector<std::string>{"CLIP_score: not one sample has a caption"});
  config.clip_score->own_sha256 = "0123456789abcdef0123";
  CHECK(ImageMetrics(config, 12, at::kCPU, 3).description() == "CLIP 0123456789abcdef");
}

TEST_CASE("the CLIP score leaves out a pair that is not finite, and is begun anew") {
  DecoderEvaluateConfig config;
  config.clip_score.emplace();
  Pairs pairs = make_pairs(2);
  pairs.generated[1].fill_(NAN);
  ImageMetrics metrics(config, 12, at::kCPU, 3);
  metrics.update(pairs.index, pairs.real, pairs.generated, torch::tensor({0.5F, 0.1F}));
  CHECK(metrics.compute().values.at(0).second == Approx(50).epsilon(1e-6));
  metrics.reset();
  const Pairs other = make_pairs(1);
  metrics.update(other.index, other.real, other.generated, torch::tensor({0.1F}));
  CHECK(metrics.compute().values.at(0).second == Approx(10).epsilon(1e-6));
}

TEST_CASE("neither the order nor the batches change a figure") {
  const Pairs pairs = make_pairs(10);
  ImageMetrics whole(all_metrics(), 12, at::kCPU, 3), parts(all_metrics(), 12, at::kCPU, 3);
  show(whole, pairs);
  const MetricValues expected = whole.compute();
  CHECK(expected.images == 10);
  CHECK(expected.values.size() == 10);
  CHECK(expected.faults.empty());
  show(parts, pairs.rows({7, 2, 9}));
  show(parts, pairs.rows({0}));
  show(parts, pairs.rows({1, 3, 4, 5, 6, 8}));
  check_same(parts.compute(), expected);
}

TEST_CASE("rank 0 computes of the pairs of all what one computes, one of them with none") {
  Pairs pairs = make_pairs(8);
  pairs.generated[5].fill_(NAN);
  ImageMetrics alone(all_metrics(), 12, at::kCPU, 3);
  show(alone, pairs);
  const MetricValues expected = alone.compute();
  std::atomic<int> right = 0;
  as_ranks(3, [&](ProcessGroup& group) {
    ImageMetrics metrics(all_metrics(), 12, at::kCPU, 3);
    if (group.rank() == 0) show(metrics, pairs.rows({0, 3, 6, 1, 4}));
    if (group.rank() == 2) show(metrics, pairs.rows({7, 5, 2}));
    metrics.gather(group);
    const MetricValues found = metrics.compute();
    if (!group.is_main()) {
      if (found.images == 0 && found.values.empty()) ++right;
      return;
    }
    bool same =
        found.values.size() == expected.values.size() && found.images == 7 && found.left_out == 1;
    for (size_t i = 0; same && i < found.values.size(); ++i) {
      same = std::abs(found.values[i].second - expected.values[i].second) <=
             1e-6 * std::abs(expected.values[i].second);
    }
    if (same && metrics.known().count() == 7) ++right;
  });
  CHECK(right == 3);
}

TEST_CASE("the features of a real image are computed once, those of a drawn one each time") {
  const Pairs pairs = make_pairs(8);
  ImageMetrics fresh(all_metrics(), 12, at::kCPU, 3), taught(all_metrics(), 12, at::kCPU, 3);
  show(fresh, pairs);
  const NamedFeatures right =
      fresh.known().at(hashes_of((pairs.real * 255).add(0.5).to(at::kByte)));
  CHECK(right.size() == 4);  // 64, 2048, logits and FD
  // What it is taught of pictures 1 and 5 is wrong, and it takes it all the same.
  const std::vector<int64_t> some = {1, 5};
  NamedFeatures wrong;
  for (const auto& [name, rows] : right)
    wrong[name] = rows.index_select(0, torch::tensor(some)) + 1;
  taught.known().add(hashes_of((pairs.rows(some).real * 255).add(0.5).to(at::kByte)), wrong);
  show(taught, pairs.rows({4, 5, 1, 0}));
  show(taught, pairs.rows({6, 7, 2, 3}));
  std::map<std::string, double> expected, found;
  for (const auto& [name, value] : fresh.compute().values) expected[name] = value;
  for (const auto& [name, value] : taught.compute().values) found[name] = value;
  for (const char* changed : {"FID", "KID_mean", "FD"}) {
    INFO(changed);
    CHECK(found.at(changed) != Approx(expected.at(changed)).epsilon(1e-3));
  }
  for (const char* same : {"IS_mean", "LPIPS"}) CHECK(found.at(same) == expected.at(same));
}

TEST_CASE("an evaluation after another has nothing of it") {
  const Pairs pairs = make_pairs(12);
  ImageMetrics used(all_metrics(), 12, at::kCPU, 3), fresh(all_metrics(), 12, at::kCPU, 3);
  show(used, pairs);
  used.reset();
  CHECK(used.compute().images == 0);
  const Pairs some = pairs.rows({0, 1, 2, 3, 4, 5, 6, 7});
  show(used, some);
  show(fresh, some);
  check_same(used.compute(), fresh.compute());
}

TEST_CASE("what cannot be computed from the images is told, and the rest is computed") {
  ImageMetrics metrics(all_metrics(), 12, at::kCPU, 3);
  CHECK(metrics.compute().faults ==
        std::vector<std::string>{"No data to evaluate. Check that your dataloader has shards."});
  CHECK(metrics.compute().values.empty());
  show(metrics, make_pairs(1));
  const MetricValues one = metrics.compute();
  CHECK(one.faults ==
        std::vector<std::string>{"FID: needs at least 2 images, got 1",
                                 "IS: needs at least 6 images (2 for each of the splits), got 1",
                                 "KID: needs at least 6 images (subset_size), got 1",
                                 "PR: needs at least 4 images (neighborhood + 1), got 1",
                                 "FD: needs at least 2 images, got 1"});
  REQUIRE(one.values.size() == 1);
  CHECK(one.values[0].first == "LPIPS");
}

TEST_CASE("a score of parts of one picture each, which is always 1, is left out") {
  DecoderEvaluateConfig config = all_metrics();
  const auto scores = [&](int64_t pictures, int64_t splits) {
    config.IS->splits = splits;
    ImageMetrics metrics(config, 12, at::kCPU, 3);
    show(metrics, make_pairs(pictures));
    const MetricValues found = metrics.compute();
    return std::count_if(found.values.begin(), found.values.end(), [](const auto& value) {
      return value.first.starts_with("IS_");
    });
  };
  CHECK(scores(7, 4) == 0);
  CHECK(scores(8, 4) == 2);
  CHECK(scores(2, 1) == 1);
  CHECK(scores(1, 1) == 0);
}

TEST_CASE("both Frechet distances say that pictures are fewer than features") {
  ImageMetrics metrics(all_metrics(), 12, at::kCPU, 3);
  show(metrics, make_pairs(3));
  std::vector<std::string> told;
  for (const std::string& note : metrics.compute().notes) {
    if (note.find("images are fewer than its") != std::string::npos)
      told.push_back(note.substr(0, note.find(':')));
  }
  CHECK(told == std::vector<std::string>{"FID", "FD"});
}

TEST_CASE("a pair that is not finite is counted, and the figures are those of the rest") {
  const Pairs all = make_pairs(10);
  ImageMetrics rest(all_metrics(), 12, at::kCPU, 3);
  show(rest, all.rows({0, 1, 3, 4, 5, 6, 7, 9}));
  const MetricValues expected = rest.compute();
  CHECK(expected.left_out == 0);
  Pairs pairs = make_pairs(10);
  pairs.real[2][1][3][4] = NAN;
  pairs.generated[2][0][0][0] = INFINITY;
  pairs.generated[8][2][11][11] = -INFINITY;
  ImageMetrics metrics(all_metrics(), 12, at::kCPU, 3);
  CHECK(metrics.update(pairs.index, pairs.real, pairs.generated) == std::vector<int64_t>{2, 8});
  const MetricValues found = metrics.compute();
  check_same(found, expected);
  CHECK(found.images == 8);
  CHECK(found.left_out == 2);
  CHECK(
      std::find(
          found.notes.begin(),
          found.notes.end(),
          "2 of 10 pairs are left out, because a picture, its features or the distance of the two "
          "is not finite (NaN or infinite)") != found.notes.end());
  metrics.reset();
  CHECK(metrics.update(all.index, all.real, all.generated).empty());
  CHECK(metrics.compute().left_out == 0);
}

TEST_CASE("a pair whose features are not finite is left out, and they are not kept") {
  Pairs pairs = make_pairs(6);
  pairs.generated[1].fill_(0.9999F);  // white as bytes
  pairs.real[4].fill_(1);
  DecoderEvaluateConfig config;
  config.FD.emplace().feature_extractor_weights_path =
      fixture_folder("feature_networks") + "/white.pt";
  config.FD->image_size = 16;
  config.FD->mean = {0, 0, 0};
  config.FD->std = {1, 1, 1};
  ImageMetrics metrics(config, 12, at::kCPU, 3);
  CHECK(metrics.update(pairs.index, pairs.real, pairs.generated) == std::vector<int64_t>{1, 4});
  CHECK(metrics.known().count() == 4);
  CHECK(metrics.compute().images == 4);
}

TEST_CASE("where no pair is finite, that is the fault") {
  Pairs pairs = make_pairs(3);
  pairs.generated.fill_(NAN);
  ImageMetrics metrics(all_metrics(), 12, at::kCPU, 3);
  CHECK(metrics.update(pairs.index, pairs.real, pairs.generated).size() == 3);
  const MetricValues found = metrics.compute();
  CHECK(found.values.empty());
  CHECK(found.faults == std::vector<std::string>{"not one pair is finite"});
}

TEST_CASE("a stop signal ends a look at pictures, and each figure, with what was shown as it was") {
  const Pairs pairs = make_pairs(8);
  const DecoderEvaluateConfig all = all_metrics();
  std::vector<DecoderEvaluateConfig> configs(5);
  configs[0].FID = all.FID;
  configs[1].IS = all.IS;
  configs[1].IS->feature_extractor_weights_path = all.FID->feature_extractor_weights_path;
  configs[2].KID = all.KID;
  configs[2].KID->feature_extractor_weights_path = all.FID->feature_extractor_weights_path;
  configs[3].PR = all.PR;
  configs[3].PR->feature_extractor_weights_path = all.FID->feature_extractor_weights_path;
  configs[4].FD = all.FD;
  for (size_t i = 0; i < configs.size(); ++i) {
    INFO(i);
    ImageMetrics metrics(configs[i], 12, at::kCPU, 3);
    show(metrics, pairs);
    {
      const RequestedStop stop;
      CHECK_THROWS_AS(show(metrics, make_pairs(9)), StoppedError);
      CHECK_THROWS_AS(metrics.compute(), StoppedError);
    }
    CHECK(metrics.compute().images == 8);
  }
  ImageMetrics distances(all, 12, at::kCPU, 3);
  const RequestedStop stop;
  CHECK_THROWS_AS(show(distances, pairs), StoppedError);
  for (const DecoderEvaluateConfig& config : configs)
    CHECK_THROWS_AS(ImageMetrics(config, 12, at::kCPU, 3), StoppedError);
}

TEST_CASE("features are kept apart by device, arithmetic and version of LibTorch") {
  const TempDir folder;
  ImageMetrics metrics(all_metrics(), 12, at::kCPU, 3);
  show(metrics, make_pairs(2));
  metrics.known().save(folder.path());
  const auto file = std::filesystem::directory_iterator(folder.path())->path().string();
  const std::string identity = read_safetensors(file).metadata.at("features of");
  CHECK(identity.starts_with(
      fmt::format("format 2; float32 on cpu, LibTorch {}; Inception ", TORCH_VERSION)));
}

TEST_CASE("LPIPS is the mean of the pairs, or their sum") {
  const Pairs pairs = make_pairs(4);
  DecoderEvaluateConfig config;
  config.LPIPS = all_metrics().LPIPS;
  ImageMetrics mean(config, 12, at::kCPU, 0);
  show(mean, pairs);
  config.LPIPS->reduction = LpipsReduction::sum;
  ImageMetrics sum(config, 12, at::kCPU, 0);
  show(sum, pairs);
  const double expected =
      (pairs.real - pairs.generated).mul(2).square().mean({1, 2, 3}).sum().item<double>();
  CHECK(sum.compute().values.at(0).second == Approx(expected).epsilon(1e-5));
  CHECK(mean.compute().values.at(0).second == Approx(expected / 4).epsilon(1e-5));
}

TEST_CASE("grey pictures are shown as three equal channels") {
  const Pairs grey = make_pairs(8, 1);
  Pairs colour = grey;
  colour.real = grey.real.expand({-1, 3, -1, -1});
  colour.generated = grey.generated.expand({-1, 3, -1, -1});
  ImageMetrics of_grey(all_metrics(), 12, at::kCPU, 3), of_colour(all_metrics(), 12, at::kCPU, 3);
  show(of_grey, grey);
  show(of_colour, colour);
  check_same(of_grey.compute(), of_colour.compute());
}

}  // namespace
}  // namespace dalle2::test
