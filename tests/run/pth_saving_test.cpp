// SPDX-License-Identifier: MIT
#include "run/checkpoints/run_checkpoints.h"

#include <ATen/ATen.h>

#include "checkpoint/archive/mapped_file.h"
#include "model/unet/unet.h"
#include "run/decoder/decoder_data.h"
#include "run/dry_run.h"
#include "run/joint_toy.h"
#include "support/captured_log.h"
#include "support/mapped_files.h"
#include "support/message_of.h"

namespace dalle2::test {
namespace {

TEST_CASE("work in the background runs beside the caller, one piece after the other") {
  std::atomic<bool> may_end = false;
  std::vector<int> order;
  PthSaving job;
  job.start(true, {}, [&](const auto&) {
    while (!may_end) std::this_thread::yield();
    order.push_back(1);
  });
  job.check();  // does not wait
  CHECK(order.empty());
  may_end = true;
  job.start(true, {}, [&](const auto&) { order.push_back(2); });  // waits for the first
  job.wait();
  CHECK(order == std::vector<int>{1, 2});
  job.wait();  // nothing to wait for
}

TEST_CASE("an error of work in the background comes to the caller once") {
  PthSaving job;
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  CHECK_THROWS_WITH(job.wait(), "disk full");
  job.wait();
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  CHECK_THROWS_WITH(job.start(true, {}, [](const auto&) {}), "disk full");
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  const auto check_until_thrown = [&] {
    for (int i = 0; i < 10000; ++i) {
      job.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  CHECK_THROWS_WITH(check_until_thrown(), "disk full");
}

TEST_CASE("an error that nobody asked for is logged when the job goes") {
  std::string logged;
  set_log_sink([&](LogLevel level, const std::string&, const std::string& text) {
    if (level == LogLevel::kError) logged = text;
  });
  {
    PthSaving job;
    job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  }
  set_log_sink({});
  CHECK(logged == "disk full");
}

TEST_CASE("a save in the background gives back the space of scratch files when it is over") {
  const test::TempDir folder;
  const std::string part = folder / "scratch.part", file = folder / "saved.pth";
  const at::Tensor expected = at::arange(1000, at::kFloat);
  PthSaving saving;
  std::promise<void> go_on;
  {
    ScratchFile scratch(folder / "scratch");
    scratch.append(expected);
    saving.start(/*in_background=*/true,
                 {Value(scratch.tensor({1000}, at::kFloat))},
                 [&, begin = go_on.get_future().share()](const auto& writers) {
                   begin.wait();
                   writers.front()(file);
                 });
  }
  CHECK(test::maps_removed_file(part));
  go_on.set_value();
  saving.wait();
  CHECK_FALSE(test::maps_removed_file(part));
  CHECK(at::equal(Cursor(read_pth(file)).as_tensor(), expected));
}

/// A run that is asked to stop during its n-th update.
class StoppedRun : public JointToyRun {
 public:
  StoppedRun(const LoadedJointToy& loaded, int64_t stop_at)
      : JointToyRun(loaded, {.quiet = true}), stop_at_(stop_at) {}

 private:
  LogRecord step_values(double samples_per_second) override {
    if (++updates_ == stop_at_) stop_.make();
    return ShardRun::step_values(samples_per_second);
  }

  StopRequest stop_;
  int64_t stop_at_;
  int64_t updates_ = 0;
};

ExitCode run_until(const std::string& path, int64_t stop_at) {
  const LoadedJointToy loaded = parse_joint_toy(read_file(path), path, {});
  StoppedRun run(loaded, stop_at);
  run.open();
  return run.run();
}

/// Names of the snapshots, which say where the run stood.
std::set<std::string> snapshots_in(const TempDir& folder, const std::string& out) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / (out + "/snapshots"))) {
    const std::string name = entry.path().filename().string();
    if (name != "best.pth") names.insert(name);
  }
  return names;
}

TEST_CASE("a stop moves no snapshot that comes after it") {
  const TempDir folder;
  const auto config_of = [&](const std::string& out) {
    const std::string path = write_joint_toy(folder, out, 1);
    auto config = nlohmann::json::parse(read_file(path));
    config["train"]["grad_accum_every"] = 1;
    config["train"]["save_every_n_samples"] = 5;
    config["tracker"]["keep_last"] = 100;
    std::ofstream(path) << config.dump();
    return path;
  };
  CHECK(run_until(config_of("whole"), 0) == ExitCode::kDone);
  const std::set<std::string> expected = snapshots_in(folder, "whole");
  REQUIRE(expected.size() == 4);  // 21 samples, 3 an update: at 6, 12, 18 and the end of the epoch
  for (int64_t stop_at = 1; stop_at <= 6; ++stop_at) {
    CAPTURE(stop_at);
    const std::string out = "stopped" + std::to_string(stop_at);
    const std::string path = config_of(out);
    CHECK(run_until(path, stop_at) == ExitCode::kStopped);
    const std::set<std::string> of_stop = snapshots_in(folder, out);
    CHECK(run_until(path, 0) == ExitCode::kDone);
    std::set<std::string> all = expected;
    all.insert(of_stop.begin(), of_stop.end());  // what the stop itself saved is one more
    CHECK(snapshots_in(folder, out) == all);
    CHECK(all.size() == expected.size() + (stop_at % 2 == 0 ? 0 : 1));
  }
}

using nlohmann::json;

constexpr double kGib = 1 << 30;

/// Pictures so large that activations outweigh what does not depend on them.
json config_of_large_pictures(const TempDir& folder, int64_t side = 32) {
  json config = tiny_decoder_config(folder.path());
  config["decoder"]["image_size"] = side;
  config["data"]["preprocessing"] = {{"RandomResizedCrop", {{"size", {side, side}}}},
                                     {"ToTensor", true}};
  return config;
}

LoadedDecoderConfig loaded(const json& config) {
  return parse_decoder_config(config.dump(), "test.json", {});
}

struct Choice {
  int64_t levels = 0;
  uint64_t bytes = 0;
};

/// For the first unet.
Choice choose(const json& config, PeakMemory memory) {
  const LoadedDecoderConfig parsed = loaded(config);
  const DryRunPlan plan = decoder_dry_run_plan(parsed, nullptr);
  fit_memory_budget(plan, parsed.config.train, memory);
  return {dynamic_cast<UnetImpl&>(*plan.networks[0].module).recomputed_levels(),
          memory.activation_bytes[0]};
}

PeakMemory memory_of(const json& config, int64_t levels) {
  const LoadedDecoderConfig parsed = loaded(config);
  const DryRunPlan plan = decoder_dry_run_plan(parsed, nullptr);
  dynamic_cast<UnetImpl&>(*plan.networks[0].module).recompute_levels(levels);
  return peak_memory(plan, parsed.config.train, /*on_cpu=*/true);
}

TEST_CASE("a memory budget recomputes as few levels as it takes") {
  const TempDir folder;
  json config = config_of_large_pictures(folder);
  const PeakMemory kept = memory_of(config, 0);
  std::vector<uint64_t> bytes;
  for (int64_t levels = 0; levels <= 3; ++levels)
    bytes.push_back(memory_of(config, levels).activation_bytes[0]);
  for (size_t i = 1; i < bytes.size(); ++i) REQUIRE(bytes[i] < bytes[i - 1]);
  for (size_t i = 0; i < bytes.size(); ++i) {
    CAPTURE(i);
    // A budget that this number of levels just fits, and one less does not.
    config["train"]["memory_budget_gib"] =
        static_cast<double>(kept.kept_bytes + bytes[i] + 1) / kGib;
    const Choice choice = choose(config, kept);
    CHECK(choice.levels == static_cast<int64_t>(i));
    CHECK(choice.bytes == bytes[i]);
  }
  config["train"]["memory_budget_gib"] = static_cast<double>(kept.kept_bytes) / kGib;
  CHECK_THROWS_WITH(
      choose(config, kept),
      Catch::Contains("/train/memory_budget_gib is ") &&
          Catch::Contains("a step of unet 1 takes about ") &&
          Catch::Contains("or more, lower /data/batch_size, set /train/max_batch_size"));
}

TEST_CASE("the number that a too small memory budget names is enough") {
  const TempDir folder;
  json config = config_of_large_pictures(folder);
  const PeakMemory kept = memory_of(config, 0);
  config["train"]["memory_budget_gib"] = 0.001;
  const std::string message = message_of<ConfigError>([&] { choose(config, kept); });
  const size_t at = message.find("Give ");
  REQUIRE(at != std::string::npos);
  config["train"]["memory_budget_gib"] = std::stod(message.substr(at + 5));
  CHECK_NOTHROW(choose(config, kept));
}

TEST_CASE("a run with a memory budget trains the same weights") {
  const TempDir folder;
  json config = config_of_large_pictures(folder, 64);
  config["data"]["batch_size"] = 96;  // more than there are samples
  const auto weights = [&](const std::string& out) {
    config["tracker"]["data_path"] = folder / out;
    config["tracker"]["save"]["save_latest_to"] = folder / (out + "/latest.pth");
    const LoadedDecoderConfig parsed = loaded(config);
    const auto run = make_run(parsed, {.quiet = true});
    run->open();
    CHECK(run->run() == ExitCode::kDone);
    const Value file = read_pth(folder / (out + "/checkpoint.pth"));
    std::vector<at::Tensor> all;
    for (const auto& [name, tensor] : Cursor(file).at("model").as_state_dict())
      all.push_back(tensor.flatten().to(at::kDouble));
    return at::cat(all);
  };
  const at::Tensor plain = weights("plain");
  // Half of what the levels save: the start of the run finds other memory of the process in use.
  const PeakMemory all = memory_of(config, 0), least = memory_of(config, 3);
  REQUIRE(all.peak() > least.peak() + (uint64_t{100} << 20));
  const double budget = static_cast<double>(all.peak() / 2 + least.peak() / 2);
  config["train"]["memory_budget_gib"] = budget / kGib;
  const LoadedDecoderConfig parsed = loaded(config);
  CHECK(levels_to_recompute(parsed, nullptr, at::kCPU, nullptr)[0] > 0);
  const at::Tensor fitted = weights("fitted");
  // Recomputed gradients are summed in another order.
  CHECK((plain - fitted).norm().item<double>() < 1e-4 * plain.norm().item<double>());
  // Pictures in smaller batches fit, and the run goes on as it began nevertheless.
  config["data"]["batch_size"] = 2;
  config["train"]["epochs"] = 2;
  config["tracker"]["log"]["auto_resume"] = true;
  const CapturedLog log;
  weights("fitted");
  CHECK_THAT(log.text(),
             Catch::Contains("levels, as the run has so far; this start would recompute 0"));
}

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
         if (!network->weight.grad().defined())
           network->weight.mutable_grad() = at::zeros_like(network->weight);
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
}  // namespace dalle2::test
