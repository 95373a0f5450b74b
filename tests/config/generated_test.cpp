// SPDX-License-Identifier: MIT
// docs/config.md is made from the structs, and every example config fits the schema that they give.
// DALLE2_UPDATE_GENERATED=1 writes it anew.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "config/config_page.h"
#include "config/kinds.h"
#include "config/minimal_config.h"
#include "config/minimal_prior.h"
#include "config/reading/json_text.h"
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
      const std::string full = config_kind_of(kind).fill_in(read_config_file(path), strict);
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

}  // namespace dalle2
