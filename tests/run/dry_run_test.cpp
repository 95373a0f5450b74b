// SPDX-License-Identifier: MIT
#include "run/dry_run.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <vector>

#include "support/temp_dir.h"

namespace dalle2 {
namespace {

constexpr int64_t kMebi = 1 << 20;

TEST_CASE("the memory of a batch counts what its samples take, not what else the process holds") {
  const torch::nn::Linear network(
      torch::nn::LinearOptions(512, 512).bias(false));  // 1 MiB of weights
  std::vector<char> of_process;
  DryRunPlan plan;
  plan.model = network.ptr();
  plan.batch_size = 6;
  plan.networks.push_back(
      {.label = "network", .note = "", .module = network.ptr(), .step = [&](int64_t batch) {
         of_process.assign(static_cast<size_t>(64 * kMebi), 1);
         at::Tensor fixed = at::empty({kMebi}, at::kByte);
         at::Tensor samples = at::empty({batch, 3 * kMebi}, at::kByte);
         fixed.reset();
         samples
             .reset();  // most are gone when gradients come, which a run has from its first step on
         if (!network->weight.grad().defined()) {
           network->weight.mutable_grad() = at::zeros_like(network->weight);
         }
       }});
  SharedTrainConfig train;
  CHECK(activation_bytes(plan.networks[0], plan, train) ==
        static_cast<uint64_t>((1 + 6 * 3) * kMebi));
  train.max_batch_size = 2;
  CHECK(activation_bytes(plan.networks[0], plan, train) ==
        static_cast<uint64_t>((1 + 2 * 3) * kMebi));
}

TEST_CASE("a dry run refuses a disk without room for a checkpoint") {
  const test::TempDir folder;
  const torch::nn::Linear network(2, 2);
  DryRunPlan plan;
  plan.model = network.ptr();
  plan.batch_size = 1;
  plan.data_path = folder / "not/there/yet";
  plan.carried_bytes = int64_t{1} << 60;
  CHECK_THROWS_WITH(print_sizes(plan, SharedTrainConfig(), at::kCPU, /*processes=*/1),
                    Catch::Contains("/tracker/data_path: a checkpoint takes about 1.0 EiB, and the "
                                    "disk of '" +
                                    plan.data_path + "' has ") &&
                        Catch::Contains("Make room there, or choose a data_path on another disk"));
}

}  // namespace
}  // namespace dalle2
