// SPDX-License-Identifier: MIT
#include "config/shared/train_rules.h"

#include "config/minimal_prior.h"
#include "config/reading/reflect.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {

namespace {

using Lines = std::vector<std::string>;

/// The findings as lines, warnings behind errors.
Lines lines_of(const Faults& faults) {
  Lines lines;
  for (const Fault& fault : faults.errors()) lines.push_back("error " + fault_line(fault));
  for (const Fault& fault : faults.warnings()) lines.push_back("warning " + fault_line(fault));
  return lines;
}

/// What the rules say of the defaults of a decoder with a change.
template <class Change>
Lines rules_of(Change change) {
  DecoderTrainConfig train;
  change(train);
  Faults faults;
  check_shared_options(train, DecoderTrainConfig(), faults);
  return lines_of(faults);
}

constexpr const char* kEmaOff =
    "warning /train/use_ema: is false: the keys train.ema, train.ema_* and "
    "train.update_model_with_ema_every have no effect";
constexpr const char* kWidthsOff =
    "error /train/post_hoc_ema/save_every_n_steps: must be given for the widths to have an effect, "
    "got null";
constexpr const char* kLoraOff =
    "warning /train/lora/rank: is 0: the other keys of lora have no effect, and the whole network "
    "is trained";
constexpr const char* kRollBackOnly =
    "warning /train/non_finite/action: lr_factor and max_roll_backs have an effect with "
    "\"roll_back\" only, got \"stop\"";

}  // namespace

TEST_CASE("the defaults break no rule, and without an average its options have no effect") {
  CHECK(rules_of([](auto&) {}) == Lines{});
  CHECK(rules_of([](auto& t) { t.use_ema = false; }) == Lines{});
  CHECK(rules_of([](auto& t) { t.use_ema = false, t.ema_beta = 0.5; }) == Lines{kEmaOff});
  CHECK(rules_of([](auto& t) { t.use_ema = false, t.ema.decay = 0.5; }) == Lines{kEmaOff});
  CHECK(rules_of([](auto& t) { t.use_ema = false, t.update_model_with_ema_every = 5; }) ==
        Lines{kEmaOff});
}

TEST_CASE("each kind of average refuses or names the options of the other") {
  const Lines needs_kind = {
      "error /train/ema/kind: must be \"diffusers\" for the other keys of ema to have an effect, "
      "got \"ema_pytorch\", which has train.ema_beta, train.ema_update_after_step, ..."};
  CHECK(rules_of([](auto& t) { t.ema.decay = 0.5; }) == needs_kind);
  CHECK(rules_of([](auto& t) { t.ema.offload = true; }) == needs_kind);
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers; }) == Lines{});
  CHECK(rules_of(
            [](auto& t) { t.ema.kind = EmaKind::diffusers, t.update_model_with_ema_every = 10; }) ==
        Lines{"error /train/update_model_with_ema_every: must be null with ema.kind \"diffusers\", "
              "got 10; only \"ema_pytorch\" copies the average back"});
  const Lines shaped = {
      "warning /train/ema/kind: the keys train.ema_* have no effect with \"diffusers\": "
      "train.ema.decay, train.ema.update_after_step, ... take their place"};
  const auto of_diffusers = [](auto change) {
    return rules_of([&](auto& t) { t.ema.kind = EmaKind::diffusers, change(t); });
  };
  CHECK(of_diffusers([](auto& t) { t.ema_beta = 0.5; }) == shaped);
  CHECK(of_diffusers([](auto& t) { t.ema_update_after_step = 1; }) == shaped);
  CHECK(of_diffusers([](auto& t) { t.ema_update_every = 1; }) == shaped);
  CHECK(of_diffusers([](auto& t) { t.ema_inv_gamma = 2; }) == shaped);
  CHECK(of_diffusers([](auto& t) { t.ema_power = 2; }) == shaped);
  CHECK(of_diffusers([](auto& t) { t.ema_min_value = 0.5; }) == shaped);
}

