// SPDX-License-Identifier: MIT
// Every member of every config struct has to be declared in its `fields`.
#include <catch2/catch.hpp>
#include <typeinfo>

#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
namespace {

// Converts to anything but an optional, and to any optional. std::optional<T> has a constructor
// from whatever T is made of, so one type that converts to both would be ambiguous.
struct AnyPlain {
  template <class T>
  requires(!OptionalTraits<T>::is_optional) operator T()
      const;  // NOLINT: never defined, it only stands in unevaluated braces
};
struct AnyOptional {
  template <class T>
  requires OptionalTraits<T>::is_optional operator T() const;  // NOLINT
};

/// How many initialisers the aggregate T takes: its members, and 1 for a base class.
template <class T, class... Members>
constexpr size_t count_members() {
  if constexpr (requires { T{Members{}..., AnyPlain{}}; }) {
    return count_members<T, Members..., AnyPlain>();
  } else if constexpr (requires { T{Members{}..., AnyOptional{}}; }) {
    return count_members<T, Members..., AnyOptional>();
  } else {
    return sizeof...(Members);
  }
}

/// Counts the fields of one struct and checks that each has a doc line and its own key.
struct Counter {
  std::vector<std::string> keys;
  std::vector<const void*> members;

  template <class Member>
  void field(const char* key, Member& member, const char* doc, const Limits& = {}) {
    CAPTURE(key);
    CHECK(std::string(doc).size() >= 10);
    CHECK(std::find(keys.begin(), keys.end(), key) == keys.end());
    CHECK(std::find(members.begin(), members.end(), &member) == members.end());
    keys.emplace_back(key);
    members.push_back(&member);
  }
  template <class Member>
  void required(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    field(key, member, doc, limits);
  }
  void check(bool, const std::string&, const std::string&) {}
  void rule(const std::string&, const std::optional<std::string>&) {}
  void note(bool, const std::string&, const std::string&) {}
};

template <class T>
size_t declared() {
  T value;
  Counter counter;
  value.fields(counter);
  return counter.keys.size();
}

struct Sample {
  std::optional<int64_t> a;
  std::vector<int64_t> b;
  OneOrMany<double> c = 1.0;
  std::variant<ConsoleLogConfig, WandbLogConfig> d;
  std::string e;
};

/// Of each type: no member is missing.
template <class... T>
void expect_all_declared() {
  const auto expect = [](size_t found, size_t members, const char* name) {
    CAPTURE(name);
    CHECK(found == members);
  };
  (expect(declared<T>(), count_members<T>(), typeid(T).name()), ...);
}

/// Members of a file's root: its base class counts as one initialiser.
template <class T>
size_t members_with_root() {
  return count_members<T>() - 1 + count_members<RootConfig>();
}

}  // namespace

TEST_CASE("members of an aggregate are counted") {
  CHECK(count_members<Sample>() == 5);
  CHECK(count_members<SplitConfig>() == 3);
}

TEST_CASE("every member of every config struct is declared") {
  CHECK(declared<TrainDecoderConfig>() == members_with_root<TrainDecoderConfig>());
  // The version of the weights, and what it makes of a network, come from the root.
  CHECK(declared<DecoderConfig>() == count_members<DecoderConfig>() - 1);
  CHECK(declared<UnetConfig>() == count_members<UnetConfig>() - 1);
  expect_all_declared<ClipConfig,
                      XClipConfig,
                      PictureReadConfig,
                      CaptionReadConfig,
                      SplitConfig,
                      NonFiniteConfig,
                      DreamConfig,
                      TimestepSamplingConfig,
                      DecoderEvaluateConfig,
                      FidConfig,
                      InceptionScoreConfig,
                      KidConfig,
                      LpipsConfig,
                      PrecisionRecallConfig,
                      FrechetDistanceConfig,
                      TrackerConfig,
                      LogOptions,
                      LoadOptions,
                      SaveTargets>();
  // Each base class counts as one initialiser.
  const size_t of_bases = declared<PictureReadConfig>() + declared<CaptionReadConfig>();
  CHECK(declared<ShardDataConfig>() == count_members<ShardDataConfig>() - 2 + of_bases);
  // A base class counts as one initialiser.
  const size_t of_log = declared<LogOptions>(), of_load = declared<LoadOptions>();
  CHECK(declared<WandbLogConfig>() == count_members<WandbLogConfig>() - 1 + of_log);
  CHECK(declared<TensorboardLogConfig>() == count_members<TensorboardLogConfig>() - 1 + of_log);
  CHECK(declared<LocalLoadConfig>() == count_members<LocalLoadConfig>() - 1 + of_load);
  CHECK(declared<UrlLoadConfig>() == count_members<UrlLoadConfig>() - 1 + of_load);
  CHECK(declared<WandbLoadConfig>() == count_members<WandbLoadConfig>() - 1 + of_load);
  CHECK(declared<WandbSaveConfig>() - declared<SaveTargets>() ==
        count_members<WandbSaveConfig>() - 1);
  CHECK(declared<HuggingfaceSaveConfig>() - declared<SaveTargets>() ==
        count_members<HuggingfaceSaveConfig>() - 1);
}

