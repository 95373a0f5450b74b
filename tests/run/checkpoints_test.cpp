// SPDX-License-Identifier: MIT
// Which checkpoint a toy run goes on from, and which it leaves alone.
#include "checkpoint/pickle/value_json.h"
#include "run/shards/shard_run.h"
#include "run/toy_support.h"
#include "support/captured_log.h"
#include "support/full_disk.h"
#include "support/message_of.h"

namespace dalle2::test {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

/// A run that was stopped in its second epoch, with two older states.
ToyConfig stopped_run(const std::string& folder) {
  ToyConfig config = toy_config(folder);
  config.tracker.keep_last = 3;
  ToyRun run(config);
  run_to_stop(run, 8);
  return config;
}

/// Replaces the newest state, under each of its names, by what `change` makes of it.
void change_newest(const std::string& folder, const std::function<void(Dict&)>& change) {
  Value value = read_pth(folder + "/latest.pth");
  Dict copy = value.as_dict();
  change(copy);
  for (const std::string& path : {folder + "/latest.pth", folder + "/out/checkpoint.pth"}) {
    write_pth(path + ".new", copy);
    fs::rename(path + ".new", path);
  }
  // The newest snapshot is the same state.
  std::vector<fs::path> snapshots;
  for (const auto& entry : fs::directory_iterator(folder + "/out/snapshots")) {
    if (entry.path().filename().string().starts_with("epoch")) snapshots.push_back(entry.path());
  }
  REQUIRE(snapshots.size() >= 2);
  fs::remove(*std::max_element(snapshots.begin(), snapshots.end()));
}

TEST_CASE("a newest checkpoint that is damaged, incomplete or not finite is passed over") {
  const std::vector<std::pair<const char*, std::function<void(Dict&)>>> cases = {
      {"out/checkpoint.pth", [](Dict&) {}},
      {"the weights are not finite",
       [](Dict& state) {
         Value model = *state.find("model");
         model.as_dict().set("toy.to_q.bias", at::full({1}, NAN));
         state.set("model", model);
       }},
      // Its updates would be skipped.
      {"the moments of the optimizer are not finite",
       [](Dict& state) {
         Value optimizer = *state.find("optimizer");
         Value all = *optimizer.as_dict().find("state");
         Value& first = all.as_dict().items.at(0).second;
         first.as_dict().set("exp_avg_sq", at::full({1, 4}, NAN));
         optimizer.as_dict().set("state", all);
         state.set("optimizer", optimizer);
       }},
      {"no entry 'optimizer': the optimizer's state is missing", [](Dict& state) {
         std::erase_if(state.items,
                       [](const auto& item) { return item.first.as_string() == "optimizer"; });
       }}};
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(cases[i].first);
    const TempDir folder;
    const ToyConfig config = stopped_run(folder.path());
    change_newest(folder.path(), cases[i].second);
    if (i == 0) fs::resize_file(folder / "out/checkpoint.pth", 300);
    ToyRun run(config);
    CapturedLog log;
    CHECK(first_step_of(run) == 8);  // the save after the third step of the second epoch
    CHECK(log.count(cases[i].first) > 0);
    CHECK(log.count("Falling back to") > 0);
    CHECK(log.count("Load another checkpoint") == 0);  // it does so by itself
    CHECK(fs::exists(folder / "latest.pth"));
  }
}

TEST_CASE("a copy of a run's folder resumes though the original is there") {
  const TempDir folder;
  ToyConfig config = stopped_run(folder.path());
  fs::copy(folder / "out", folder / "copy", fs::copy_options::recursive);
  config.tracker.data_path = folder / "copy";
  CHECK_THROWS_WITH(ToyRun(config).run(), Contains("mv " + (folder / "latest.pth")));
  config.tracker.save = {save_latest_to(folder / "of_copy.pth")};
  ToyRun run(config);
  CHECK(first_step_of(run) == 9);
}

TEST_CASE("a run of another kind in the folder is refused, with the ways out") {
  const TempDir folder;
  const ToyConfig config = stopped_run(folder.path());
  change_newest(folder.path(), [](Dict& state) {
    state.set("model", to_dict({{"unets.0.init_conv.bias", at::zeros({1})}}));
  });
  CHECK_THAT(test::message_of<ConfigError>([&] { ToyRun(config).run(); }),
             Contains("expected a checkpoint of a toy, got one of a decoder") &&
                 Contains("begin a new run with --fresh"));
}

TEST_CASE("where no checkpoint is good the run ends, and says how to find out more") {
  const TempDir folder;
  const ToyConfig config = stopped_run(folder.path());
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.path().extension() == ".pth") fs::resize_file(entry.path(), 100);
  }
  CHECK_THROWS_WITH(ToyRun(config).run(),
                    Contains("none of its checkpoints is intact: `dalle2-train fsck " +
                             config.tracker.data_path + "`") &&
                        Contains("use --fresh or choose another /tracker/data_path"));
}

