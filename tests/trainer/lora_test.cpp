// SPDX-License-Identifier: MIT
// A decoder whose low-rank adapters are trained.
#include "model/lora.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/post_hoc.h"
#include "model/attention.h"
#include "model/unet/unet.h"
#include "optim/flat_parameters.h"
#include "optim/optimizer.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

DecoderTrainConfig lora_config(const test::TrainerFixture& fixture) {
  DecoderTrainConfig config = fixture.train_config();
  config.lora.rank = 2;
  config.lora.alpha = 6;
  config.lr = 1e-2;
  return config;
}

void train(DecoderTrainer& trainer, int64_t begin, int64_t end) {
  test::train(trainer, begin, end, /*batch=*/3);
}

std::unique_ptr<DecoderTrainer> make_trainer(const test::TrainerFixture& fixture,
                                             const DecoderTrainConfig& config) {
  torch::manual_seed(4);
  return fixture.trainer(config);
}

Value through_file(const Dict& state) {
  const test::TempDir folder;
  write_pth(folder / "state.pth", state);
  return read_pth(folder / "state.pth");
}

StateDict weights_of(const DecoderTrainer& trainer) {
  StateDict weights;
  for (const auto& [name, tensor] : state_dict(*trainer.decoder()))
    weights.emplace_back(name, tensor.clone());
  return weights;
}

bool is_adapter(const std::string& name) {
  return name.find(".lora.") != std::string::npos;
}

size_t count_adapter_tensors(const StateDict& weights) {
  return static_cast<size_t>(std::count_if(
      weights.begin(), weights.end(), [](const auto& entry) { return is_adapter(entry.first); }));
}

TEST_CASE("adapters learn, and of the network not a bit changes") {
  DecoderTrainConfig config = lora_config(test::cascade());
  config.lora.rank = 1;
  const auto trainer = make_trainer(test::cascade(), config);
  const auto plain = make_trainer(test::cascade(), test::cascade().train_config());
  CHECK(trainer->uses_lora());
  const auto first = [](DecoderTrainer& t) {
    return t.step(test::drawn_inputs(3, 0), 1, make_generator({0, "train"}, at::kCPU))
        .item<double>();
  };
  CHECK(first(*trainer) == first(*plain));
  for (const auto& item : trainer->decoder()->named_parameters()) {
    CHECK(item.value().requires_grad() == is_adapter(item.key()));
    if (!is_adapter(item.key())) CHECK_FALSE(item.value().grad().defined());
  }
  trainer->update(1);
  const StateDict before = weights_of(*trainer);
  train(*trainer, 1, 9);
  const StateDict after = weights_of(*trainer);
  size_t changed = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    INFO(before[i].first);
    const bool equal = at::equal(before[i].second, after[i].second);
    if (!is_adapter(before[i].first)) CHECK(equal);
    changed += equal ? 0 : 1;
  }
  CHECK(changed == count_adapter_tensors(after));
  REQUIRE(trainer->lora_state());
  CHECK(trainer->lora_state()->info.rank == 1);
  CHECK(trainer->lora_state()->info.alpha == 6);
}

TEST_CASE("optimizer, averages and gradients know nothing of what is frozen") {
  for (const EmaKind kind : {EmaKind::ema_pytorch, EmaKind::diffusers}) {
    DecoderTrainConfig config = lora_config(test::cascade());
    config.ema.kind = kind;
    const auto trainer = make_trainer(test::cascade(), config);
    train(*trainer, 0, 2);
    const Value state = trainer->state();
    const Cursor root(state);
    const StateDict model = root.at("model").as_state_dict();
    const size_t adapters = count_adapter_tensors(model);
    CHECK(adapters > 20);
    size_t optimized = 0;
    for (const char* key : {"optim0", "optim1"}) optimized += root.at(key).at("state").size();
    CHECK(optimized == adapters);
    if (kind == EmaKind::ema_pytorch) {
      // Two copies, and two counters a unet.
      CHECK(root.at("ema").as_state_dict().size() == 2 * adapters + 4);
    } else {
      size_t averaged = 0;
      for (size_t i = 0; i < 2; ++i)
        averaged += root.at("ema_diffusers").at(i).at("shadow_params").size();
      CHECK(averaged == adapters);
    }
    CHECK(root.at("lora").at("rank").as_int() == 2);
    CHECK(root.at("lora").at("alpha").as_double() == 6);
    CHECK(root.at("lora").at("targets").size() == 3);
  }
}