TEST_CASE("every member of every config struct of a prior is declared") {
  CHECK(declared<TrainPriorConfig>() == members_with_root<TrainPriorConfig>());
  // The version of the weights, and what it makes of a network, come from the root.
  CHECK(declared<PriorConfig>() == count_members<PriorConfig>() - 1);
  CHECK(declared<PriorNetworkConfig>() == count_members<PriorNetworkConfig>() - 1);
  const size_t of_bases = declared<PictureReadConfig>() + declared<CaptionReadConfig>();
  CHECK(declared<PriorDataConfig>() == count_members<PriorDataConfig>() - 2 + of_bases);
}

TEST_CASE("every member of every config struct of a VAE is declared") {
  CHECK(declared<TrainVaeConfig>() == members_with_root<TrainVaeConfig>());
  CHECK(declared<VaeConfig>() == count_members<VaeConfig>());
  CHECK(declared<LookupFreeConfig>() == count_members<LookupFreeConfig>());
  CHECK(declared<VaeDataConfig>() - declared<PictureReadConfig>() ==
        count_members<VaeDataConfig>() - 1);
  CHECK(declared<VaeOnlyTrainConfig>() == count_members<VaeOnlyTrainConfig>());
}

TEST_CASE("every member of every config struct of a CLIP is declared") {
  CHECK(declared<TrainClipConfig>() == members_with_root<TrainClipConfig>());
  CHECK(declared<ClipModelConfig>() - declared<ClipNetworkConfig>() ==
        count_members<ClipModelConfig>() - 1);
  CHECK(declared<ClipNetworkConfig>() == 10);  // has a constructor: its members cannot be counted
  expect_all_declared<ClipVisionConfig, ClipTextConfig, ClipTokenizerConfig, ClipOnlyTrainConfig>();
}

TEST_CASE("every option that kinds of run share is declared, and each kind takes all parts") {
  expect_all_declared<OptimizerConfig<Single>,
                      OptimizerConfig<OneOrMany>,
                      LossConfig<Single>,
                      LossConfig<OneOrMany>,
                      AveragesConfig,
                      PrecisionConfig,
                      AdaptersConfig,
                      PassGraphConfig,
                      LoopConfig,
                      RanksConfig,
                      EmaConfig,
                      PostHocEmaConfig,
                      LoraConfig,
                      ShardLoopConfig,
                      DecoderOnlyTrainConfig,
                      PriorOnlyTrainConfig>();
  const size_t shared = declared<AveragesConfig>() + declared<PrecisionConfig>() +
                        declared<AdaptersConfig>() + declared<LoopConfig>() +
                        declared<RanksConfig>();
  CHECK(declared<SharedTrainConfig>() == shared);
  const size_t both = shared + declared<OptimizerConfig<Single>>() +
                      declared<LossConfig<Single>>() + declared<PassGraphConfig>();
  CHECK(declared<DecoderTrainConfig>() ==
        both + declared<ShardLoopConfig>() + declared<DecoderOnlyTrainConfig>());
  CHECK(declared<PriorTrainConfig>() == both + declared<PriorOnlyTrainConfig>());
}

TEST_CASE("the transforms together declare every member but their kind and what a CLIP asks for") {
  std::vector<std::string> keys;
  for (size_t i = 0; i < enum_names<TransformKind>.size(); ++i) {
    TransformConfig transform;
    transform.kind = static_cast<TransformKind>(i);
    Counter counter;
    transform.fields(counter);
    for (const std::string& key : counter.keys) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  CHECK(keys.size() == count_members<TransformConfig>() - 2);
}

}  // namespace dalle2
