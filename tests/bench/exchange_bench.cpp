// SPDX-License-Identifier: MIT
// Ways to add the gradients of several processes up, by turns in one process: see exchange.py,
// which starts the ranks and reads what rank 0 prints.
//
//   bench_exchange LAYERS WIDTH SAMPLES BUCKET_MIB STEPS
#include <torch/utils.h>

#include <algorithm>
#include <iostream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "dist/gradient_exchange.h"
#include "dist/process_group.h"
#include "optim/flat_parameters.h"

namespace dalle2 {
namespace {

struct Shape {
  int64_t layers, width, samples, bucket_bytes;
};

torch::nn::Sequential make_network(const Shape& shape) {
  torch::manual_seed(0);
  torch::nn::Sequential network;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    network->push_back(torch::nn::Linear(shape.width, shape.width));
    network->push_back(torch::nn::SiLU());
  }
  return network;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Ours: a flat buffer whose slices go as soon as they are complete.
class Ours {
 public:
  Ours(ProcessGroup& group, const Shape& shape)
      : network_(make_network(shape)), parameters_(*network_), gradients_(parameters_) {
    std::vector<ExchangeEntry> entries;
    for (const FlatEntry& entry : parameters_.parameters()) {
      entries.push_back({entry.offset, entry.numel});
    }
    exchange_ = std::make_unique<GradientExchange>(
        group,
        gradients_.values(),
        entries,
        ExchangeOptions{.bucket_bytes = shape.bucket_bytes, .static_graph = true},
        "");
    gradients_.set_listener([this](size_t parameter) { exchange_->ready(parameter); });
  }

  enum class When { kNever, kAfter, kDuring };
  at::Tensor step(const at::Tensor& input, When when) {
    gradients_.zero_grad();
    if (when == When::kDuring) exchange_->begin();
    network_->forward(input).square().mean().backward();
    if (when != When::kNever) exchange_->finish();
    return gradients_.values();
  }
  size_t num_buckets() const { return exchange_->num_buckets(); }
  size_t overlapped() const { return exchange_->overlapped(); }

 private:
  torch::nn::Sequential network_;
  FlatParameters parameters_;
  FlatGradients gradients_;
  std::unique_ptr<GradientExchange> exchange_;
};

/// DistributedDataParallel's, as Python sets it up: buckets of the same size, a first one of 1 MiB,
/// gradients that are views of them.
class Theirs {
 public:
  Theirs(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Shape& shape)
      : network_(make_network(shape)), parameters_(network_->parameters()) {
    std::vector<size_t> limits = {c10d::kDefaultFirstBucketBytes,
                                  static_cast<size_t>(shape.bucket_bytes)};
    auto [buckets, bucket_limits] =
        c10d::compute_bucket_assignment_by_size(parameters_, limits, {}, {}, {});
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_unique<c10d::Reducer>(parameters_,
                                               buckets,
                                               group,
                                               std::vector<bool>(parameters_.size(), false),
                                               shape.bucket_bytes,
                                               /*find_unused_parameters=*/false,
                                               /*gradient_as_bucket_view=*/true,
                                               std::unordered_map<size_t, std::string>{},
                                               c10d::kDefaultFirstBucketBytes,
                                               /*skip_all_reduce_unused_params=*/false,
                                               /*use_python_reducer=*/false,
                                               std::vector<int64_t>{});
  }

  void step(const at::Tensor& input) {
    for (const at::Tensor& parameter : parameters_) {
      if (parameter.grad().defined()) parameter.mutable_grad().zero_();
    }
    reducer_->prepare_for_forward();
    if (reducer_->should_rebuild_buckets()) reducer_->rebuild_buckets();
    const at::Tensor loss = network_->forward(input).square().mean();
    reducer_->prepare_for_backward({});
    loss.backward();
  }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  torch::nn::Sequential network_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(const World& world) {
  c10d::TCPStoreOptions store_options;
  store_options.port = world.store_port;
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "theirs", c10::make_intrusive<c10d::TCPStore>(world.store_host, store_options));
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, world.rank, world.size, options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, world.rank, world.size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  return group;
}

int main_of_rank(const Shape& shape, int64_t steps) {
  at::set_num_threads(1);
  const World world = world_from_environment();
  ProcessGroup group(world, {});
  Ours ours(group, shape);
  std::unique_ptr<Theirs> theirs;
  if (!group.is_alone()) theirs = std::make_unique<Theirs>(gloo_group(world), shape);
  const at::Tensor input = torch::randn({shape.samples, shape.width}) * (world.rank + 1);
  const at::Tensor flat = ours.step(input, Ours::When::kNever);
  const at::Tensor small = at::zeros({1});

  std::vector<std::pair<std::string, std::function<void()>>> ways = {
      {"alone", [&] { ours.step(input, Ours::When::kNever); }}};
  if (theirs) {
    ways.emplace_back("after", [&] { ours.step(input, Ours::When::kAfter); });
    ways.emplace_back("during", [&] { ours.step(input, Ours::When::kDuring); });
    ways.emplace_back("reducer", [&] { theirs->step(input); });
    ways.emplace_back("sum", [&] { group.all_reduce(flat, Reduction::kSum, "sum"); });
    ways.emplace_back("latency", [&] { group.all_reduce(small, Reduction::kSum, "latency"); });
    for (int warmed = 0; warmed < 3; ++warmed) {
      for (const auto& [name, way] : ways) way();
    }
    // Both have to add up the same, or the times say nothing.
    ours.step(input, Ours::When::kDuring);
    theirs->step(input);
    const at::Tensor sum = flat.narrow(0, 0, shape.width * shape.width);
    const at::Tensor mean = theirs->parameters().front().grad().reshape({-1});
    TORCH_CHECK(at::allclose(sum / world.size, mean, 1e-4, 1e-9), "the sums differ");
  }
  for (int64_t step = 0; step < steps; ++step) {
    std::string line = "{";
    for (const auto& [name, way] : ways) {
      group.barrier("ready");
      line += fmt::format("\"{}\": {:.6f}, ", name, seconds_of(way));
    }
    line += fmt::format("\"bytes\": {}, \"buckets\": {}, \"overlapped\": {}}}",
                        flat.numel() * 4,
                        ours.num_buckets(),
                        ours.overlapped());
    if (world.is_main()) std::cout << line << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace dalle2

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: bench_exchange LAYERS WIDTH SAMPLES BUCKET_MIB STEPS\n";
    return 2;
  }
  const std::vector<std::string> given(argv + 1, argv + argc);
  return dalle2::main_of_rank({std::stoll(given[0]),
                               std::stoll(given[1]),
                               std::stoll(given[2]),
                               std::stoll(given[3]) << 20},
                              std::stoll(given[4]));
}