TEST_CASE("the chunk size does not change what dropout drops") {
  DecoderTrainConfig config = lora_config(test::cascade());
  config.lora.dropout = 0.4;
  const auto whole = make_trainer(test::cascade(), config),
             chunked = make_trainer(test::cascade(), config);
  train(*whole, 0, 4);
  train(*chunked, 0, 4);
  TrainerProbe::set_max_batch_size(*chunked, 2);
  const auto loss = [](DecoderTrainer& trainer) {
    return trainer.step(test::drawn_inputs(5, 1), 2, make_generator({0, "train", 0, 77}, at::kCPU))
        .item<double>();
  };
  CHECK(loss(*chunked) == Approx(loss(*whole)).epsilon(1e-6));
}

TEST_CASE("adapters begin on the weights of a decoder without any") {
  const auto base = make_trainer(test::cascade(), test::cascade().train_config());
  train(*base, 0, 6);
  const Value saved = through_file(base->state());
  const StateDict weights = Cursor(saved).at("model").as_state_dict();

  const auto check = [&](const char* name) {
    const test::TrainerFixture shape(name);
    const auto trainer = make_trainer(shape, [&] {
      DecoderTrainConfig config = lora_config(test::cascade());
      config.unet_training_mask = shape.train_config().unet_training_mask;
      return config;
    }());
    const test::CapturedLog log;
    trainer->load_base(weights, "base.pth");
    CHECK(log.count("base.pth: the weights of the network, without adapters") == 1);
    for (int64_t unet = 1; unet <= 2; ++unet) {
      if (!trainer->is_trained(unet)) continue;
      CHECK(trainer->steps(unet) == 0);
      const DecoderInputs inputs = test::drawn_inputs(2, 3);
      const auto random = [] { return make_generator({0, "validate"}, at::kCPU); };
      CHECK(trainer->evaluate(inputs, unet, random()).item<double>() ==
            base->evaluate(inputs, unet, random()).item<double>());
      for (const auto& item : TrainerProbe::averaged(*trainer, unet)) {
        const at::Tensor* theirs =
            find_tensor(weights, fmt::format("unets.{}.{}", unet - 1, item.key()));
        if (!is_adapter(item.key())) CHECK(at::equal(item.value(), *theirs));
      }
    }
  };
  check("cascade");
  check("masked");

  StateDict damaged = weights;
  damaged.erase(std::find_if(damaged.begin(), damaged.end(), [](const auto& entry) {
    return entry.first == "unets.0.init_conv.convs.0.weight";
  }));
  const auto trainer = make_trainer(test::cascade(), lora_config(test::cascade()));
  CHECK_THROWS_WITH(trainer->load_base(damaged, "base.pth"),
                    Catch::Contains("base.pth: does not fit the model") &&
                        Catch::Contains("missing (1):\n    unets.0.init_conv.convs.0.weight"));
}

TEST_CASE("the model file of a run with adapters holds plain weights that do the same") {
  for (const FrozenDtype dtype : {FrozenDtype::fp32, FrozenDtype::bf16}) {
    DecoderTrainConfig config = lora_config(test::cascade());
    config.frozen_dtype = dtype;
    const auto trainer = make_trainer(test::cascade(), config);
    train(*trainer, 0, 8);
    const Value model = through_file(trainer->model_state());
    const StateDict merged = Cursor(model).at("model").as_state_dict();
    CHECK_FALSE(has_lora(merged));
    for (const auto& [name, tensor] : merged) {
      if (tensor.is_floating_point()) CHECK(tensor.scalar_type() == at::kFloat);
    }
    const auto plain = make_trainer(test::cascade(), test::cascade().train_config());
    load_state_dict(*plain->decoder(), merged);
    DecoderSampleOptions options;
    options.image_embeds = test::drawn_inputs(2, 9).image_embeds;
    options.generator = make_generator({5, "sample"}, at::kCPU);
    const at::Tensor with_adapters = trainer->sample(options);
    options.generator = make_generator({5, "sample"}, at::kCPU);
    test::expect_close(
        plain->sample(options, /*use_non_ema=*/true), with_adapters, 1e-5, "samples");

    // The same from the file of adapters and the base.
    const std::optional<LoraFile> lora = trainer->lora_state();
    REQUIRE(lora);
    StateDict base;
    for (const auto& entry : state_dict(*trainer->decoder())) {
      if (!is_adapter(entry.first)) base.push_back(entry);
    }
    const StateDict joined =
        merged_lora(base, lora_adapters(lora->tensors, lora->info.alpha, "x"), "x");
    CHECK(joined.size() == merged.size());
    test::expect_equal(joined, merged);
  }
}

