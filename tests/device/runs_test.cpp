// SPDX-License-Identifier: MIT
// Whole runs of each kind, as a user starts them, on a device that is not the CPU.
#include <fcntl.h>
#include <torch/torch.h>

#include "checkpoint/pickle/pth.h"
#include "data/pictures/image_folder.h"
#include "io/files/atomic_file.h"
#include "model/random.h"
#include "optim/precision.h"
#include "run/commands.h"
#include "run/device/device.h"
#include "run/loop/run_position.h"
#include "run/loop/run_session.h"
#include "run/tiny_decoder.h"
#include "support/captured_log.h"
#include "support/fake_device.h"
#include "support/fixture.h"
#include "support/temp_dir.h"
#include "trainer/state_bits.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

/// "cuda" is the fake device for as long as it lives.
class FakeGpu {
 public:
  FakeGpu() { stand_in_for_cuda(fake_device()); }
  ~FakeGpu() { stand_in_for_cuda(std::nullopt); }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;
};

json tracker_of(const std::string& out) {
  return {
      {"data_path", out},
      {"overwrite_data_path", true},
      {"log", {{"log_type", "console"}, {"auto_resume", true}}},
      {"load",
       {{"load_from", "local"}, {"file_path", out + "/latest.pth"}, {"only_auto_resume", true}}},
      {"save", {{"save_to", "local"}, {"save_latest_to", out + "/latest.pth"}}}};
}

json decoder_config(const std::string& folder) {
  json config = tiny_decoder_config(folder);
  config["decoder"].erase("learned_variance");
  config["data"]["num_workers"] = 1;
  config["train"].update({{"device", "cuda"}, {"log_every_n_updates", 3}});
  config["data"]["batch_size"] = 2;
  return config;
}

json prior_config(const std::string& folder) {
  constexpr int64_t kRows = 40, kWidth = 8;
  for (const char* name : {"images", "texts"}) {
    std::filesystem::create_directories(folder + "/" + name);
    const at::Tensor values = at::randn({kRows, kWidth}, make_generator({1, name}, at::kCPU));
    write_npy_float32(
        folder + "/" + name + "/0.npy", {kRows, kWidth}, values.const_data_ptr<float>());
  }
  return {{"prior",
           {{"net",
             {{"dim", kWidth}, {"depth", 1}, {"dim_head", 8}, {"heads", 2}, {"max_text_len", 1}}},
            {"image_embed_dim", kWidth},
            {"timesteps", 20},
            {"sample_timesteps", 4},
            {"condition_on_text_encodings", false}}},
          {"data",
           {{"image_url", folder + "/images"},
            {"text_url", folder + "/texts"},
            {"batch_size", 6},
            {"splits", {{"train", 0.8}, {"val", 0.1}, {"test", 0.1}}}}},
          {"train",
           {{"device", "cuda"},
            {"lr", 1e-3},
            {"eval_timesteps", {4}},
            {"ema_update_after_step", 0},
            {"ema_update_every", 1}}},
          {"seed", 5}};
}

json vae_config(const std::string& folder) {
  std::filesystem::create_directories(folder + "/pictures");
  for (uint32_t i = 0; i < 20; ++i)
    write_png(fmt::format("{}/pictures/{}.png", folder, i), busy_picture(8, 8, i));
  return {{"vae", {{"dim", 16}, {"layers", 1}, {"codebook_size", 16}, {"discr_layers", 1}}},
          {"data",
           {{"folder", folder + "/pictures"},
            {"image_size", 8},
            {"batch_size", 2},
            {"valid_frac", 0.2}}},
          {"train",
           {{"device", "cuda"},
            {"num_train_steps", 6},
            {"save_results_every", 3},
            {"save_model_every", 3},
            {"vgg_path", fixture_folder("feature_networks") + "/pictures.pt"}}},
          {"seed", 5}};
}

json clip_config(const std::string& folder) {
  json data = tiny_decoder_config(folder).at("data");
  data.erase("img_embeddings_url");
  data["num_workers"] = 1;
  return {
      {"clip",
       {{"embed_dim", 8},
        {"vision_cfg",
         {{"layers", 1}, {"width", 16}, {"head_width", 8}, {"patch_size", 4}, {"image_size", 8}}},
        {"text_cfg", {{"context_length", 24}, {"width", 16}, {"heads", 2}, {"layers", 1}}},
        {"tokenizer", {{"train", 518}}}}},
      {"data", data},
      {"train", {{"device", "cuda"}, {"lr", 1e-3}, {"log_every_n_updates", 3}}},
      {"seed", 5}};
}

