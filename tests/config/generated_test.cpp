// SPDX-License-Identifier: MIT
// docs/config.md is made from the structs, and every example config fits the schema that they give.
// DALLE2_UPDATE_GENERATED=1 writes it anew.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <typeinfo>

#include "config/clip/clip_run_config.h"
#include "config/config_page.h"
#include "config/kinds.h"
#include "config/minimal_prior.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {

namespace {

std::string file_text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void expect_generated(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(DALLE2_SOURCE_DIR) / name;
  if (std::getenv("DALLE2_UPDATE_GENERATED") != nullptr) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  INFO(name << " is out of date: run the config tests with DALLE2_UPDATE_GENERATED=1");
  CHECK(file_text(path) == text);
}

// Whether `value` has a place in `schema`: the part of JSON Schema that our schemas use.
bool fits(const Json& schema, const Json& value) {
  if (schema.contains("anyOf")) {
    for (const Json& option : schema["anyOf"]) {
      if (fits(option, value)) return true;
    }
    return false;
  }
  if (schema.contains("const")) return value == schema["const"];
  if (schema.contains("enum"))
    return std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end();
  const std::string type = schema.at("type");
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") {
    return value.is_string() &&
           value.get<std::string>().size() >= schema.value("minLength", size_t{0});
  }
  if (type == "array") {
    if (!value.is_array() || value.size() < schema.value("minItems", size_t{0}) ||
        value.size() > schema.value("maxItems", size_t{1000})) {
      return false;
    }
    for (const Json& item : value) {
      if (!fits(schema["items"], item)) return false;
    }
    return true;
  }
  if (type == "object") {
    if (!value.is_object()) return false;
    for (const Json& key : schema.value("required", Json::array())) {
      if (!value.contains(key.get<std::string>())) return false;
    }
    for (const auto& [key, member] : value.items()) {
      const bool known = schema.contains("properties") && schema["properties"].contains(key);
      if (!known && !schema.value("additionalProperties", true)) return false;
      if (known && !fits(schema["properties"][key], member)) return false;
    }
    return true;
  }
  if (!value.is_number() || (type == "integer" && !value.is_number_integer())) return false;
  const double number = value.get<double>();
  return number >= schema.value("minimum", -HUGE_VAL) &&
         number <= schema.value("maximum", HUGE_VAL) &&
         number > schema.value("exclusiveMinimum", -HUGE_VAL) &&
         number < schema.value("exclusiveMaximum", HUGE_VAL);
}

}  // namespace

TEST_CASE("docs/config.md is what the structs say") {
  expect_generated("docs/config.md", config_page());
}

TEST_CASE("the config at the head of docs/config.md is accepted") {
  const std::string docs = config_page();
  const size_t begin = docs.find("```json\n") + 8;
  const std::string example = docs.substr(begin, docs.find("```", begin) - begin);
  CHECK(parse_decoder_config(example, "docs", {}).warnings.empty());
}

TEST_CASE("every example config is read without a warning and fits its schema") {
  const std::filesystem::path configs = std::filesystem::path(DALLE2_SOURCE_DIR) / "configs";
  int read = 0, resumable = 0;
  for (const auto& folder : {configs, configs / "smoke"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".json") continue;
      const std::string path = entry.path().string();
      CAPTURE(path);
      const std::string kind = config_kind(path);
      ReadOptions strict = {.overrides = {}, .strict = true};
      // The checkpoint of the example of a VAE holds that example's section.
      strict.config_of_checkpoint = [&](const std::string&, const std::string&) {
        return read_config_file((configs / "vae.json").string());
      };
      const std::string full = config_kind_of(kind).fill_in(read_config_file(path), path, strict);
      CHECK(fits(Json::parse(config_schema(kind)), Json::parse(full)));
      // Else the second start, which resumes, is refused.
      const Json tracker = Json::parse(full)["tracker"];
      if (tracker["log"].dump().find("\"auto_resume\":true") != std::string::npos) {
        CHECK(tracker["overwrite_data_path"] == true);
        ++resumable;
      }
      ++read;
    }
  }
  CHECK(read >= 13);
  CHECK(resumable >= 13);
}

TEST_CASE("the schema takes the reference's configs and a full dump") {
  const Json schema = Json::parse(config_schema("decoder"));
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  CHECK(fits(schema, Json::parse(kMinimalConfig)));
  CHECK(fits(schema, Json::parse(read_with({}).full_json)));
  CHECK(fits(Json::parse(config_schema("prior")), Json::parse(read_prior({}).full_json)));
  for (const char* name : {"reference_example.json", "reference_test.json"}) {
    const auto path = std::filesystem::path(DALLE2_SOURCE_DIR) / "tests/config/data" / name;
    CHECK(fits(schema, Json::parse(file_text(path))));
  }
}

TEST_CASE("the schema refuses what the reader refuses") {
  const Json schema = Json::parse(config_schema("decoder"));
  for (const char* assignment : {"/train/lr=-1",
                                 "/train/epochs=0",
                                 "/decoder/loss_type=L2",
                                 "/decoder/colour=1",
                                 "/decoder/unets=[]",
                                 "/data/splits=3",
                                 "/tracker/save=[]",
                                 "/tracker/save/save_latest_to=true",
                                 "/tracker/log/log_type=custom",
                                 "/data/preprocessing/Flip=true",
                                 "/train/betas=[0.9]",
                                 R"(/tracker/load={"load_from": "local"})",
                                 "/decoder/unets/0={}",
                                 "/train/lr=null"}) {
    CAPTURE(assignment);
    Json config = Json::parse(kMinimalConfig);
    apply_override(config, assignment);
    CHECK_FALSE(fits(schema, config));
    CHECK_THROWS_AS(read_with({assignment}), ConfigError);
  }
}

TEST_CASE("the schema of another kind is refused") {
  CHECK(message_of([] { config_schema("decodr"); }) ==
        "no kind \"decodr\" of config; known are \"decoder\", \"prior\", \"vae\" and \"clip\"");
}

TEST_CASE("docs/config.md names every key") {
  const std::string docs = config_page();
  const std::function<void(const Json&)> check = [&](const Json& value) {
    for (const auto& [key, member] : value.items()) {
      if (value.is_object()) {
        CAPTURE(key);
        CHECK_THAT(docs, Catch::Contains("`" + key + "`"));
      }
      if (member.is_structured()) check(member);
    }
  };
  check(Json::parse(read_with({}).full_json));
}

// Every member of every config struct has to be declared in its `fields`.
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