TEST_CASE("two averages after training have two widths, and are saved") {
  CHECK(rules_of([](auto& t) { t.post_hoc_ema.save_every_n_steps = 5; }) == Lines{});
  CHECK(rules_of([](auto& t) { t.post_hoc_ema.sigmas = {0.05, 0.2}; }) == Lines{kWidthsOff});
  CHECK(rules_of([](auto& t) {
          t.post_hoc_ema = {.save_every_n_steps = 5, .sigmas = {0.1, 0.1}};
        }) ==
        Lines{"error /train/post_hoc_ema/sigmas: must be two different widths, got 0.1 twice"});
}

TEST_CASE("without adapters nothing is frozen, and their options have no effect") {
  CHECK(rules_of([](auto& t) { t.lora.alpha = 4; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.targets = {"to_q"}; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.init = LoraInit::kaiming; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.dropout = 0.1; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.train_bias = true; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.frozen_dtype = FrozenDtype::bf16; }) ==
        Lines{"error /train/frozen_dtype: must be \"fp32\" without adapters, because then nothing "
              "is frozen; set train.lora.rank to train adapters"});
  CHECK(rules_of([](auto& t) {
          t.lora.rank = 4, t.lora.alpha = 4, t.frozen_dtype = FrozenDtype::bf16;
        }) == Lines{});
}

TEST_CASE("what switches nothing is told: amp beside a precision, roll-backs that never come") {
  CHECK(rules_of([](auto& t) { t.amp = true, t.mixed_precision = MixedPrecision::no; }) ==
        Lines{"warning /train/amp: has no effect: train.mixed_precision is \"no\""});
  CHECK(rules_of([](auto& t) { t.amp = true, t.mixed_precision = MixedPrecision::bf16; }) ==
        Lines{});
  CHECK(rules_of([](auto& t) { t.non_finite.lr_factor = 0.1; }) == Lines{kRollBackOnly});
  CHECK(rules_of([](auto& t) { t.non_finite.max_roll_backs = 1; }) == Lines{kRollBackOnly});
  CHECK(rules_of([](auto& t) {
          t.non_finite.action = NonFiniteAction::roll_back, t.non_finite.lr_factor = 0.1;
        }) == Lines{});
}

TEST_CASE("a saver of adapters is refused in a run without them, by its number") {
  DecoderTrainConfig train;
  TrackerConfig tracker;
  tracker.save = {LocalSaveConfig{}, LocalSaveConfig{}};
  std::get<LocalSaveConfig>(tracker.save[1]).save_type = SaveType::lora;
  Faults faults;
  check_savers(train, tracker, faults);
  CHECK(lines_of(faults) ==
        Lines{"error /tracker/save: saver 2 has save_type \"lora\", but this run trains no "
              "adapters: set train.lora.rank, or choose \"checkpoint\" or \"model\""});
  train.lora.rank = 2;
  Faults none;
  check_savers(train, tracker, none);
  CHECK(lines_of(none) == Lines{});
}

TEST_CASE("DREAM trains networks that predict the noise, and no others") {
  const NetworkName network{"unet 2", "decoder", "image"};
  const auto of = [&](bool enabled, Objective objective) {
    Faults faults;
    check_dream({.enabled = enabled}, objective, network, faults);
    return lines_of(faults);
  };
  CHECK(of(true, Objective::eps) == Lines{});
  CHECK(of(false, Objective::v) == Lines{});
  CHECK(of(true, Objective::v) ==
        Lines{"error /train/dream/enabled: DREAM has not been implemented for v-prediction: unet 2 "
              "predicts v; set predict_v and predict_x_start of the decoder to false for it, or "
              "dream.enabled to false"});
  CHECK(of(true, Objective::x_start) ==
        Lines{"error /train/dream/enabled: Unknown prediction type sample: unet 2 predicts the "
              "clean image; set predict_v and predict_x_start of the decoder to false for it, or "
              "dream.enabled to false"});
  Faults faults;
  check_loss_options({.enabled = false, .detail_preservation = 2}, faults);
  check_loss_options({.enabled = true, .detail_preservation = 2}, faults);
  CHECK(lines_of(faults) ==
        Lines{"warning /train/dream/enabled: is false: the other keys of dream have no effect"});
}