TEST_CASE("averaged weights of a checkpoint with adapters are those of its model file") {
  for (const EmaKind kind : {EmaKind::ema_pytorch, EmaKind::diffusers}) {
    DecoderTrainConfig config = lora_config(test::cascade());
    config.ema.kind = kind;
    const auto trainer = make_trainer(test::cascade(), config);
    train(*trainer, 0, 8);
    const Value state = trainer->state(), model = trainer->model_state();
    const StateDict averaged = merged_lora(averaged_weights(Cursor(state)), 6, "x");
    const StateDict expected = Cursor(model).at("model").as_state_dict();
    CHECK(averaged.size() == expected.size());
    test::expect_equal(averaged, expected);
  }
}

TEST_CASE("an average of adapters that is chosen after training comes as plain weights") {
  DecoderTrainConfig config = lora_config(test::cascade());
  config.post_hoc_ema.save_every_n_steps = 2;
  const auto trainer = make_trainer(test::cascade(), config);
  train(*trainer, 0, 6);
  const test::TempDir folder;
  write_pth(folder / "step.pth", trainer->post_hoc_state());
  const Value model = combine_post_hoc({folder / "step.pth"}, {.sigma = 0.1}).model_file;
  const StateDict weights = Cursor(model).at("model").as_state_dict();
  CHECK_FALSE(has_lora(weights));
  const auto plain = make_trainer(test::cascade(), test::cascade().train_config());
  CHECK_NOTHROW(load_state_dict(*plain->decoder(), weights));
}

TEST_CASE("a frozen network in half precision takes half the memory and trains alike") {
  std::vector<double> losses, bytes;
  for (const FrozenDtype dtype : {FrozenDtype::fp32, FrozenDtype::bf16, FrozenDtype::fp16}) {
    DecoderTrainConfig config = lora_config(test::cascade());
    config.frozen_dtype = dtype;
    const auto trainer = make_trainer(test::cascade(), config);
    train(*trainer, 0, 6);
    losses.push_back(
        trainer->evaluate(test::drawn_inputs(3, 8), 1, make_generator({0, "x"}, at::kCPU))
            .item<double>());
    size_t sum = 0;
    for (const auto& item : trainer->decoder()->named_parameters()) {
      if (!is_adapter(item.key())) sum += item.value().nbytes();
      if (is_adapter(item.key())) CHECK(item.value().scalar_type() == at::kFloat);
    }
    bytes.push_back(static_cast<double>(sum));
  }
  for (const size_t low : {size_t{1}, size_t{2}}) {
    CHECK(bytes[low] < 0.56 * bytes[0]);
    CHECK(losses[low] == Approx(losses[0]).epsilon(0.02));
    CHECK(losses[low] != losses[0]);
  }
}

TEST_CASE("a checkpoint with adapters is refused by a run without") {
  const auto trainer = make_trainer(test::cascade(), lora_config(test::cascade()));
  const Value state = trainer->state();
  const auto plain = make_trainer(test::cascade(), test::cascade().train_config());
  CHECK_THROWS_WITH(
      plain->load_state(state, false, true, "run.pth"),
      "run.pth: holds adapters, and this run has none: set /train/lora as in the run that made the "
      "file, or make plain weights of it: dalle2-train convert --merge-lora IN OUT");
  CHECK_FALSE(plain->lora_state());
}

