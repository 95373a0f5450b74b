// SPDX-License-Identifier: MIT
// Weights that are updated by several ranks arrive beside what these compute. In these tests they do so no
// sooner than a rank waits for them.
#include "trainer/weight_arrival.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "dist/ranks_in_threads.h"
#include "kernels/convolution.h"
#include "model/random.h"
#include "optim/trained_parameters.h"
#include "support/fake_device_group.h"
#include "support/fixture.h"
#include "support/temp_dir.h"
#include "trainer/trained_part.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

const PassSettings kOnCpu{at::kCPU, MixedPrecision::no, nullptr, std::nullopt};
constexpr int64_t kSteps = 4;

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    first = register_module("first", torch::nn::Linear(64, 64));
    second = register_module("second", torch::nn::Linear(64, 64));
    test::fill_parameters(*this);
  }
  torch::nn::Linear first = nullptr, second = nullptr;
};

/// Two layers of 4,096 weights each: nine rows of the flat buffer, biases in the last.
struct RankOfLayers {
  RankOfLayers(ProcessGroup& of_group, bool shard_optimizer, int64_t bucket_bytes)
      : group(of_group) {
    part.connect(group,
                 {.bucket_bytes = bucket_bytes},
                 {.shard_optimizer = shard_optimizer, .scratch_path = {}});
  }
  /// @param after_first, after_second called when that layer has been used
  void pass(
      int64_t step,
      const std::function<void()>& after_first = [] {},
      const std::function<void()>& after_second = [] {}) {
    const at::Tensor x =
        at::randn({2, 64}, make_generator({step, "x", 0, 0, group.rank()}, at::kCPU));
    part.accumulate(kOnCpu, 2, 1.0, [&](const ChunkRange&) {
      const at::Tensor middle = network->first->forward(x);
      after_first();
      const at::Tensor made = network->second->forward(middle);
      after_second();
      return made.square().mean();
    });
  }
  void update() {
    part.make_update(1e-2);
    part.settle();
    part.share_weights();
  }

  ProcessGroup& group;
  std::shared_ptr<TwoLayers> network = std::make_shared<TwoLayers>();
  TrainedPart part{
      "",
      "",
      network,
      trained_parameters(*network),
      PartOptions{{}, LrSchedule(1e-2, {}, {}), std::numeric_limits<double>::infinity()}};
};

/// What rank 0 has waited for in a step, and its weights in the end.
struct Seen {
  std::vector<int> by_update, by_first_layer, by_forward;
  at::Tensor weights;
};

Seen run_of(int ranks, bool shard_optimizer, int64_t bucket_bytes) {
  const test::FakeDeviceGroups groups;
  Seen seen;
  test::as_ranks(ranks, [&](ProcessGroup& group) {
    const std::atomic<int>& waits = groups.ends->waits[static_cast<size_t>(group.rank())];
    RankOfLayers rank(group, shard_optimizer, bucket_bytes);
    for (int64_t step = 0; step < kSteps; ++step) {
      const int before = waits;
      int after_first = 0, after_second = 0;
      rank.pass(
          step, [&] { after_first = waits - before; }, [&] { after_second = waits - before; });
      rank.part.make_update(1e-2);
      rank.part.settle();
      const int before_sharing = waits;
      rank.part.share_weights();
      if (!group.is_main()) continue;
      seen.by_update.push_back(waits - before_sharing);
      seen.by_first_layer.push_back(after_first);
      seen.by_forward.push_back(after_second);
    }
    await_weights();
    if (group.is_main()) seen.weights = rank.part.parameters.values().clone();
  });
  return seen;
}

TEST_CASE("a layer waits for its own weights while those of the next are on their way") {
  for (const int ranks : {2, 3}) {
    INFO(ranks << " ranks");
    const Seen whole = run_of(ranks, /*shard_optimizer=*/false, 4096);
    const Seen sharded = run_of(ranks, /*shard_optimizer=*/true, 4096);
    CHECK(at::equal(sharded.weights, whole.weights));
    // Stretches of a row: four of a layer's weights, and that of the biases.
    CHECK(sharded.by_update == std::vector<int>{0, 0, 0, 0});
    CHECK(sharded.by_first_layer == std::vector<int>{0, 5, 5, 5});
    CHECK(sharded.by_forward == std::vector<int>{0, 9, 9, 9});
    CHECK(whole.by_forward == std::vector<int>{0, 0, 0, 0});
  }
}

TEST_CASE("very short slices come together, beside the computation all the same") {
  const Seen whole = run_of(5, /*shard_optimizer=*/false, 1 << 20);
  const Seen sharded = run_of(5, /*shard_optimizer=*/true, 1 << 20);
  CHECK(at::equal(sharded.weights, whole.weights));
  CHECK(sharded.by_update == std::vector<int>{0, 0, 0, 0});
  CHECK(sharded.by_first_layer == std::vector<int>{0, 2, 2, 2});  // five equal slices, and the rest
}

