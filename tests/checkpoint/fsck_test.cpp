// SPDX-License-Identifier: MIT
#include "checkpoint/inspect.h"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/archive/safetensors.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint_test_tools.h"
#include "support/broken_listing.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;
using test::dict_of;
using test::TempDir;

at::Tensor drawn(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::TensorOptions().dtype(at::kFloat))
      .view(shape)
      .clone();
}

/// Two parameters of a decoder with one unet, and all that a run of ours saves.
Dict run_checkpoint() {
  Dict states;
  states.items.emplace_back(
      0, dict_of({{"exp_avg", drawn({2, 3}) * 2}, {"exp_avg_sq", drawn({2, 3}) * 3}}));
  return dict_of({{"model",
                   dict_of({{"unets.0.init_conv.weight", drawn({2, 3})},
                            {"unets.0.init_conv.bias", drawn({2})}})},
                  {"version", "1.15.6"},
                  {"steps", at::full({1}, 1234, at::kLong)},
                  {"epoch", 3},
                  {"samples_seen", 9872},
                  {"dalle2_train", dict_of({{"loader_position", dict_of({{"row", 7}})}})},
                  {"optim0",
                   dict_of({{"state", states},
                            {"param_groups", List{{dict_of({{"params", List{{0, 1}}}})}}}})},
                  {"sched0", Value()},
                  {"ema",
                   dict_of({{"0.step", at::full({}, 4, at::kLong)},
                            {"0.ema_model.init_conv.weight", drawn({2, 3}) * 5},
                            {"0.ema_model.init_conv.bias", drawn({2}) * 5}})}});
}

Dict without(const Dict& all, const std::string& key) {
  Dict rest;
  for (const auto& [name, value] : all.items) {
    if (name.as_string() != key) rest.set(name.as_string(), value);
  }
  return rest;
}

/// Writes the value and checks the file.
CheckedFile checked(const TempDir& folder, const Value& value) {
  write_pth(folder / "a.pth", value, ReadBack::kNo);
  return check_file(folder / "a.pth");
}

}  // namespace

TEST_CASE("fsck: an intact checkpoint says where its run stands and that it can go on") {
  const TempDir folder;
  const CheckedFile file = checked(folder, run_checkpoint());
  CHECK(file.state == FileState::kIntact);
  CHECK(file.faults.empty());
  CHECK(file.kind == "checkpoint");
  CHECK(file.resume == Resume::kExact);
  CHECK(file.epoch == 3);
  CHECK(file.samples_seen == 9872);
  CHECK(file.steps == std::vector<int64_t>{1234});
  CHECK(file.tensor_count == 8);
  const std::string text = fsck_text("a.pth", {file});
  CHECK_THAT(text, Contains("a.pth: intact, "));
  CHECK_THAT(text, Contains("checkpoint of epoch 3, 9,872 samples seen, 1,234 steps, 8 tensors"));
  CHECK_THAT(text, Contains("a run can resume from it"));
  CHECK_THAT(text, Contains("a.pth: 1 intact (1 to resume from), 0 damaged, 0 unfinished"));
}

TEST_CASE("fsck: what resuming needs and the file lacks is named") {
  const TempDir folder;
  const CheckedFile reference = checked(folder, without(run_checkpoint(), "dalle2_train"));
  CHECK(reference.resume == Resume::kBySamples);
  CHECK_THAT(fsck_text("a.pth", {reference}), Contains("in its epoch by the count of samples"));
  // Versions before 1.8 wrote no schedules.
  CHECK(checked(folder, without(run_checkpoint(), "sched0")).resume == Resume::kExact);
  const CheckedFile file = checked(folder, without(run_checkpoint(), "optim0"));
  CHECK(file.state == FileState::kIntact);
  CHECK(file.resume == Resume::kNo);
  CHECK_THAT(fsck_text("a.pth", {file}), Contains("no run can resume from it: it lacks optim0"));
  const CheckedFile weights =
      checked(folder, dict_of({{"version", "1.15.6"}, {"model", *run_checkpoint().find("model")}}));
  CHECK(weights.kind == "model");
  CHECK(weights.resume == Resume::kNo);
  CHECK_THAT(fsck_text("a.pth", {weights}),
             Contains("no checkpoint of a run: none can resume from it"));
}

TEST_CASE("fsck: a checkpoint of a prior has one step count and one optimizer") {
  const TempDir folder;
  Dict prior = dict_of({{"optimizer", *run_checkpoint().find("optim0")},
                        {"scheduler", Dict{}},
                        {"model", *run_checkpoint().find("model")},
                        {"step", at::full({1}, 20, at::kLong)}});
  CHECK(checked(folder, prior).resume == Resume::kBySamples);
  prior.set("dalle2_train", *run_checkpoint().find("dalle2_train"));
  const CheckedFile file = checked(folder, prior);
  CHECK(file.resume == Resume::kExact);
  CHECK(file.steps == std::vector<int64_t>{20});
  CHECK(checked(folder, without(prior, "optimizer")).missing ==
        std::vector<std::string>{"optimizer"});
}

TEST_CASE("fsck: each weight and average that is no number is named") {
  const TempDir folder;
  Dict checkpoint = run_checkpoint();
  for (const auto& [entry, name] : {std::pair{"model", "unets.0.init_conv.bias"},
                                    std::pair{"ema", "0.ema_model.init_conv.weight"}}) {
    Dict tensors = checkpoint.find(entry)->as_dict();
    tensors.set(name, at::full({2}, std::numeric_limits<float>::quiet_NaN()));
    checkpoint.set(entry, tensors);
  }
  const CheckedFile file = checked(folder, checkpoint);
  CHECK(file.state == FileState::kDamaged);
  CHECK(file.resume == Resume::kNo);
  CHECK(file.faults ==
        std::vector<std::string>{"model/unets.0.init_conv.bias: NaN or infinity",
                                 "ema/0.ema_model.init_conv.weight: NaN or infinity"});
}