TEST_CASE("another alpha than the checkpoint's is mentioned, another rank refused") {
  const Value state = make_trainer(test::cascade(), lora_config(test::cascade()))->state();
  DecoderTrainConfig config = lora_config(test::cascade());
  config.lora.alpha = 1;
  {
    const test::CapturedLog log;
    make_trainer(test::cascade(), config)->load_state(state, false, true, "run.pth");
    CHECK(log.count("run.pth: /lora: saved with an alpha of 6; this run uses its own "
                    "/train/lora/alpha = 1") == 1);
  }
  config.lora.rank = 3;
  const auto trainer = make_trainer(test::cascade(), config);
  CHECK_THROWS_WITH(trainer->load_state(state, false, true, "run.pth"),
                    Catch::Contains("of another shape") && Catch::Contains("lora.down.weight"));
}

// Adapters against PEFT: outputs, gradients, and steps of AdamW over flat buffers.
// Sums of float32 in another order (folded projections, fused norms).
constexpr double kTolerance = 1e-5;
// Adam divides a gradient by its own size, so that small ones bring their rounding to the weights.
constexpr double kStepTolerance = 2e-4;
// The fixture says how far the reference's own weights end when it begins with all of them off by
// one rounding. Some hundred operations round once each, so it may be 20 times that.
constexpr double kNoiseSteps = 20;

/// A network of the fixture with the weights of its names there, and a way to run it.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> run;
  std::string prefix_here = {}, prefix_there = {};

  std::string name_there(const std::string& name) const {
    return prefix_there + name.substr(prefix_here.size());
  }
};

UnetConfig unet_config(const nlohmann::json& json) {
  UnetConfig config;
  config.dim = json.at("dim");
  config.dim_mults = json.at("dim_mults").get<std::vector<int64_t>>();
  config.image_embed_dim = json.at("image_embed_dim").get<int64_t>();
  config.cond_dim = json.at("cond_dim").get<int64_t>();
  config.num_resnet_blocks = json.at("num_resnet_blocks").get<int64_t>();
  config.resnet_groups = json.at("resnet_groups").get<int64_t>();
  config.num_image_tokens = json.at("num_image_tokens");
  config.num_time_tokens = json.at("num_time_tokens");
  config.attn_heads = json.at("attn_heads");
  config.attn_dim_head = json.at("attn_dim_head");
  config.self_attn = json.at("self_attn").get<std::vector<bool>>();
  config.sparse_attn = json.at("sparse_attn");
  config.cond_on_image_embeds = true;
  return config;
}

Network make_network(const test::Fixture& fixture) {
  const std::string kind = fixture.json.at("kind");
  const at::Tensor x = fixture.tensor("in.x");
  if (kind == "unet") {
    auto unet = std::make_shared<UnetImpl>(unet_config(fixture.json.at("unet")));
    UnetConditions conditions;
    conditions.image_embed = fixture.tensor("in.embed");
    const at::Tensor time = fixture.tensor("in.time");
    return {unet, [=] { return unet->forward(x, time, conditions); }};
  }
  if (kind == "cross") {
    auto cross = std::make_shared<CrossAttentionImpl>(12, 6, /*cosine_sim=*/false);
    const at::Tensor context = fixture.tensor("in.context");
    return {cross, [=] { return cross->forward(x, context); }};
  }
  const auto& shape = fixture.json.at("shape");
  const int64_t dim = shape.at("dim"), heads = shape.at("heads"), dim_head = shape.at("dim_head");
  if (kind == "attention") {
    auto attention = std::make_shared<AttentionImpl>(dim, heads, dim_head, /*cosine_sim=*/false);
    return {attention, [=] { return attention->forward(x); }};
  }
  auto linear = std::make_shared<LinearAttentionImpl>(dim, heads, dim_head);
  return {linear, [=] { return linear->forward(x); }, "fn.", "0."};
}

