// SPDX-License-Identifier: MIT
#include "checkpoint/convert.h"

#include "checkpoint/inspect.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "checkpoint_test_tools.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;
using test::dict_of;
using test::same_content;
using test::TempDir;

std::string fixture(const std::string& name) {
  return test::fixture_folder("checkpoints") + "/" + name;
}

/// A decoder's checkpoint with one unet, averages twice the weights.
Dict decoder_checkpoint() {
  Dict model = dict_of({{"unets.0.a", at::full({2}, 1.0, at::kFloat)},
                        {"unets.0.b.c", at::full({3}, 2.0, at::kFloat)},
                        {"noise_schedulers.0.betas", at::full({4}, 0.5, at::kFloat)}});
  Dict ema = dict_of({{"0.initted", at::ones({}, at::kBool)},
                      {"0.step", at::zeros({}, at::kLong)},
                      {"0.online_model.a", at::full({2}, 1.0, at::kFloat)},
                      {"0.ema_model.a", at::full({2}, 10.0, at::kFloat)},
                      {"0.ema_model.b.c", at::full({3}, 20.0, at::kFloat)}});
  model.ordered = ema.ordered = true;
  return dict_of({{"model", model},
                  {"version", "1.15.6"},
                  {"config", dict_of({{"timesteps", 1000}})},
                  {"optim0", Value()},
                  {"ema", ema}});
}

}  // namespace

TEST_CASE("a checkpoint survives the way to safetensors and back") {
  const TempDir folder;
  const Value original = test::sample_checkpoint();
  write_pth(folder / "a.pth", original);
  const ConvertReport report =
      convert_checkpoint(folder / "a.pth", folder / "a.safetensors", Weights::kAll);
  CHECK(report.replaced.empty());
  CHECK(report.tensor_count == 22);
  CHECK(same_content(read_checkpoint(folder / "a.safetensors"), original));
  convert_checkpoint(folder / "a.safetensors", folder / "b.pth", Weights::kAll);
  CHECK(same_content(read_pth(folder / "b.pth"), original));
}

TEST_CASE("a plain state dict becomes plain safetensors and a model file keeps its names") {
  const TempDir folder;
  const Value root = decoder_checkpoint();
  const Value& model = *root.as_dict().find("model");
  write_pth(folder / "state.pth", model);
  convert_checkpoint(folder / "state.pth", folder / "state.safetensors", Weights::kAll);
  const SafetensorsFile file = read_safetensors(folder / "state.safetensors");
  CHECK(file.tensors.size() == 3);
  CHECK(file.tensors[0].first == "unets.0.a");
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  convert_checkpoint(folder / "state.safetensors", folder / "back.pt", Weights::kAll);
  CHECK(same_content(read_pth(folder / "back.pt"), model));
}

TEST_CASE("averaged weights stand under the names of the model, with config and version") {
  const TempDir folder;
  write_pth(folder / "a.pth", decoder_checkpoint());
  convert_checkpoint(folder / "a.pth", folder / "ema.safetensors", Weights::kAveraged);
  const SafetensorsFile file = read_safetensors(folder / "ema.safetensors");
  REQUIRE(file.tensors.size() == 3);
  CHECK(find_tensor(file.tensors, "unets.0.a")->sum().item<float>() == 20.0F);
  CHECK(find_tensor(file.tensors, "unets.0.b.c")->sum().item<float>() == 60.0F);
  CHECK(find_tensor(file.tensors, "noise_schedulers.0.betas")->sum().item<float>() == 2.0F);

  convert_checkpoint(folder / "ema.safetensors", folder / "ema.pth", Weights::kAll);
  const Value root = read_pth(folder / "ema.pth");
  CHECK(Cursor(root).at("config").at("timesteps").as_int() == 1000);
  CHECK(Cursor(root).at("version").as_string() == "1.15.6");
  CHECK(Cursor(root).at("model").at("unets.0.a").as_tensor()[0].item<float>() == 10.0F);
  CHECK(Cursor(root).size() == 3);
}