/// What `work` prints on stdout.
std::string printed_by(const std::function<void()>& work) {
  const TempDir folder;
  const std::string path = folder / "out";
  std::fflush(stdout);
  const int stdout_of_test = ::dup(STDOUT_FILENO);
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::close(file);
  std::exception_ptr fault;
  try {
    work();
  } catch (...) {
    fault = std::current_exception();
  }
  std::fflush(stdout);
  ::dup2(stdout_of_test, STDOUT_FILENO);
  ::close(stdout_of_test);
  if (fault) std::rethrow_exception(fault);
  return read_file(path);
}

class Kind {
 public:
  explicit Kind(const std::string& name) : name_(name) {
    config_ = name == "decoder" ? decoder_config(folder_.path())
              : name == "prior" ? prior_config(folder_.path())
              : name == "clip"  ? clip_config(folder_.path())
                                : vae_config(folder_.path());
  }
  std::string file(const std::string& out, const std::string& name) const {
    return folder_.path() + "/" + out + "/" + name;
  }
  json& config() { return config_; }
  /// @param length epochs; of a VAE steps
  void train(const std::string& out, int64_t length, bool quiet = true) const {
    TrainCommand command;
    command.config_path = write(out, length);
    command.quiet = quiet;
    CHECK(run_train(command) == ExitCode::kDone);
  }
  std::string write(const std::string& out, int64_t length) const {
    json config = config_;
    config["tracker"] = tracker_of(folder_.path() + "/" + out);
    config["train"][name_ == "vae" ? "num_train_steps" : "epochs"] = length;
    const std::string path = folder_.path() + "/" + out + ".json";
    write_file_atomically(path, config.dump());
    return path;
  }

 private:
  std::string name_;
  TempDir folder_;
  json config_;
};

void expect_same_state(const std::string& file, const std::string& other) {
  const Value one = read_pth(file), two = read_pth(other);
  int64_t compared = 0;
  for (const auto& [key, value] : one.as_dict().items) {
    const std::string name = key.as_string();
    if (name == "config" || name == kOwnState) continue;
    const Value* const found = two.as_dict().find(name);
    INFO(name);
    REQUIRE(found != nullptr);
    std::string bits, other_bits;
    append_bits(value, bits);
    append_bits(*found, other_bits);
    CHECK(bits == other_bits);
    ++compared;
  }
  CHECK(compared > 4);
}

TEST_CASE("runs on the fake device, resumed between, end with the CPU's checkpoint") {
  const std::string name = GENERATE("decoder", "prior", "clip");
  const bool by_graphs = name != "clip" && GENERATE(false, true);
  CAPTURE(name, by_graphs);
  Kind kind(name);
  kind.train("cpu", 2);  // no GPU, no stand-in
  if (by_graphs) kind.config()["train"]["cuda_graph"] = true;
  {
    const FakeGpu gpu;
    const CapturedLog log;
    kind.train("fake", 1, /*quiet=*/false);
    kind.train("fake", 2, /*quiet=*/false);
    INFO(log.text());
    CHECK((log.count("one CUDA graph each from now on") > 0) == by_graphs);
  }
  expect_same_state(kind.file("fake", "latest.pth"), kind.file("cpu", "latest.pth"));
}

TEST_CASE("pictures go to the device as bytes") {
  const std::string name = GENERATE("decoder", "clip");
  CAPTURE(name);
  const Kind kind(name);
  const FakeGpu gpu;
  const auto counts = counts_of([&] { kind.train("out", 1); });
  INFO(counts.text());
  int64_t bytes = 0, floats = 0;
  for (const auto& [what, times] : counts.by_name) {
    const bool is_batch =
        what.starts_with("upload") && what.find(", 3, 8, 8]") != std::string::npos;
    if (!is_batch || what.find("[1, ") != std::string::npos) continue;  // noise of a picture
    (what.ends_with("Byte") ? bytes : floats) += times;
  }
  CHECK(bytes > 3);
  CHECK(floats == 0);
}

std::string sampled(const Kind& kind, const std::string& name, const std::string& device) {
  const std::string out = "samples of " + device;
  SampleCommand command;
  command.checkpoint_path = kind.file("trained", "latest.pth");
  command.device = device;
  command.out_folder = kind.file(out, "");
  if (name == "decoder") {
    command.image_embeds_path = kind.file("img_emb", "img_emb_00000.npy");
  } else {
    command.text_embeds_path = kind.file("texts", "0.npy");
  }
  run_sample(command);
  return read_file(kind.file(out, name == "decoder" ? "samples.npy" : "image_embeds.npy"));
}

TEST_CASE("samples of a checkpoint are the same on the fake device") {
  const std::string name = GENERATE("decoder", "prior");
  CAPTURE(name);
  const Kind kind(name);
  kind.train("trained", 1);
  const std::string expected = sampled(kind, name, "cpu");
  const FakeGpu gpu;
  CHECK(sampled(kind, name, "cuda") == expected);
}

TEST_CASE("a run of a VAE on the fake device goes on from its checkpoint") {
  const Kind kind("vae");
  const FakeGpu gpu;
  kind.train("whole", 6);
  kind.train("parts", 3);
  kind.train("parts", 6);
  expect_same_state(kind.file("parts", "latest.pth"), kind.file("whole", "latest.pth"));
}