// Commands in urls run only where the config file itself says so.
namespace {

constexpr const char* kForbidden =
    "/data/allow_pipe: is false, and an url is a command (\"pipe:...\"), which would run on this "
    "machine with your rights: write \"allow_pipe\": true into the \"data\" of the config file if "
    "you trust it";
constexpr const char* kNotBySet =
    "/data/allow_pipe: only the config file itself can allow commands, --set cannot: write "
    "\"allow_pipe\": true into its \"data\" if you trust them";

/// The text of a config file with a command for its shards and some values assigned.
std::string command_file(std::vector<std::string> assignments) {
  assignments.insert(assignments.begin(), "/data/webdataset_base_url=pipe:cat {}.tar");
  return file_with(kMinimalConfig, assignments);
}

std::string faults_of(const std::string& file, const ReadOptions& options = {}) {
  return message_of([&] { parse_decoder_config(file, "test.json", options); });
}

std::string one_problem(const char* line) {
  return std::string("test.json: 1 problem\n  ") + line;
}

}  // namespace

TEST_CASE("a command is refused unless the file allows it, with what to write") {
  CHECK(faults_of(command_file({})) == one_problem(kForbidden));
  CHECK(faults_of(command_file({"/data/allow_pipe=false"})) == one_problem(kForbidden));
  for (const char* yes : {"true", "1", "\"yes\""}) {
    INFO(yes);
    CHECK(faults_of(command_file({std::string("/data/allow_pipe=") + yes})) == "no error");
  }
}

TEST_CASE("a command is found in lists of urls and in the urls of embeddings") {
  for (const char* assignment : {R"(/data/webdataset_base_url=["a.tar", "pipe:cat b.tar"])",
                                 "/data/webdataset_base_url=shards/a.tar::pipe:cat b.tar",
                                 "/data/img_embeddings_url=pipe:cat {}.npy"}) {
    INFO(assignment);
    CHECK(message_of([&] { read_with({assignment}); }) == one_problem(kForbidden));
  }
}

TEST_CASE("--set cannot allow commands") {
  CHECK(faults_of(command_file({}), {.overrides = {"/data/allow_pipe=true"}}) ==
        one_problem(kNotBySet));
  CHECK(faults_of(kMinimalConfig, {.overrides = {"/data/allow_pipe=true"}}) ==
        one_problem(kNotBySet));
  // But it can forbid them, and give the command where the file allows it.
  const std::string allowed = command_file({"/data/allow_pipe=true"});
  CHECK(faults_of(allowed, {.overrides = {"/data/allow_pipe=false"}}) == one_problem(kForbidden));
  CHECK(faults_of(allowed, {.overrides = {"/data/webdataset_base_url=pipe:ls {}"}}) == "no error");
}

TEST_CASE("a config that only describes a model never allows commands") {
  const LoadedDecoderConfig loaded = parse_decoder_config(
      command_file({"/data/allow_pipe=true"}), "test.json", {.overrides = {}, .no_commands = true});
  CHECK_FALSE(loaded.config.data.allow_pipe);
  CHECK_FALSE(Json::parse(loaded.full_json)["data"]["allow_pipe"].get<bool>());
  // Nor is it refused for the command, which nobody runs.
  CHECK(faults_of(command_file({}), {.overrides = {}, .no_commands = true}) == "no error");
}

TEST_CASE("a file allows commands by a true value at its place alone") {
  CHECK(allows_pipe(Json::parse(R"({"data": {"allow_pipe": true}})")));
  for (const char* text : {R"({"data": {"allow_pipe": false}})",
                           R"({"data": {"allow_pipe": "perhaps"}})",
                           R"({"data": {}})",
                           R"({"data": [true]})",
                           R"({"allow_pipe": true})",
                           R"({})"}) {
    INFO(text);
    CHECK_FALSE(allows_pipe(Json::parse(text)));
  }
}