TEST_CASE("averages are refused where there are none or where they fit no unet") {
  Dict checkpoint = decoder_checkpoint();
  Dict ema = checkpoint.find("ema")->as_dict();
  ema.set("1.ema_model.a", at::ones({2}));
  checkpoint.set("ema", ema);
  const Value unfit = checkpoint;
  CHECK_THROWS_WITH(averaged_weights(Cursor(unfit, "a.pth")),
                    Contains("got 3 entries of which 2 fit"));
  const Value none = dict_of({{"model", Dict{}}});
  CHECK_THROWS_WITH(averaged_weights(Cursor(none, "a.pth")), Contains("no averaged weights"));
}

TEST_CASE("averages of a prior and of an EMA wrapper's file are found") {
  const Value prior = dict_of({{"ema_model", dict_of({{"net.a", at::ones({1})}})}});
  CHECK(averaged_weights(Cursor(prior)).at(0).first == "net.a");
  const Value wrapper = dict_of({{"step", at::zeros({})}, {"ema_model.enc.b", at::ones({1})}});
  CHECK(averaged_weights(Cursor(wrapper)).at(0).first == "enc.b");
}

TEST_CASE("a checkpoint has averages under three keys, or under the names of a wrapped model") {
  const auto has = [](const Dict& dict) { return has_averages(Cursor(Value(dict))); };
  const Dict weights = dict_of({{"enc.b", at::ones({1})}});
  CHECK_FALSE(has(weights));
  for (const char* key : {"ema", "ema_diffusers", "ema_model"}) {
    Dict checkpoint = dict_of({{"model", weights}});
    CHECK_FALSE(has(checkpoint));
    checkpoint.set(key, weights);
    CHECK(has(checkpoint));
  }
  Dict wrapper = weights;
  wrapper.set("ema_model.enc.b", at::ones({1}));
  CHECK(has(wrapper));
}

TEST_CASE("objects become text on conversion, versions their number") {
  const TempDir folder;
  const ConvertReport report =
      convert_checkpoint(fixture("model.pth"), folder / "m.safetensors", Weights::kAll);
  const Value root = read_checkpoint(folder / "m.safetensors");
  CHECK(Cursor(root).at("version").as_string() == "1.15.6");
  CHECK(Cursor(root).at("half").as_string() == "torch.float16");
  CHECK(report.replaced.size() == 3);
  CHECK(read_safetensors(folder / "m.safetensors").tensors[0].first == "weight");
}

TEST_CASE("an unknown ending is refused") {
  CHECK_THROWS_AS(convert_checkpoint(fixture("model.pth"), "/tmp/x.bin", Weights::kAll),
                  ConfigError);
}

TEST_CASE("inspect shortens values of more than sixty bytes, between two characters") {
  const TempDir folder;
  const auto shown = [&](const std::string& value) {
    write_pth(folder / "a.pth", dict_of({{"note", value}}));
    const std::string text = inspection_text(inspect_file(folder / "a.pth"));
    const std::string line = text.substr(0, text.find('\n'));
    return line.substr(line.rfind(' ') + 1);
  };
  CHECK(shown(std::string(60, 'a')) == std::string(60, 'a'));
  CHECK(shown(std::string(61, 'a')) == std::string(57, 'a') + "...");
  CHECK(shown(std::string(56, 'a') + "\u00e4" + "bcd") == std::string(56, 'a') + "...");
}

TEST_CASE("inspect limits its column of names and names the version of old weights") {
  const TempDir folder;
  write_pth(folder / "old.pth", dict_of({{"net.learned_query", at::ones({8})}}));
  CHECK(inspect_file(folder / "old.pth").layout ==
        "prior of dalle2-pytorch 0.16.0 to 0.22.3, by its tensors");
  write_pth(folder / "a.pth",
            dict_of({{"a", at::ones({1})}, {std::string(100, 'b'), at::ones({1})}}));
  const std::string text = inspection_text(inspect_file(folder / "a.pth"));
  CHECK(text.find("float32") == 74);
  CHECK_THAT(text, Contains(std::string(100, 'b') + "  float32"));
}