TEST_CASE("a VAE's batches for a GPU are bytes in page-locked memory") {
  const TempDir folder;
  vae_config(folder.path());  // makes the pictures
  write_file_atomically(folder.path() + "/pictures/3.png", "nothing");
  VaeDataConfig config;
  config.folder = folder.path() + "/pictures";
  config.image_size = 8;
  config.valid_frac = 0;
  const int64_t channels = GENERATE(1, 3);
  CAPTURE(channels);
  ImageFolder floats(config, channels, /*seed=*/5);
  ImageFolder bytes(config, channels, /*seed=*/5, fake_device());
  const at::Tensor expected = floats.batch("train", 0, 0, 20)->images;
  at::Tensor images = bytes.batch("train", 0, 0, 20)->images;
  CHECK(images.scalar_type() == at::kByte);
  CHECK(images.is_pinned());
  copy_to_device(fake_device(), {&images});
  REQUIRE(expected.size(0) == 19);
  CHECK(at::equal(images.cpu(), expected));
}

/// Without the figures that name the device or what was installed.
json evaluated(const Kind& kind, const std::string& device) {
  EvaluateCommand command;
  command.config_path = kind.write("evaluated", 1);
  command.checkpoint_path = kind.file("trained", "latest.pth");
  command.overrides = {"/train/device=\"" + device + "\""};
  ExitCode code = ExitCode::kFailed;
  const std::string printed = printed_by([&] { code = run_evaluate(command); });
  INFO(printed);
  REQUIRE(code == ExitCode::kDone);
  json figures = json::parse(printed);
  figures.erase("evaluation");
  return figures;
}

TEST_CASE("figures of a checkpoint are the same on the fake device") {
  const std::string name = GENERATE("decoder", "prior", "vae", "clip");
  CAPTURE(name);
  Kind kind(name);
  if (name == "decoder") {
    const std::string networks = fixture_folder("feature_networks");
    kind.config()["evaluate"] = {
        {"n_evaluation_samples", 4},
        {"KID", {{"feature_extractor_weights_path", networks + "/ours.pt"}, {"subset_size", 2}}},
        {"IS", {{"feature_extractor_weights_path", networks + "/ours.pt"}}}};
  }
  kind.config()["train"]["device"] = "cpu";
  kind.train("trained", name == "vae" ? 2 : 1);
  const json expected = evaluated(kind, "cpu");
  const FakeGpu gpu;
  const json found = evaluated(kind, "cuda");
  REQUIRE(found.size() == expected.size());
  int64_t compared = 0;
  for (const auto& [figure, value] : expected.items()) {
    INFO(figure);
    // The convolutions of a VAE lie in memory in another order on the CPU, and a network of metrics
    // may choose its kernels by the device.
    CHECK(found.at(figure).get<double>() == Approx(value.get<double>()).epsilon(1e-4).margin(1e-6));
    ++compared;
  }
  CHECK(compared >= 3);
}

/// Values and copies that the host takes from the device.
int64_t reads_of_run(const std::string& name, const std::function<void(json&)>& change) {
  Kind kind(name);
  change(kind.config());
  const FakeGpu gpu;
  const auto counts = counts_of([&] { kind.train("out", name == "vae" ? 4 : 1); });
  return counts.host_reads + counts.downloads;
}

TEST_CASE("a validation reads as much of a hundred batches as of one") {
  const auto reads = [](const std::string& name, int64_t samples) {
    return reads_of_run(name,
                        [&](json& config) { config["train"]["validation_samples"] = samples; });
  };
  CHECK(reads("decoder", 2) == reads("decoder", 6));
  CHECK(reads("vae", 2) == reads("vae", 4));
  CHECK(reads("clip", 3) == reads("clip", 7));
  const auto reads_of_prior = [](double share) {
    return reads_of_run("prior", [&](json& config) {
      config["data"]["batch_size"] = 2;
      config["data"]["splits"] = {{"train", 0.5}, {"val", share}, {"test", 0.5 - share}};
    });
  };
  CHECK(reads_of_prior(0.1) == reads_of_prior(0.4));
}

TEST_CASE("a run computes in TF32 where its config says so") {
  SharedTrainConfig train;
  train.device = "cuda";
  const FakeGpu gpu;
  for (const Tf32 where : {Tf32::no, Tf32::all, Tf32::convolutions}) {
    train.tf32 = where;
    CHECK(prepare_device(train) == fake_device());
    CHECK(tf32_in_use() == where);
  }
  train.tf32 = Tf32::all;
  train.device = "cpu";
  CHECK(prepare_device(train).is_cpu());
  CHECK(tf32_in_use() == Tf32::convolutions);  // left alone
}

}  // namespace
}  // namespace dalle2::test
