// SPDX-License-Identifier: MIT
// No count in a config is without an upper limit.
#include <cmath>
#include <set>
#include <string>

#include "config/minimal_config.h"
#include "config/minimal_prior.h"
#include "config/reading/reflect.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
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
  const Unlimited decoder = unlimited<TrainDecoderConfig>();
  CHECK(decoder.keys == std::vector<std::string>{"seed"});
  CHECK(decoder.counts > 60);
  const Unlimited prior = unlimited<TrainPriorConfig>();
  CHECK(prior.keys == std::vector<std::string>{"random_seed", "seed"});
  CHECK(prior.counts > 35);
  const Unlimited vae = unlimited<TrainVaeConfig>();
  CHECK(vae.keys == std::vector<std::string>{"random_split_seed", "seed"});
  CHECK(vae.counts > 30);
}

TEST_CASE("a transform that no picture can pass is refused") {
  expect_problems({R"(/data/preprocessing={"Resize": {"size": 5000}, "ToTensor": true})"},
                  {"/data/preprocessing: Resize makes pictures of 5000 x 5000 pixels at least, and "
                   "max_transform_pixels is 16777216: lower the size, or raise the limit"});
  CHECK_NOTHROW(read_with({R"(/data/preprocessing={"Resize": {"size": 5000}, "ToTensor": true})",
                           "/data/max_transform_pixels=25000000"}));
  CHECK_NOTHROW(
      read_with({R"(/data/preprocessing={"CenterCrop": {"size": 4096}, "ToTensor": true})"}));
  expect_problems(
      {R"(/data/preprocessing={"CenterCrop": {"size": [4096, 4097]}, "ToTensor": true})"},
      {"/data/preprocessing: CenterCrop makes pictures of 4096 x 4097 pixels at least, and "
       "max_transform_pixels is 16777216: lower the size, or raise the limit"});
  expect_problems({R"(/data/preprocessing={"Resize": {"size": 70000}, "ToTensor": true})"},
                  {"/data/preprocessing/Resize/size: must be >= 1 and <= 65535, got 70000"});
}

}  // namespace dalle2