TEST_CASE("inspect lists every tensor with type and shape and every scalar with its value") {
  const Inspection inspection = inspect_file(fixture("trainer.pth"));
  const std::string text = inspection_text(inspection);
  CHECK_THAT(text, Contains("model/unets.0.null_image_embed") && Contains("float32"));
  CHECK_THAT(text, Contains("optim0/param_groups/0/lr"));
  CHECK_THAT(text, Contains("version") && Contains("1.15.6"));
  const auto json = nlohmann::json::parse(inspection_json(inspection));
  CHECK(json.at("entries").size() == inspection.entries.size());
  bool found = false;
  for (const auto& entry : json.at("entries")) {
    if (entry.at("name") == "optim0/state/0/exp_avg") {
      found = true;
      CHECK(entry.at("dtype") == "float32");
      CHECK(entry.at("shape").is_array());
    }
    if (entry.at("name") == "sample") CHECK(entry.at("value") == 64);
  }
  CHECK(found);
}

TEST_CASE("inspect and fsck show the control characters of a file, and a name is one line") {
  const TempDir folder;
  const std::string name = "\x7f\xc2\x9btensor";
  write_pth(folder / "a.pth",
            dict_of({{"\x1b[2Jname\n  more", "value\x1b]0;title\x07"}, {name, at::zeros({1})}}));
  const Inspection inspection = inspect_file(folder / "a.pth");
  const std::string text = inspection_text(inspection);
  CHECK_THAT(text,
             Contains("\\x1b[2Jname\\x0a  more") && Contains("value\\x1b]0;title\\x07") &&
                 Contains("\\x9btensor"));
  CHECK(text.find('\x1b') == std::string::npos);
  const std::string json = inspection_json(inspection);
  CHECK_THAT(json, Contains("\\u007f\\u009btensor") && !Contains("\x7f") && !Contains("\xc2\x9b"));
  CHECK(nlohmann::json::parse(json)["entries"][1]["name"] == name);

  CheckedFile file;
  file.path = "a\x1b[2J\n  b.pth";
  file.faults = {"/c\x1b[2J: expected a tensor, got text"};
  CHECK_THAT(fsck_text(file.path, {file}),
             Contains("a\\x1b[2J\\x0a  b.pth: intact") && Contains("  /c\\x1b[2J: expected"));
  CHECK(fsck_text(file.path, {file}).find('\x1b') == std::string::npos);
}

TEST_CASE("inspect shows objects of unknown classes and values that JSON lacks") {
  const std::string text = inspection_text(inspect_file(fixture("model.pth")));
  CHECK_THAT(text, Contains("packaging.version.Version"));
  const TempDir folder;
  write_pth(folder / "a.pth", dict_of({{"nan", std::nan("")}, {"broken", Bytes{"\xff"}}}));
  CHECK(nlohmann::json::accept(inspection_json(inspect_file(folder / "a.pth"))));
}

TEST_CASE("a config goes into a checkpoint and comes out as JSON") {
  const std::string text = R"({"b":[1,2.5,null,true],"a":{"x":"ü","big":18446744073709551615}})";
  const Value value = value_of_json(text);
  CHECK(value.as_dict().find("b")->as_sequence()[1].is_double());
  CHECK(json_of_value(value) ==
        R"({"b":[1,2.5,null,true],"a":{"x":"ü","big":1.8446744073709552e+19}})");
  CHECK_THROWS_AS(value_of_json("{"), DataError);
  CHECK_THROWS_AS(value_of_json(std::string(100000, '[') + std::string(100000, ']')), DataError);
}

TEST_CASE("damaged checkpoints in safetensors metadata are refused") {
  const StateDict none;
  CHECK_THROWS_WITH(put_together({"{", none}, "a"),
                    Contains("the checkpoint in its metadata: not valid JSON: "));
  CHECK_THROWS_WITH(put_together({R"({"$tensor":"x"})", none}, "a"), Contains("missing: x"));
  CHECK_THROWS_WITH(put_together({R"({"$dict":[1]})", none}, "a"),
                    Contains("dict that is not one"));
  CHECK_THROWS_WITH(put_together({R"({"$bytes":"0g"})", none}, "a"), Contains("not hexadecimal"));
  CHECK_THROWS_WITH(put_together({R"({"$what":1})", none}, "a"), Contains("unknown kind $what"));
}

}  // namespace dalle2
