// SPDX-License-Identifier: MIT
#include "trainer/rank_shards.h"

#include "checkpoint/archive/mapped_file.h"
#include "dist/ranks_in_threads.h"
#include "support/compute_threads.h"
#include "support/temp_dir.h"
#include "support/tiny_clip.h"
#include "trainer/clip_trainer.h"
#include "trainer/lanes.h"
#include "trainer/prior_trainer_fixture.h"
#include "trainer/trained_part.h"

namespace dalle2 {
namespace {

/// A layer that is trained, with an average, on one of several ranks.
struct AveragedLayer {
  AveragedLayer(EmaKind kind, ProcessGroup& group, bool shard_optimizer) {
    AveragesConfig config;
    config.ema.kind = kind;
    part.average = std::make_unique<WeightAverage>(*network, part.parameters, config);
    part.connect(group, {}, {.shard_optimizer = shard_optimizer, .scratch_path = {}});
  }
  // Five rows of the flat buffer.
  std::shared_ptr<torch::nn::LinearImpl> network = std::make_shared<torch::nn::LinearImpl>(64, 64);
  TrainedPart part{{.prefix = "",
                    .network = network,
                    .options = {{}, {.base_lr = 1e-2}, std::numeric_limits<double>::infinity()}},
                   trained_parameters(*network)};
};

TEST_CASE("three ranks put a buffer together of which each has a slice") {
  constexpr int64_t kLength = 7 * kFlatRow + 48, kSpan = 6 * kFlatRow;
  const at::Tensor expected = at::arange(static_cast<double>(kLength), at::kFloat);
  const test::TempDir folder;
  const std::string scratch = folder / "new/scratch";
  std::mutex checks;
  test::as_ranks(3, [&](ProcessGroup& group) {
    const RankShards shards(group, kLength, scratch);
    const at::Tensor own = shards.own().of(expected).clone();
    const at::Tensor shared = at::full({kLength}, -1.0F);
    shards.own().of(shared).copy_(own);
    shards.share(shared, "shared");
    const at::Tensor on_main = shards.gather_to_file(own, kLength, "on rank 0");
    // As of moments, which the buffers behind the parameters have not.
    const FlatSlice of_start = shards.own().overlap({0, kSpan});
    const at::Tensor start =
        shards.gather_to_file(own.narrow(0, 0, of_start.length()), kSpan, "start");
    const std::scoped_lock lock(checks);
    CHECK(at::equal(shared, expected));
    CHECK(on_main.defined() == group.is_main());
    if (!group.is_main()) return;
    CHECK(at::equal(on_main, expected));
    CHECK(at::equal(start, expected.narrow(0, 0, kSpan)));
    CHECK(lies_in_file(on_main));
    CHECK(std::filesystem::is_empty(folder / "new"));
  });
}

TEST_CASE("a file that cannot be made for the whole is rank 0's error, after all have taken part") {
  const test::TempDir folder;
  std::ofstream(folder / "file") << "x";
  std::vector<std::string> faults(2);
  test::as_ranks(2, [&](ProcessGroup& group) {
    const RankShards shards(group, 5 * kFlatRow, folder / "file/scratch");
    try {
      shards.gather_to_file(at::ones({shards.own().length()}), 5 * kFlatRow, "whole");
    } catch (const Error& error) {
      faults[static_cast<size_t>(group.rank())] = error.what();
    }
    group.barrier("the ranks are in step");
  });
  CHECK_THAT(faults[0],
             Catch::Matchers::Contains("file/scratch: cannot create the file: Not a directory"));
  CHECK(faults[1].empty());
}

TEST_CASE("moments and averages that are not finite in the slice of one rank are told by all") {
  std::vector<std::optional<std::string>> sound(2), moments(2), averages(2);
  test::as_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    AveragedLayer layer(EmaKind::ema_pytorch, group, /*shard_optimizer=*/true);
    TrainedPart& part = layer.part;
    sound[rank] = part.non_finite_kind();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (rank == 1) part.optimizer.moments().exp_avg_sq[3] = nan;
    moments[rank] = part.non_finite_kind();
    if (rank == 1) part.optimizer.moments().exp_avg_sq[3] = 0;
    if (rank == 0) part.average->values()[5] = nan;
    averages[rank] = part.non_finite_kind();
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(sound[rank] == std::nullopt);
    CHECK(moments[rank] == "moments of the optimizer");
    CHECK(averages[rank] == "averaged weights");
  }
}

TEST_CASE("a trainer is connected with every part that it trains, and none that it does not") {
  for (const char* name : {"cascade", "masked"}) {
    const test::TrainerFixture fixture(name);
    std::mutex one_by_one;
    test::as_ranks(2, [&](ProcessGroup& group) {
      std::unique_ptr<DecoderTrainer> trainer;
      {
        const std::scoped_lock lock(one_by_one);
        trainer = fixture.trainer();
        CHECK_FALSE(trainer->is_sharded());
      }
      trainer->connect(group, {}, {.shard_optimizer = true, .scratch_path = {}});
      const std::scoped_lock lock(one_by_one);
      CHECK(trainer->is_sharded());
    });
  }
}

TEST_CASE("an average of diffusers' kind is written whole, spread over the ranks or not") {
  for (const bool spread : {false, true}) {
    std::mutex checks;
    test::as_ranks(2, [&](ProcessGroup& group) {
      AveragedLayer layer(EmaKind::diffusers, group, spread);
      TrainedPart& part = layer.part;
      const auto& network = layer.network;
      part.begin_averages_anew();
      const auto written = [&]() -> Value {
        const WeightAverage::Held held(*part.average);
        return part.average->diffusers_state();
      }();
      const std::scoped_lock lock(checks);
      const Cursor shadows = Cursor(written).at("shadow_params");
      REQUIRE(shadows.size() == 2);
      CHECK(at::equal(shadows.at(0).as_tensor(), network->weight));
      CHECK(at::equal(shadows.at(1).as_tensor(), network->bias));
      CHECK(Cursor(written).at("parameter_names").at(1).as_string() == "bias");
    });
  }
}

TEST_CASE("an average that is spread over the ranks is used only while it is held") {
  for (const EmaKind kind : {EmaKind::ema_pytorch, EmaKind::diffusers}) {
    std::mutex checks;
    test::as_ranks(2, [&](ProcessGroup& group) {
      AveragedLayer layer(kind, group, /*shard_optimizer=*/true);
      TrainedPart& part = layer.part;
      const auto& network = layer.network;
      part.begin_averages_anew();
      {
        const std::scoped_lock lock(checks);
        CHECK_THROWS_AS(WeightAverage::InPlace(*part.average), std::logic_error);
      }
      const at::Tensor live = network->weight.detach();
      {
        const WeightAverage::Held held(*part.average);
        const WeightAverage::Held again(*part.average);
        const WeightAverage::InPlace in_place(*part.average);
        const std::scoped_lock lock(checks);
        CHECK(at::equal(network->weight, live));
        CHECK(network->weight.data_ptr() != live.data_ptr());
      }
      const std::scoped_lock lock(checks);
      CHECK(network->weight.data_ptr() == live.data_ptr());
      CHECK_THROWS_AS(WeightAverage::InPlace(*part.average), std::logic_error);
    });
  }
}

TEST_CASE("a batch has lanes where each has a sample and its gradients are small") {
  const test::ComputeThreads threads(4);
  const auto lanes = [](int64_t batch, std::optional<int64_t> most = {}, int64_t bytes = 0) {
    const LanePlan plan = plan_lanes({.device = at::kCPU, .max_batch_size = most}, batch, bytes);
    return std::pair(plan.lanes, plan.max_batch_size.value_or(0));
  };
  CHECK(lanes(8) == std::pair<int64_t, int64_t>(4, 2));
  CHECK(lanes(9) == std::pair<int64_t, int64_t>(4, 3));
  CHECK(lanes(4) == std::pair<int64_t, int64_t>(4, 1));
  CHECK(lanes(3) == std::pair<int64_t, int64_t>(1, 0));
  CHECK(lanes(100, 8) == std::pair<int64_t, int64_t>(4, 2));
  CHECK(lanes(100, 3) == std::pair<int64_t, int64_t>(1, 3));
  CHECK(lanes(8, {}, kMostLaneGradientBytes / 3).first == 4);
  CHECK(lanes(8, {}, kMostLaneGradientBytes / 3 + 1).first == 1);
  CHECK(plan_lanes({.device = at::Device(at::kCUDA, 0)}, 8).lanes == 1);
  CHECK(plan_lanes({.device = at::kCPU, .has_lanes = false}, 8).lanes == 1);
  at::set_num_threads(1);
  CHECK(lanes(8, 5) == std::pair<int64_t, int64_t>(1, 5));
}

TEST_CASE("each lane does its work in one thread and in its order, in the caller's mode") {
  const test::ComputeThreads threads(3);
  std::vector<std::vector<size_t>> done(3);
  std::vector<int> computing(3, 0);
  std::vector<char> learns(3, 1);
  std::thread::id first;
  {
    const torch::NoGradGuard no_grad;
    in_lanes(3, 8, [&](int64_t lane, size_t i) {
      const auto own = static_cast<size_t>(lane);
      done[own].push_back(i);
      computing[own] = at::get_num_threads();
      learns[own] = at::GradMode::is_enabled() ? 1 : 0;
      if (lane == 0) first = std::this_thread::get_id();
    });
  }
  CHECK(done == std::vector<std::vector<size_t>>{{0, 3, 6}, {1, 4, 7}, {2, 5}});
  CHECK(computing == std::vector<int>{1, 1, 1});
  CHECK(learns == std::vector<char>{0, 0, 0});
  CHECK(first == std::this_thread::get_id());
  CHECK(at::get_num_threads() == 3);
  CHECK_THROWS_WITH(in_lanes(3,
                             3,
                             [](int64_t lane, size_t) {
                               if (lane == 2) throw std::runtime_error("of lane 2");
                             }),
                    "of lane 2");
}

/// The first pass of the recorded run of a cascade, twice, with as many compute threads as given.
struct DecoderResult {
  at::Tensor loss, gradients, evaluated;
};

DecoderResult train_decoder(int lanes, const std::function<void(DecoderTrainConfig&)>& change) {
  const test::ComputeThreads threads(lanes);
  DecoderTrainConfig config = test::cascade().train_config();
  if (change) change(config);
  const auto trainer = test::cascade().trainer(config);
  const DecoderInputs inputs = test::cascade().inputs(0);
  REQUIRE(inputs.images.size(0) >= 3);
  DecoderResult result;
  for (const bool is_last : {false, true})
    result.loss = trainer->step(inputs, 1, test::cascade().draws(0), {0.5, is_last});
  result.gradients = TrainerProbe::contents(*trainer).parts.at(0)->gradients.values().clone();
  result.evaluated =
      trainer->evaluate(inputs, 1, make_generator({.seed = 3, .purpose = "evaluate"}, at::kCPU));
  return result;
}

double distance(const at::Tensor& found, const at::Tensor& wanted) {
  return ((found - wanted).norm() / wanted.norm()).item<double>();
}

TEST_CASE("lanes give a decoder the loss and gradients of the whole batch, in the same bits") {
  const bool in_bf16 = GENERATE(false, true);
  const auto change = [&](DecoderTrainConfig& config) { config.amp = in_bf16; };
  const DecoderResult alone = train_decoder(1, change), two = train_decoder(2, change),
                      three = train_decoder(3, change);
  // Sums in another order: 1e-7 of a number each. In bfloat16 each gradient of a lane is rounded to 2^-9 of it.
  const double most = in_bf16 ? 2e-2 : 2e-6;
  for (const DecoderResult& found : {two, three}) {
    CHECK(distance(found.loss, alone.loss) < most);
    CHECK(distance(found.gradients, alone.gradients) < most);
    CHECK(distance(found.evaluated, alone.evaluated) < most);
    CHECK_FALSE(at::equal(found.gradients, alone.gradients));  // lanes were there
  }
  const DecoderResult again = train_decoder(3, change);
  CHECK(at::equal(again.loss, three.loss));
  CHECK(at::equal(again.gradients, three.gradients));
  CHECK(at::equal(again.evaluated, three.evaluated));
}

TEST_CASE("lanes may compute levels again in the backward pass") {
  const auto gradients = [&](int lanes) {
    const test::ComputeThreads threads(lanes);
    const auto trainer = test::cascade().trainer();
    UnetImpl& unet = *trainer->decoder()->unet(1);
    unet.recompute_levels(1);  // of two and the middle: lanes are at different levels
    trainer->step(test::cascade().inputs(0), 1, test::cascade().draws(0));
    return TrainerProbe::contents(*trainer).parts.at(0)->gradients.values().clone();
  };
  CHECK(distance(gradients(3), gradients(1)) < 2e-6);
}

TEST_CASE("lanes give a prior its loss, its gradients and its update") {
  const auto train = [](int lanes) {
    const test::ComputeThreads threads(lanes);
    const test::PriorTrainerFixture fixture("adamw");
    const auto trainer = fixture.trainer();
    const at::Tensor loss = trainer->step(fixture.inputs(0), fixture.draws(0));
    trainer->update();
    return std::pair(loss, trainer->last_grad_norm());
  };
  const auto [loss, norm] = train(1);
  const auto [loss_of_lanes, norm_of_lanes] = train(2);
  CHECK(distance(loss_of_lanes, loss) < 2e-6);
  CHECK(distance(norm_of_lanes, norm) < 2e-6);
}

TEST_CASE("lanes leave the joint loss of a CLIP and its gradients as they are") {
  const auto train = [](int lanes, std::optional<int64_t> max_batch_size) {
    const test::ComputeThreads threads(lanes);
    ClipTrainConfig config;
    config.max_batch_size = max_batch_size;
    torch::manual_seed(1);
    ClipTrainer trainer(std::make_shared<ClipImpl>(test::tiny_clip()), config, at::kCPU);
    torch::manual_seed(2);
    std::vector<ClipInputs> batches;
    for (const int64_t size : {5, 7}) {
      at::Tensor tokens = at::randint(0, 518, {size, 6}, at::kLong);
      tokens.select(1, 0).fill_(518);
      tokens.select(1, 5).fill_(519);
      batches.push_back({at::rand({size, 3, 8, 8}), tokens});
    }
    const at::Tensor loss = trainer.step(batches);
    const ClipEvaluation evaluation = trainer.evaluate(batches[1]);
    return std::vector<at::Tensor>{
        loss,
        TrainerProbe::contents(trainer).parts.at(0)->gradients.values().clone(),
        evaluation.loss,
        evaluation.pairs};
  };
  const auto alone = train(1, std::nullopt);
  // At once; and in chunks that go through the network twice.
  for (const std::optional<int64_t> most : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
    const auto found = train(3, most);
    for (size_t i = 0; i < alone.size(); ++i) {
      INFO(i);
      CHECK(distance(found[i], alone[i]) < 1e-5);  // the gradient at the features is a difference
    }
  }
}

TEST_CASE("a CLIP with batch norms has one lane: their statistics are those of the whole batch") {
  const test::ComputeThreads threads(2);
  for (const bool is_resnet : {false, true}) {
    ClipNetworkConfig network = test::tiny_clip();
    if (is_resnet) {
      network.vision_cfg.layers = std::vector<int64_t>{1, 1, 1, 1};
      network.vision_cfg.image_size = 32;
    }
    ClipTrainer trainer(std::make_shared<ClipImpl>(network), ClipTrainConfig(), at::kCPU);
    CHECK(TrainerProbe::contents(trainer).parts.at(0)->plan_lanes(8).lanes == (is_resnet ? 1 : 2));
  }
}

TEST_CASE("several lanes draw the same pictures as one, and a stop in one ends all") {
  const auto trainer = test::cascade().trainer();
  const auto options_with = [&](std::function<void(int64_t, size_t, size_t)> on_step) {
    DecoderSampleOptions options;
    options.image_embeds = test::cascade().inputs(0).image_embeds;
    options.sample_timesteps = std::optional<int64_t>(3);
    options.on_step = std::move(on_step);
    for (int64_t row = 0; row < options.image_embeds.size(0); ++row)
      options.row_generators.push_back(make_generator({.seed = row, .purpose = "draw"}, at::kCPU));
    return options;
  };
  const auto draw = [&](int lanes) {
    const test::ComputeThreads threads(lanes);
    int steps = 0;
    const auto options = options_with([&](int64_t, size_t, size_t) { ++steps; });
    const at::Tensor drawn = trainer->sample(options);
    CHECK(steps == 2 * 3);  // told by one lane
    return drawn;
  };
  const at::Tensor one = draw(1);
  CHECK(at::allclose(draw(3), one, 0, 1e-4));

  const test::ComputeThreads threads(3);
  const auto options = options_with([](int64_t, size_t step, size_t) {
    if (step == 2) throw std::runtime_error("a signal");
  });
  CHECK_THROWS_WITH(trainer->sample(options), "a signal");
}

}  // namespace
}  // namespace dalle2