/// The network with the fixture's adapters.
Network load_network(const test::Fixture& fixture) {
  Network network = make_network(fixture);
  const torch::NoGradGuard no_grad;
  for (const auto& item : network.module->named_parameters())
    item.value().copy_(test::golden_weight(network.name_there(item.key()), item.value().sizes()));
  const auto& lora = fixture.json.at("lora");
  attach_lora(*network.module,
              lora.at("targets").get<std::vector<std::string>>(),
              {.rank = lora.at("rank"), .alpha = lora.at("alpha")});
  freeze_base(*network.module, lora.value("train_bias", false));
  network.module->train();
  for (const auto& item : network.module->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    item.value().copy_(fixture.tensor("start." + network.name_there(item.key())));
  }
  return network;
}

at::Tensor loss_of(const at::Tensor& out) {
  const at::Tensor target = at::arange(out.numel(), at::kFloat).sin().view(out.sizes());
  return (out - target).square().mean();
}

/// Relative to a gradient's own size, and what the rounding of the largest ones leaves in all.
double allowed(const at::Tensor& gradient, double largest) {
  const double own = gradient.abs().max().item<double>();
  return own > 0 ? 1e-4 + 1e-6 * largest / own : 1e-6 * largest;
}

void check_gradients(const test::Fixture& fixture, const Network& network) {
  double largest = 0;
  for (const auto& [name, gradient] : fixture.below("grad."))
    largest = std::max(largest, gradient.abs().max().item<double>());
  size_t compared = 0;
  for (const auto& item : network.module->named_parameters()) {
    const std::string key = "grad." + network.name_there(item.key());
    INFO(key);
    REQUIRE(item.value().grad().defined() == fixture.has(key));
    if (!fixture.has(key)) continue;
    const double tolerance = allowed(fixture.tensor(key), largest);
    test::expect_close(item.value().grad(), fixture.tensor(key), tolerance, key);
    if (tolerance < 1e-2) ++compared;
  }
  // Of the unet most are small beside those of its last layers.
  CHECK(compared > std::min<size_t>(fixture.below("grad.").size() / 2, 30));
}

TEST_CASE("adapters give PEFT's outputs, gradients and five steps of AdamW") {
  for (const char* name :
       {"attention", "cross_folded", "cross_plain", "linear_attention", "unet"}) {
    const test::Fixture fixture = test::load_fixture(std::string("lora/") + name);
    const Network network = load_network(fixture);
    INFO(name);
    for (const auto& frozen : fixture.json.at("frozen")) {
      const std::string ours =
          network.prefix_here + frozen.get<std::string>().substr(network.prefix_there.size());
      REQUIRE(network.module->named_parameters().contains(ours));
      CHECK_FALSE(network.module->named_parameters()[ours].requires_grad());
    }
    FlatParameters parameters(*network.module, trained_parameters(*network.module));
    CHECK(parameters.parameters().size() == fixture.below("start.").size());
    FlatGradients gradients(parameters);
    OptimizerOptions options;
    options.weight_decay = fixture.json.at("adamw").at("weight_decay");
    options.group_wd_params = false;
    Optimizer optimizer(parameters, options);
    const auto losses = fixture.json.at("losses").get<std::vector<double>>();
    for (size_t step = 0; step < losses.size(); ++step) {
      const at::Tensor out = network.run();
      if (step == 0) test::expect_close(out, fixture.tensor("out"), kTolerance, "output");
      const at::Tensor loss = loss_of(out);
      CHECK(loss.item<double>() == Approx(losses[step]).epsilon(step == 0 ? 1e-5 : 1e-3));
      loss.backward();
      if (step == 0) check_gradients(fixture, network);
      optimizer.step(gradients, fixture.json.at("adamw").at("lr"), at::ones({}), at::zeros({}));
      optimizer.count_update();
      gradients.zero_grad();
    }
    for (const FlatEntry& entry : parameters.parameters()) {
      if (entry.name.find(".lora.") == std::string::npos) continue;
      const std::string there = network.name_there(entry.name);
      const at::Tensor& end = fixture.tensor("end." + there);
      const double noise = fixture.json.at("end_noise").at(there);
      const double rounding = kNoiseSteps * noise / end.abs().max().item<double>();
      CHECK(rounding < 1e-2);  // or the comparison says nothing
      test::expect_close(entry.tensor, end, kStepTolerance + rounding, entry.name);
    }
  }
}

}  // namespace
}  // namespace dalle2