TEST_CASE("a state that only reads as whole is not passed over, and its copies are named") {
  const TempDir folder;
  const ToyConfig config = stopped_run(folder.path());
  fs::copy_file(folder / "latest.pth", folder / "kept.pth");
  fs::remove_all(folder / "out/snapshots");
  Value value = read_pth(folder / "out/checkpoint.pth");
  value.as_dict().set("optimizer", Dict{});
  write_pth(folder / "new.pth", value);
  fs::rename(folder / "new.pth", folder / "out/checkpoint.pth");
  fs::remove(folder / "latest.pth");
  fs::rename(folder / "kept.pth", folder / "latest.pth");
  ToyConfig without_load = config;
  without_load.tracker.load.reset();
  CHECK_THROWS_WITH(ToyRun(without_load).run(),
                    Contains("optimizer") && Contains("Copy one of these to ") &&
                        Contains(folder / "latest.pth"));
  ToyRun run(config);
  CHECK(first_step_of(run) == 9);  // from the file of /tracker/load, which this run saved
}

TEST_CASE("tensors that differ are reported by name, not by counts of the optimizer") {
  const TempDir folder;
  const ToyConfig config = stopped_run(folder.path());
  Value value = read_pth(folder.path() + "/latest.pth");
  Value model = *value.as_dict().find("model");
  model.as_dict().set("toy.extra.weight", at::zeros({2}));
  value.as_dict().set("model", model);
  value.as_dict().set("optimizer", Dict{});
  write_pth(folder / "other.pth", value);
  ToyConfig other = config;
  other.tracker.load = load_from(folder / "other.pth");
  other.tracker.data_path = folder / "elsewhere";
  other.tracker.save = {save_latest_to(folder / "elsewhere/latest.pth")};
  ToyRun run(other);
  CHECK_THROWS_WITH(run.run(), Contains("toy.extra.weight"));
}

TEST_CASE("the best state is kept apart from the latest") {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  run.run();
  const Value best = read_pth(folder / "best.pth"), latest = read_pth(folder / "latest.pth");
  const auto losses = logged(config.tracker.data_path, "Validation Loss");
  CHECK(Cursor(best).at("best_loss").as_double() ==
        *std::min_element(losses.begin(), losses.end()));
  CHECK(Cursor(latest).at("epoch").as_int() == 3);
  CHECK(Cursor(latest).at("dalle2_train").at("iteration").as_int() == 0);
}

TEST_CASE("a config that gives the checkpoint another meaning is refused, unless allowed") {
  const TempDir folder;
  ToyConfig config = stopped_run(folder.path());
  config.train.lr = 5e-3;  // may change
  config.seed = 7;         // may not
  {
    ToyRun run(config);
    CHECK_THROWS_WITH(run.run(),
                      Contains("/seed: the checkpoint has 0, this config 7") &&
                          Contains("/train/allow_changed_config") && !Contains("/train/lr"));
  }
  config.train.allow_changed_config = true;
  ToyRun run(config);
  CapturedLog log;
  CHECK(first_step_of(run) == 5);  // the epoch starts over: its samples have changed
  CHECK(log.count("the config has changed since: /train/lr: the checkpoint has 0.05") > 0);
}

TEST_CASE("an epoch starts over where the data set has another size, if that is allowed") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  {
    ToyRun run(config);
    run.checkpoints().set_data_size({20, "row"});
    run_to_stop(run, 8);
  }
  {
    ToyRun refused(config);
    refused.checkpoints().set_data_size({21, "row"});
    CHECK_THROWS_WITH(refused.run(), Contains("has a data set of 20 rows, now there are 21 rows"));
  }
  config.train.allow_changed_config = true;
  ToyRun run(config);
  run.checkpoints().set_data_size({21, "row"});
  const CapturedLog log;
  CHECK(first_step_of(run) == 5);
  CHECK(log.count("/data: the checkpoint has a data set of 20 rows, now there are 21 rows") == 1);
}

TEST_CASE("another order of the samples is refused amid an epoch, and told between two") {
  const auto texts = [](const char* shuffles) {
    return fmt::format(R"({{"decoder": {{}}, "data": {{"shuffle_train": {}}}}})", shuffles);
  };
  const auto checkpoint = [&](int64_t sample, const char* next_task) {
    Dict root;
    root.set("config", value_of_json(texts("true")));
    root.set("sample", sample);
    root.set("next_task", next_task);
    return Value(root);
  };
  const ConfigTexts now{.kind = "decoder", .raw_json = "", .full_json = texts("false")};
  const Value amid = checkpoint(40, "train");
  CHECK_THROWS_WITH(compare_config(Cursor(amid), now, {}, /*allow_changed_config=*/false),
                    Contains("/data/shuffle_train: the checkpoint has true, this config false: it "
                             "was saved within an epoch") &&
                        Contains("/train/allow_changed_config"));
  CHECK(compare_config(Cursor(amid), now, {}, /*allow_changed_config=*/true).order.size() == 1);
  for (const Value& between : {checkpoint(0, "train"), checkpoint(40, "val")}) {
    const CapturedLog log;
    CHECK(compare_config(Cursor(between), now, {}, /*allow_changed_config=*/false).order.empty());
    CHECK(log.count("the config has changed since: /data/shuffle_train") == 1);
  }
}

