// SPDX-License-Identifier: MIT
// What several ranks do on a device that is not the CPU, with doubles of the others.
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/script.h>

#include "dist/process_group_backend.h"
#include "dist/rank_watch.h"
#include "dist/ranks_in_threads.h"
#include "dist/store_double.h"
#include "dist/work_double.h"
#include "model/vae/quantizer.h"
#include "run/vae/vae_run.h"
#include "support/captured_log.h"
#include "support/fake_device.h"
#include "support/temp_dir.h"
#include "trainer/trainer_fixture.h"

namespace dalle2::test {
namespace {

/// A work that notes whether the threads which ask about it have chosen their device.
class CarefulWork : public WorkDouble {
 public:
  CarefulWork() : WorkDouble(WorkStatus{}) {}
  WorkStatus status() noexcept override {
    if (std::this_thread::get_id() != maker_) (thread_has_chosen_device() ? chosen : blind) += 1;
    return WorkDouble::status();
  }
  std::atomic<int> chosen = 0, blind = 0;

 private:
  const std::thread::id maker_ = std::this_thread::get_id();
};

TEST_CASE("the thread that asks about collectives uses the rank's own GPU and opens no other") {
  World world;
  world.size = 2;
  RankWatch watch(world,
                  std::make_unique<StoreDouble>(std::make_shared<StoreContents>()),
                  std::chrono::seconds(60),
                  [](const std::string&) {});
  watch.set_device(fake_device());
  const auto work = std::make_shared<CarefulWork>();
  watch.launched(watch.begin("gradients"), work);
  const auto begin = std::chrono::steady_clock::now();
  while (work->chosen < 2 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(work->chosen >= 2);
  CHECK(work->blind == 0);
}

VaeConfig codebook() {
  VaeConfig config;
  config.codebook_size = 8;
  config.lookup_free_quantization = false;
  config.vq_codebook_dim = 4;
  config.vq_threshold_ema_dead_code = 2.0;
  return config;
}

/// The first of two ranks; the other one quantises the same.
VectorQuantizerImpl first_of_two(const at::Device& device) {
  torch::manual_seed(7);
  VectorQuantizerImpl quantizer(4, codebook());
  quantizer.to(device);
  quantizer.set_ranks({.rank = 0,
                       .size = 2,
                       .sum = [](at::Tensor& tensor) { tensor.mul_(2); },
                       .exchange =
                           [](int64_t own) {
                             return std::vector<int64_t>{own, own};
                           }});
  return quantizer;
}

void quantize_and_learn(VectorQuantizerImpl& quantizer, const at::Tensor& map, int64_t number) {
  const at::Generator random = make_generator({0, "codes", 0, number}, map.device());
  quantizer.quantize(map, random);
  quantizer.learn(random);
}

TEST_CASE("several ranks replace codes that are not used without waiting for the device") {
  VectorQuantizerImpl on_cpu = first_of_two(at::kCPU), on_fake = first_of_two(fake_device());
  int64_t replaced = 0;
  for (int64_t number = 0; number < 4; ++number) {
    const at::Tensor map = at::randn({2, 4, 3, 3}, make_generator({number, "map"}, at::kCPU));
    const at::Tensor of_device = map.to(fake_device());
    const at::Tensor before = on_cpu.codebook().clone();
    quantize_and_learn(on_cpu, map, number);
    const FakeDeviceCounts counts =
        counts_of([&] { quantize_and_learn(on_fake, of_device, number); });
    CHECK(at::equal(on_fake.codebook().cpu(), on_cpu.codebook()));
    INFO(counts.text());
    if (number > 1) CHECK(counts.stalls() == 0);  // before it asks whether the codes have begun
    replaced += (on_cpu.codebook() - before).abs().amax(1).gt(0.5).sum().item<int64_t>();
  }
  CHECK(replaced > 0);
}

// Collectives of ranks that are threads and have their tensors on the fake device, or on the CPU as if it
// were one: Gloo on copies in the host's memory, which reach the tensors when a rank waits for them.

/// How backends of all ranks ended.
struct GroupEnds {
  std::atomic<int> shut_down = 0, aborted = 0;
  /// A communicator that a lost peer keeps from ending.
  std::chrono::seconds abort_takes{0};
};

class FakeDeviceGroup : public GroupBackend {
 public:
  FakeDeviceGroup(std::unique_ptr<GroupBackend> host, std::shared_ptr<GroupEnds> ends)
      : host_(std::move(host)), ends_(std::move(ends)) {}

  void open_device(const at::Device& /*device*/) override { host_->open_device(at::kCPU); }
  std::shared_ptr<BackendWork> all_reduce(Where where, at::Tensor tensor, bool maximum) override {
    const at::Tensor copy = copy_of(tensor);
    return back({{copy, tensor}}, host_->all_reduce(where, copy, maximum));
  }
  std::shared_ptr<BackendWork> broadcast(at::Tensor tensor, int root) override {
    const at::Tensor copy = copy_of(tensor);
    return back({{copy, tensor}}, host_->broadcast(copy, root));
  }
  std::shared_ptr<BackendWork> all_gather(Where where, at::Tensor whole, at::Tensor part) override {
    const at::Tensor copy = copy_of(whole);
    return back({{copy, whole}}, host_->all_gather(where, copy, copy_of(part)));
  }
  std::shared_ptr<BackendWork> gather_on_main(at::Tensor whole, at::Tensor part) override {
    return host_->gather_on_main(std::move(whole), std::move(part));
  }
  std::shared_ptr<BackendWork> reduce(at::Tensor tensor, int root) override {
    const at::Tensor copy = copy_of(tensor);
    return back({{copy, tensor}}, host_->reduce(copy, root));
  }
  bool sums_depend_on_place() const override { return host_->sums_depend_on_place(); }
  void abort() noexcept override {
    ++ends_->aborted;
    // The group leaves it behind: what it would do afterwards concerns nobody.
    const auto until = std::chrono::steady_clock::now() + ends_->abort_takes;
    while (std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  void shut_down() noexcept override { ++ends_->shut_down; }

 private:
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;  // the host's, the device's

  /// Copies what the host has got to the device, in the waiting thread's stream.
  class Work : public BackendWork {
   public:
    Work(std::shared_ptr<BackendWork> host, Copies copies)
        : host_(std::move(host)), copies_(std::move(copies)) {}
    void wait() override {
      host_->wait();
      const at::NoGradGuard no_grad;
      for (auto& [of_host, of_device] : copies_) of_device.copy_(of_host);
    }
    WorkStatus status() noexcept override { return host_->status(); }

   private:
    std::shared_ptr<BackendWork> host_;
    Copies copies_;
  };

  static at::Tensor copy_of(const at::Tensor& tensor) {
    return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  static std::shared_ptr<BackendWork> back(Copies copies, std::shared_ptr<BackendWork> host) {
    return std::make_shared<Work>(std::move(host), std::move(copies));
  }

  std::unique_ptr<GroupBackend> host_;
  std::shared_ptr<GroupEnds> ends_;
};

/// Such groups, for as long as it lives.
class FakeDeviceGroups {
 public:
  FakeDeviceGroups() {
    stand_in_for_backends([ends = ends](const World& world, std::chrono::seconds timeout) {
      return std::make_unique<FakeDeviceGroup>(make_backend(world, timeout), ends);
    });
  }
  ~FakeDeviceGroups() { stand_in_for_backends(nullptr); }
  FakeDeviceGroups(const FakeDeviceGroups&) = delete;
  FakeDeviceGroups& operator=(const FakeDeviceGroups&) = delete;

  const std::shared_ptr<GroupEnds> ends = std::make_shared<GroupEnds>();
};

GroupOptions on_fake_device_alone(int /*rank*/) {
  return {.device = fake_device()};
}

/// The state of rank 0 after some steps of two ranks.
std::string bits_of_two_ranks(const TrainerFixture& fixture, bool on_fake, bool shard_optimizer) {
  const TempDir folder;
  const at::Device device = on_fake ? fake_device() : at::Device(at::kCPU);
  std::string bits;
  as_ranks(
      2,
      [&](ProcessGroup& group) {
        DecoderTrainConfig config = fixture.train_config();
        config.cuda_graph = on_fake;
        const auto trainer = fixture.trainer(config, device);
        trainer->connect(group,
                         {.bucket_bytes = 4096},
                         {.shard_optimizer = shard_optimizer, .scratch_path = folder / "scratch"});
        for (int64_t step = 0; step < 4; ++step) {
          const int64_t unet = 1 + step % 2;
          trainer->step(drawn_inputs(2, 2 * step + group.rank()),
                        unet,
                        make_generator({0, "train", 0, step, group.rank()}, at::kCPU));
          trainer->update(unet);
        }
        const HeldAverages averages = trainer->hold_averages();
        const std::string own = bits_of(*trainer);
        if (group.is_main()) bits = own;
      },
      [&](int /*rank*/) { return GroupOptions{.device = device}; });
  return bits;
}

TEST_CASE("two ranks on the fake device train with the CPU's bits, sharded or not") {
  const std::string expected = bits_of_two_ranks(cascade(), /*on_fake=*/false, false);
  const FakeDeviceGroups groups;
  for (const bool shard_optimizer : {false, true}) {
    const CapturedLog log;
    CHECK(bits_of_two_ranks(cascade(), /*on_fake=*/true, shard_optimizer) == expected);
    CHECK(log.count("/train/cuda_graph has no effect with several processes") == 1);
  }
}

TEST_CASE("what carries collectives is shut down at a normal end, and aborted after a failure") {
  const FakeDeviceGroups groups;
  as_ranks(
      2, [](ProcessGroup& group) { group.barrier("the last step"); }, on_fake_device_alone);
  CHECK(groups.ends->shut_down == 2);
  CHECK(groups.ends->aborted == 0);
}

TEST_CASE("a rank that fails ends, though its communicator cannot be aborted") {
  const FakeDeviceGroups groups;
  groups.ends->abort_takes = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(
      as_ranks(
          2, [](ProcessGroup&) { throw DataError("a shard is gone"); }, on_fake_device_alone),
      "a shard is gone");
  CHECK(groups.ends->aborted == 2);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(40));
}

// The network of the perceptual loss on a device that is not the CPU.
TrainVaeConfig config_with(const std::string& vgg_path) {
  TrainVaeConfig config;
  config.vae.use_vgg_and_gan = true;
  config.data.image_size = 8;
  config.train.vgg_path = vgg_path;
  return config;
}

/// Deterministic algorithms, for as long as it lives.
class Deterministic {
 public:
  Deterministic() { use_deterministic_algorithms(); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
};

TEST_CASE("a network whose gradients have no deterministic form is an error before training") {
  const TempDir folder;
  const TrainVaeConfig config = config_with(folder.path() + "/vgg.pt");
  torch::jit::Module module("Features");
  module.define(
      "def forward(self, images):\n"
      "  return torch.adaptive_avg_pool2d(images, [3, 3]).flatten(1)\n");
  module.save(*config.train.vgg_path);
  CHECK(perceptual_features(config, fake_device()) != nullptr);
  const Deterministic deterministic;
  CHECK(perceptual_features(config, at::kCPU) != nullptr);
  CHECK_THROWS_WITH(
      perceptual_features(config, fake_device()),
      Catch::StartsWith("/train/deterministic: the gradients of the network in " +
                        *config.train.vgg_path +
                        " (/train/vgg_path) have no deterministic form on this device: "
                        "\"aten::_adaptive_avg_pool2d_backward does not have a deterministic") &&
          Catch::Contains("scripts/export_vgg.py"));
}

TEST_CASE("the network's first gradients have the bits of later ones") {
  torch::jit::setTensorExprFuserEnabled(true);
  const ImageFeatures features = perceptual_features(
      config_with(fixture_folder("feature_networks") + "/pictures.pt"), fake_device());
  CHECK_FALSE(torch::jit::tensorExprFuserEnabled());
  const at::Tensor pictures =
      at::rand({2, 3, 8, 8}, make_generator({1, "pictures"}, at::kCPU)).to(fake_device());
  const auto gradient = [&] {
    const at::Tensor leaf = pictures.clone().requires_grad_();
    features(leaf).square().mean().backward();
    return leaf.grad().cpu();
  };
  const at::Tensor first = gradient();
  for (int pass = 0; pass < 5; ++pass) CHECK(at::equal(gradient(), first));
}

}  // namespace
}  // namespace dalle2::test