TEST_CASE("an operator that is given a list, a view or a place to write to waits, too") {
  const test::FakeDeviceGroups groups;
  std::vector<int> by_list(2), by_view(2), by_other(2), by_write(2), kept(2);
  test::as_ranks(2, [&](ProcessGroup& group) {
    const auto place = static_cast<size_t>(group.rank());
    const std::atomic<int>& waits = groups.ends->waits[place];
    RankOfLayers rank(group, /*shard_optimizer=*/true, 4096);
    const auto waited = [&](const auto& action) {
      const int before = waits;
      action();
      return waits - before;
    };
    const at::Tensor row = rank.network->first->weight[63], other = at::ones({3, 3});
    rank.pass(0);
    rank.update();
    const torch::NoGradGuard no_grad;
    by_other[place] = waited([&] { other.sum(); });
    by_view[place] = waited([&] { row.sum(); });
    by_list[place] = waited([&] { at::cat({other.flatten(), rank.network->second->bias}); });
    by_write[place] = waited([&] { rank.network->second->weight[0].fill_(7); });
    await_weights();
    kept[place] = rank.network->second->weight[0].eq(7).all().item<bool>() ? 1 : 0;
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(by_other[rank] == 0);
    CHECK(by_view[rank] == 1);
    CHECK(by_list[rank] == 1);
    // `second->weight[0]` is an operator, too: it has all of the weight.
    CHECK(by_write[rank] == 4);
    CHECK(kept[rank] == 1);
  }
}

TEST_CASE("a convolution with loops of its own waits for its filters") {
  const test::FakeDeviceGroups groups;
  std::vector<int> waited(2);
  test::as_ranks(2, [&](ProcessGroup& group) {
    const auto place = static_cast<size_t>(group.rank());
    const std::atomic<int>& waits = groups.ends->waits[place];
    RankOfLayers rank(group, /*shard_optimizer=*/true, 4096);
    const torch::NoGradGuard no_grad;
    const at::Tensor filters = rank.network->first->weight.flatten()
                                   .narrow(0, 0, 16 * 3 * 3 * 16)
                                   .view({16, 3, 3, 16})
                                   .permute({0, 3, 1, 2});
    const at::Tensor x = at::ones({1, 16, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast);
    {
      const at::AutoGradMode with_grad(true);
      rank.pass(0);
    }
    rank.update();
    const int before = waits;
    convolution({x, filters, {}}, /*stride=*/1, /*padding=*/1);
    waited[place] = waits - before;
    await_weights();
  });
  CHECK(waited == std::vector<int>{3, 3});  // stretches of 1,024 weights
}

TEST_CASE(
    "a peer that is lost while weights are coming is reported before a gradient is made of old ones") {
  const test::FakeDeviceGroups groups;
  std::vector<std::string> faults(2);
  std::vector<int> has_gradient(2, 1);
  std::latch both(2);
  test::as_ranks(2, [&](ProcessGroup& group) {
    const auto place = static_cast<size_t>(group.rank());
    RankOfLayers rank(group, /*shard_optimizer=*/true, 4096);
    rank.pass(0);
    rank.update();
    group.barrier("both have sent");
    both.arrive_and_wait();
    groups.ends->peer_is_lost = true;
    try {
      rank.pass(1);
    } catch (const NetworkError& error) {
      faults[place] = error.what();
    }
    has_gradient[place] = rank.network->first->weight.grad().defined() ? 1 : 0;
    await_weights();  // nothing is left behind
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK_THAT(faults[rank], Catch::Matchers::Contains("updated weights"));
    CHECK(has_gradient[rank] == 0);
  }
}

enum class Question { kState, kChecksum, kLoss };

/// What rank 0 of two gets that asks right behind an update.
std::string answer_to(Question question,
                      const test::TrainerFixture& fixture,
                      bool shard_optimizer) {
  const test::TempDir folder;
  std::string answer;
  test::as_ranks(2, [&](ProcessGroup& group) {
    const auto trainer = fixture.trainer();
    trainer->connect(group,
                     {.bucket_bytes = 4096},
                     {.shard_optimizer = shard_optimizer, .scratch_path = folder / "scratch"});
    for (int64_t step = 0; step < 2; ++step) {
      trainer->step(test::drawn_inputs(2, 2 * step + group.rank()),
                    1,
                    make_generator({0, "train", 0, step, group.rank()}, at::kCPU));
      trainer->update(1);
    }
    std::string own;
    if (question == Question::kState) {
      const HeldAverages averages = trainer->hold_averages();
      own = test::bits_of(*trainer);
    } else if (question == Question::kChecksum) {
      own = std::to_string(trainer->checksum());
    } else {
      const auto evaluated =
          trainer->evaluate(test::drawn_inputs(2, 9), 1, make_generator({0, "answer"}, at::kCPU));
      own = fmt::format("{:a}", evaluated.item<double>());
    }
    group.barrier("both have asked");
    if (group.is_main()) answer = own;
  });
  return answer;
}

TEST_CASE("a save, a check and a validation right behind an update have the updated weights") {
  const test::TrainerFixture fixture("cascade");
  const test::FakeDeviceGroups groups;
  for (const Question question : {Question::kState, Question::kChecksum, Question::kLoss}) {
    INFO("question " << static_cast<int>(question));
    const std::string expected = answer_to(question, fixture, /*shard_optimizer=*/false);
    CHECK(answer_to(question, fixture, /*shard_optimizer=*/true) == expected);
  }
}

}  // namespace
}  // namespace dalle2