// No count in a config is without an upper limit.
namespace {

/// Arguments of x-clip's CLIP that are accepted and have no effect: any number will do.
const std::set<std::string> kWithoutEffect = {"text_pad_id",
                                              "text_eos_id",
                                              "visual_ssl_hidden_layer",
                                              "mlm_mask_token_id",
                                              "mlm_pad_token_id",
                                              "mlm_mask_ignore_token_ids"};

/// Notes the integers without an upper limit, in a struct and in all below it.
struct Unlimited {
  std::vector<std::string> keys;
  int counts = 0;

  template <class Member>
  void field(const char* key, Member& member, const char*, const Limits& limits = {}) {
    look(key, member, limits);
  }
  template <class Member>
  void required(const char* key, Member& member, const char*, const Limits& limits = {}) {
    look(key, member, limits);
  }
  void check(bool, const std::string&, const std::string&) {}
  void rule(const std::string&, const std::optional<std::string>&) {}
  void note(bool, const std::string&, const std::string&) {}

 private:
  template <class T>
  void look(const char* key, T& value, const Limits& limits) {
    if constexpr (OptionalTraits<T>::is_optional) {
      typename OptionalTraits<T>::Value inner{};
      look(key, inner, limits);
    } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
      for (size_t i = 0; i < enum_names<TransformKind>.size(); ++i) {
        TransformConfig transform;
        transform.kind = static_cast<TransformKind>(i);
        transform.fields(*this);
      }
    } else if constexpr (is_of<T, OneOrMany>) {
      typename T::Value inner{};
      look(key, inner, limits);
    } else if constexpr (is_of<T, std::vector>) {
      typename T::value_type inner{};
      look(key, inner, limits);
    } else if constexpr (is_of<T, std::variant>) {
      // Their members are places and switches.
    } else if constexpr (std::is_same_v<T, int64_t>) {
      ++counts;
      if (!std::isfinite(limits.high) && !kWithoutEffect.contains(key)) keys.emplace_back(key);
    } else if constexpr (Reflected<T>) {
      value.fields(*this);
    }
  }
};

template <class Config>
Unlimited unlimited() {
  Unlimited found;
  Config config;
  config.fields(found);
  return found;
}

}  // namespace

TEST_CASE("every count in a config has an upper limit, only seeds are any number") {
  const auto check = [](const Unlimited& found, const Lines& seeds, int at_least) {
    CHECK(found.keys == seeds);
    CHECK(found.counts > at_least);
  };
  check(unlimited<TrainDecoderConfig>(), {"seed"}, 60);
  check(unlimited<TrainPriorConfig>(), {"random_seed", "seed"}, 35);
  check(unlimited<TrainVaeConfig>(), {"random_split_seed", "seed"}, 30);
}

TEST_CASE("a transform that no picture can pass is refused") {
  rejects(R"(/data/preprocessing={"Resize": {"size": 5000}, "ToTensor": true})",
          "Resize makes pictures of 5000 x 5000 pixels at least, and max_transform_pixels is "
          "16777216: lower the size, or raise the limit");
  CHECK_NOTHROW(read_with({R"(/data/preprocessing={"Resize": {"size": 5000}, "ToTensor": true})",
                           "/data/max_transform_pixels=25000000"}));
  CHECK_NOTHROW(
      read_with({R"(/data/preprocessing={"CenterCrop": {"size": 4096}, "ToTensor": true})"}));
  rejects(R"(/data/preprocessing={"CenterCrop": {"size": [4096, 4097]}, "ToTensor": true})",
          "CenterCrop makes pictures of 4096 x 4097 pixels at least, and max_transform_pixels is "
          "16777216: lower the size, or raise the limit");
}

}  // namespace dalle2
