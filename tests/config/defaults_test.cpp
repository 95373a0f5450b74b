// SPDX-License-Identifier: MIT
// Defaults, leniency and noise schedules against what the reference makes of them
// (tests/parity/make_config_defaults.py).
#include <fstream>

#include "config/minimal_config.h"
#include "config/reading/reader.h"
#include "config/reading/writer.h"
#include "config/shared/old_configs.h"
#include "config/shared/train_rules.h"
#include "support/fixture_folder.h"

namespace dalle2 {

namespace {

Json fixture(const std::string& name, const std::string& unit = "config_defaults") {
  std::ifstream file(test::fixture_folder(unit) + "/" + name);
  REQUIRE(file.good());
  return Json::parse(file);
}

// Each key of `reference` has to be in `ours` with the same value; ours may have more.
void expect_same(const Json& reference, const Json& ours, const std::string& pointer) {
  INFO(pointer);
  if (reference.is_object()) {
    REQUIRE(ours.is_object());
    for (const auto& [key, value] : reference.items()) {
      INFO(key);
      REQUIRE(ours.contains(key));
      expect_same(value, ours[key], pointer + "/" + key);
    }
  } else if (reference.is_number() && ours.is_number()) {
    CHECK(reference.get<double>() == ours.get<double>());
  } else {
    CHECK(reference == ours);
  }
}

template <class T>
void expect_coercion(const Json& row) {
  INFO(row.dump());
  ReadFindings findings;
  Reader reader(findings);
  T value = [] {
    if constexpr (is_of<T, OneOrMany>)
      return T(typename T::value_type{});
    else
      return T{};
  }();
  reader.read({row["value"], "", {}}, value);
  CHECK(findings.faults.errors().empty() == row["accepted"].get<bool>());
  if (row["accepted"].get<bool>() && findings.faults.errors().empty())
    CHECK(to_json(value) == row["result"]);
}

}  // namespace

TEST_CASE("the arguments of an x-clip's CLIP and their defaults are those of its constructor") {
  const Json reference = fixture("defaults.json", "x_clip"), ours = to_json(XClipConfig{});
  expect_same(reference, ours, "");
  CHECK(ours.size() == reference.size());
}

TEST_CASE("every default is the reference's") {
  const Json reference = fixture("defaults.json");
  const LoadedDecoderConfig loaded =
      parse_decoder_config(reference["minimal"].dump(), "minimal.json", {});
  Json expected = reference["config"];
  // One saver stays one there; here it is a list of one.
  expected["tracker"]["save"] = Json::array({expected["tracker"]["save"]});
  const Json ours = Json::parse(loaded.full_json);
  const Json save = ours["tracker"]["save"][0];
  expect_same(expected["tracker"]["save"][0], save, "/tracker/save/0");
  expected["tracker"].erase("save");
  Json unets = expected["decoder"]["unets"];
  expect_same(unets[0], ours["decoder"]["unets"][0], "/decoder/unets/0");
  expected["decoder"].erase("unets");
  expect_same(expected, ours, "");
}

TEST_CASE("every argument of the reference's Unet and Decoder is a key with the same default") {
  const Json reference = fixture("defaults.json");
  REQUIRE(reference["unet_arguments"].size() == 39);
  REQUIRE(reference["decoder_arguments"].size() == 34);
  Json unet = reference["unet_arguments"];
  // Required here, and null stands for false, as in the reference's own config class.
  unet["dim"] = 0;
  unet["dim_mults"] = Json::array();
  unet["cond_on_text_encodings"] = nullptr;
  expect_same(unet, to_json(UnetConfig{}), "unet");
  Json decoder = reference["decoder_arguments"];
  decoder["clip_adapter_overrides"] = nullptr;  // none is the same as no arguments
  expect_same(decoder, to_json(DecoderConfig{}), "decoder");
}

TEST_CASE("the trainer's and the average's arguments have the reference's defaults") {
  const Json reference = fixture("defaults.json");
  const Json ours = to_json(DecoderTrainConfig{});
  REQUIRE(reference["trainer_arguments"].size() == 8);
  expect_same(reference["trainer_arguments"], ours, "trainer");
  for (const char* key : {"update_after_step", "update_every", "inv_gamma", "power", "min_value"}) {
    INFO(key);
    expect_same(reference["ema_arguments"][key], ours[std::string("ema_") + key], key);
  }
}

TEST_CASE("tracker sections and clip have the reference's defaults") {
  const Json reference = fixture("defaults.json");
  for (const char* section : {"clip", "log", "load", "save"}) REQUIRE(!reference[section].empty());
  Json clip = to_json(ClipConfig{});
  clip.erase("sha256");  // our own
  expect_same(reference["clip"], clip, "clip");
  expect_same(reference["log"], to_json(LogConfig{}), "log");
  expect_same(reference["save"], to_json(SaveConfig{}), "save");
  CHECK(reference["load"]["only_auto_resume"] == to_json(LoadConfig{})["only_auto_resume"]);
}

TEST_CASE("a value is coerced or refused as by the reference") {
  const Json table = fixture("coercions.json");
  REQUIRE(table.size() > 500);
  for (const Json& row : table) {
    const std::string type = row["type"];
    if (type == "int")
      expect_coercion<int64_t>(row);
    else if (type == "float")
      expect_coercion<double>(row);
    else if (type == "bool")
      expect_coercion<bool>(row);
    else if (type == "str")
      expect_coercion<std::string>(row);
    else if (type == "optional_int")
      expect_coercion<std::optional<int64_t>>(row);
    else if (type == "one_or_many_float")
      expect_coercion<OneOrMany<double>>(row);
    else if (type == "one_or_many_bool")
      expect_coercion<OneOrMany<bool>>(row);
    else if (type == "list_int")
      expect_coercion<std::vector<int64_t>>(row);
    else if (type == "optional_list_str")
      expect_coercion<std::optional<std::vector<std::string>>>(row);
    else
      FAIL("unknown type " << type);
  }
}

TEST_CASE("the noise schedules are the reference's") {
  const Json reference = fixture("betas.json");
  for (size_t i = 0; i < enum_names<BetaSchedule>.size(); ++i) {
    REQUIRE(reference[enum_names<BetaSchedule>[i]].size() >= 5);
    for (const auto& [timesteps, betas] : reference[enum_names<BetaSchedule>[i]].items()) {
      INFO(enum_names<BetaSchedule>[i] << " " << timesteps);
      const std::vector<double> ours =
          beta_schedule_values(static_cast<BetaSchedule>(i), std::stoll(timesteps));
      REQUIRE(ours.size() == betas.size());
      for (size_t t = 0; t < ours.size(); ++t) {
        // Both in double; cosine takes differences of cosines near 1, hence not the last digits.
        CHECK(ours[t] == Approx(betas[t].get<double>()).epsilon(1e-10));
      }
    }
  }
}

namespace {

using Catch::Matchers::Contains;

/// A decoder's config of a version with two unets, as it is completed.
Json completed_decoder(const char* version, const Json& more = Json::object()) {
  Json root = {{"written_by", version}, {"decoder", {{"unets", {Json::object(), Json::object()}}}}};
  root.update(more);
  complete_old_config(root, "decoder", "a.json");
  return root;
}

}  // namespace

TEST_CASE("keys that a config leaves out have the defaults of its version") {
  const Json first = completed_decoder("0.14.0")["decoder"];
  CHECK(first["blur_sigma"] == Json::array({0.1, 0.2}));
  CHECK(first["unets"][1]["final_conv_kernel_size"] == 3);
  CHECK(first["unets"][1]["pixel_shuffle_upsample"] == false);
  const Json old = completed_decoder("0.19.6")["decoder"];
  CHECK(old["dynamic_thres_percentile"] == 0.9);
  CHECK(old["ddim_sampling_eta"] == 1.0);
  CHECK(old["blur_prob"] == 1.0);
  CHECK(old["beta_schedule"] == Json::array({"cosine", "cosine"}));
  CHECK(completed_decoder("1.12.0")["decoder"] == completed_decoder("1.15.6")["decoder"]);
}

TEST_CASE("keys that only old trainers read are taken out") {
  const Json root =
      completed_decoder("0.15.1",
                        {{"load", {{"source", "local"}}},
                         {"train", {{"save_all", true}, {"lr", 1e-3}}},
                         {"tracker", {{"tracker_type", "console"}, {"data_path", "a"}}}});
  CHECK_FALSE(root.contains("load"));
  CHECK(root["train"] == Json{{"lr", 1e-3}});
  CHECK_FALSE(root["tracker"].contains("tracker_type"));
  CHECK(root["tracker"]["log"]["log_type"] == "console");
}

TEST_CASE("a written_by that is no known version is refused") {
  CHECK_THROWS_WITH(
      completed_decoder("0.13.0"),
      Contains("a.json: /written_by: expected dalle2-pytorch 0.14.0 to 1.15.6, got 0.13.0"));
  CHECK_THROWS_WITH(completed_decoder("1.16.0"),
                    Contains("/written_by: expected dalle2-pytorch 0.14.0 to 1.15.6, got 1.16.0"));
  Json number = {{"written_by", 1.0}};
  CHECK_THROWS_WITH(complete_old_config(number, "prior", "a.json"),
                    Contains("a.json: /written_by: expected a string such as \"1.1.0\", got 1.0"));
}

TEST_CASE("a decoder's config for the reference has no nulls and no extensions that are off") {
  Json config = {{"decoder", {{"channels", 3}, {"vae", nullptr}, {"zero_terminal_snr", false}}},
                 {"written_by", nullptr}};
  CHECK(fit_reference(config).empty());
  CHECK(config["decoder"] == Json{{"channels", 3}});
  config["decoder"]["zero_terminal_snr"] = true;
  CHECK(fit_reference(config) == std::vector<std::string>{"/decoder/zero_terminal_snr"});
  CHECK(config["decoder"]["zero_terminal_snr"] == true);
}

}  // namespace dalle2