TEST_CASE("fsck: an entry of another type is a fault though every checksum is right") {
  const TempDir folder;
  Dict checkpoint = run_checkpoint();
  checkpoint.set("steps", "many");
  const CheckedFile file = checked(folder, checkpoint);
  CHECK(file.state == FileState::kDamaged);
  REQUIRE(file.faults.size() == 1);
  CHECK_THAT(file.faults[0], Contains("/steps: expected"));
}

TEST_CASE("fsck: every damaged entry is named with its tensor, its bytes and both checksums") {
  const TempDir folder;
  const std::string path = folder / "a.pth";
  write_pth(path, run_checkpoint());
  std::string bytes = read_file(path);
  const float inside_weight[] = {1, 2, 3, 4}, inside_moment[] = {6, 9, 12, 15};
  for (const auto* content : {&inside_weight, &inside_moment}) {
    const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(*content), 16));
    REQUIRE(at != std::string::npos);
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
  }
  test::put_file(path, bytes);
  const CheckedFile file = check_file(path);
  CHECK(file.state == FileState::kDamaged);
  CHECK(file.resume == Resume::kNo);
  REQUIRE(file.faults.size() == 2);
  CHECK_THAT(file.faults[0], Contains("(model/unets.0.init_conv.weight), bytes "));
  CHECK_THAT(file.faults[0], Contains("expected CRC-32 ") && Contains(", got "));
  CHECK_THAT(file.faults[1], Contains("(optim0/state/0/exp_avg_sq)"));
  CHECK_THAT(fsck_text(path, {file}), Contains("0 intact (0 to resume from), 1 damaged"));
}

TEST_CASE("fsck: every flipped bit is found, or changes nothing that is read") {
  const TempDir folder;
  const std::string path = folder / "a.pth";
  write_pth(path, run_checkpoint());
  const std::string bytes = read_file(path);
  int found = 0;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    test::put_file(path, flipped);
    const CheckedFile file = check_file(path);
    found += file.state == FileState::kDamaged ? 1 : 0;
    const bool harmless =
        file.state == FileState::kIntact && test::same_content(read_pth(path), run_checkpoint());
    REQUIRE((file.state == FileState::kDamaged || harmless));
  }
  CHECK(found > 100);
}

TEST_CASE("fsck: an intact TorchScript program is no damage, a broken one is") {
  const TempDir folder;
  const std::string path = folder / "inception.pt";
  std::string bytes = read_file(test::clip_fixture("openai/tiny.pt"));
  test::put_file(path, bytes);
  const CheckedFile intact = check_file(path);
  CHECK(intact.state == FileState::kIntact);
  CHECK(intact.resume == Resume::kNo);
  CHECK(intact.faults.empty());
  CHECK_THAT(
      fsck_text(path, {intact}),
      Contains("; TorchScript program\n  no checkpoint of a run: none can resume from it\n") &&
          Contains("1 intact (0 to resume from), 0 damaged"));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  test::put_file(path, bytes);
  CHECK(check_file(path).state == FileState::kDamaged);
}

TEST_CASE("fsck: a folder is checked file by file, .part files are reported but are not damage") {
  const TempDir folder;
  write_pth(folder / "checkpoint.pth", run_checkpoint());
  write_safetensors(folder / "weights.safetensors", {{"a", drawn({4})}});
  test::put_file(folder / "model.pth.part", "half of");
  test::put_file(folder / "log.jsonl", "{}\n");
  const std::string path = folder / "";
  std::vector<CheckedFile> files = check_path(path);
  REQUIRE(files.size() == 3);
  CHECK(all_intact(files));
  CHECK(files[1].state == FileState::kUnfinished);
  CHECK(files[2].kind == "tensors");
  CHECK_THAT(fsck_text(path, files),
             Contains("2 intact (1 to resume from), 0 damaged, 1 unfinished"));

  test::put_file(folder / "model.pth", read_file(folder / "checkpoint.pth").substr(0, 900));
  files = check_path(path);
  CHECK_FALSE(all_intact(files));
  const auto json = nlohmann::json::parse(fsck_json(path, files));
  CHECK(json["intact"] == false);
  CHECK(json["files"][0]["resume"] == "exact");
  CHECK(json["files"][1]["state"] == "damaged");
  CHECK_THAT(json["files"][1]["faults"][0].get<std::string>(), Contains("cut off"));
}

TEST_CASE("fsck: control characters of names are escaped in the JSON, which reads the same") {
  CheckedFile file;
  file.path =
      "a\x7f\xc2\x9b"
      "2J\x1b.pth";
  const std::string json = fsck_json(file.path, {file});
  CHECK_THAT(
      json, Contains("a\\u007f\\u009b2J\\u001b.pth") && !Contains("\x7f") && !Contains("\xc2\x9b"));
  CHECK(nlohmann::json::parse(json)["files"][0]["file"] == file.path);
}

TEST_CASE("fsck: a folder whose listing breaks off is not intact") {
  const TempDir folder;
  write_pth(folder / "checkpoint.pth", run_checkpoint());
  test::put_file(folder / "b.pth", "x");
  const test::BrokenListing broken;
  CHECK_THROWS_WITH(check_path(folder / ""), Contains("cannot be read: Input/output error"));
}

TEST_CASE("fsck: a path that is not there, and a folder without checkpoints, are refused") {
  const TempDir folder;
  CHECK_THROWS_WITH(check_path(folder / "none"), Contains("no such file or folder"));
  CHECK_THROWS_WITH(check_path(folder / ""), Contains("found none"));
}

}  // namespace dalle2
