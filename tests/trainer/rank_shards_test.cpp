// SPDX-License-Identifier: MIT
#include "trainer/rank_shards.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "checkpoint/archive/mapped_file.h"
#include "dist/ranks_in_threads.h"
#include "support/temp_dir.h"
#include "trainer/trained_part.h"
#include "trainer_fixture.h"

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

}  // namespace
}  // namespace dalle2