TEST_CASE("the place in the data goes through a checkpoint; a damaged one is refused") {
  ShardPosition position;
  position.iteration = 4;
  position.loader = {.row = 5,
                     .block_rows = 3,
                     .next_lane = 1,
                     .lanes = {{.passed = 2}, {.bad_shards = 7}},
                     .shard_names = "names"};
  const auto read_with = [&](const char* key, int64_t number) {
    Dict own, root;
    for (auto& [name, value] : position_entries(position, own)) root.set(name, value);
    Dict place = own.find("loader_position")->as_dict();
    place.set(key, number);
    own.set("loader_position", place);
    root.set(kOwnState, own);
    const Value checkpoint = root;
    ShardPosition other;
    read_position(other, Cursor(checkpoint));
    return other;
  };
  const ShardPosition same = read_with("row", 5);
  CHECK(same.loader == position.loader);
  CHECK(same.iteration == 4);
  CHECK_THROWS_WITH(read_with("row", -1), Contains("row: expected 0 or more, got -1"));
  CHECK_THROWS_WITH(read_with("next_lane", 2), Contains("next_lane: expected a lane of 2, got 2"));
}

TEST_CASE("adapters without weights to stand on are refused") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  config.train.lora.rank = 1;
  ToyRun run(config);
  CHECK_THROWS_WITH(run.run(),
                    Contains("/train/lora: adapters need the weights of a trained toy") &&
                        Contains("/tracker/load"));
}

TEST_CASE("adapters begin on a checkpoint without any, and go on from their own afterwards") {
  const TempDir folder;
  ToyConfig base = toy_config(folder / "base");
  ToyRun(base).run();
  const at::Tensor weight =
      Cursor(read_pth(folder / "base/latest.pth")).at("model").at("toy.to_q.weight").as_tensor();

  const auto adapters = [&](const std::string& name) {
    ToyConfig config = toy_config(folder / name);
    config.train.lora.rank = 1;
    config.tracker.load = load_from(folder / "base/latest.pth");
    return config;
  };
  ToyRun whole(adapters("whole"));
  CHECK(whole.run() == ExitCode::kDone);
  {
    ToyRun first(adapters("parts"));
    run_to_stop(first, 6);
  }
  ToyRun second(adapters("parts"));
  CHECK(second.run() == ExitCode::kDone);
  CHECK(second.trainer().steps() == 15);
  CHECK(bits_of(second.trainer()) == bits_of(whole.trainer()));
  CHECK(second.trainer().toy().network->to_q->adapter()->up.abs().sum().item<double>() > 0);
  CHECK(fs::exists(folder / "parts/out/lora.safetensors"));
  CHECK(weight.numel() == 4);
}

TEST_CASE("a save that a full disk refuses waits for the next one, three in a row end the run") {
  const TempDir folder;
  CapturedLog log;
  ToyConfig config = toy_config(folder.path());
  config.train.async_save = false;
  config.save_every_n_steps = 1;
  std::optional<FullDisk> full;
  ToyRun once(config);
  once.before_step = [&](int64_t step, at::Tensor&) {
    full.reset();
    if (step == 6) full.emplace(1000);
  };
  CHECK(once.run() == ExitCode::kDone);
  CHECK(log.count("epoch 1, step 7: the state is not saved, and the run continues") == 1);
  CHECK(facts_of(Cursor(read_pth(folder / "out/checkpoint.pth"), "it")).samples_seen == 15 * 8);

  ToyConfig lasting = toy_config(folder / "lasting");
  lasting.train.async_save = false;
  lasting.save_every_n_steps = 1;
  ToyRun often(lasting);
  often.before_step = [&](int64_t step, at::Tensor&) {
    if (step == 1) full.emplace(1000);
  };
  CHECK_THROWS_AS(often.run(), DiskFullError);
  full.reset();
  CHECK(log.count("the state is not saved, and the run continues") == 3);
  CHECK(facts_of(Cursor(read_pth(folder / "lasting/out/checkpoint.pth"), "it")).samples_seen == 8);
}

TEST_CASE("a full disk at the last save of a run ends it with its exit code") {
  const TempDir folder;
  CapturedLog log;
  const ToyConfig config = toy_config(folder.path());
  std::optional<FullDisk> full;
  StopRequest stop;
  ToyRun run(config);
  run.before_step = [&](int64_t step, at::Tensor&) {
    if (step != 8) return;
    full.emplace(1000);
    stop.make();
  };
  CHECK_THROWS_AS(run.run(), DiskFullError);
}

TEST_CASE("a save that fails in the background is reported at the next step") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  run.before_step = [&](int64_t step, at::Tensor&) {
    // A folder in the way of the next checkpoint.
    if (step == 1) fs::create_directories(config.tracker.data_path + "/checkpoint.pth/in_the_way");
  };
  CHECK_THROWS_WITH(run.run(), Contains("checkpoint.pth"));
}

}  // namespace
}  // namespace dalle2::test
