// SPDX-License-Identifier: MIT
// A toy run that is stopped, in each of its phases, and goes on: bit for bit what an uninterrupted
// run gives.
#include "dist/ranks_in_threads.h"
#include "io/pictures/image.h"
#include "run/commands.h"
#include "run/loop/row_run.h"
#include "run/pictures/pictures.h"
#include "run/toy_support.h"
#include "support/broken_listing.h"
#include "support/captured_log.h"
#include "support/message_of.h"

namespace dalle2::test {
namespace {

/// What a whole run gives, and its log.
struct Outcome {
  std::string bits;
  std::vector<double> losses, validations;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(ToyRun& run, const std::string& data_path) {
  return {bits_of(run.trainer()),
          logged(data_path, "Training Loss"),
          logged(data_path, "Validation Loss")};
}

Outcome whole_run(const ToyConfig& config) {
  ToyRun run(config);
  CHECK(run.run() == ExitCode::kDone);
  return outcome_of(run, config.tracker.data_path);
}

ToyConfig variant(const std::string& folder, EmaKind kind, bool post_hoc, bool async_save) {
  ToyConfig config = toy_config(folder);
  config.train.ema.kind = kind;
  config.train.async_save = async_save;
  if (post_hoc) config.train.post_hoc_ema.save_every_n_steps = 4;
  return config;
}

TEST_CASE("a toy run learns") {
  const TempDir folder;
  const Outcome outcome = whole_run(toy_config(folder.path()));
  REQUIRE(outcome.losses.size() == 15);
  REQUIRE(outcome.validations.size() == 3);
  CHECK(outcome.validations[2] < 0.9 * outcome.validations[0]);
}

TEST_CASE("a run that has finished has nothing left to do, until its config asks for more") {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  const Outcome outcome = whole_run(config);
  const auto saved_at = std::filesystem::last_write_time(folder.path() + "/out/checkpoint.pth");
  {
    const CapturedLog log;
    CHECK(whole_run(config) == outcome);
    CHECK(log.count("nothing left to do: the run has finished") == 1);
    CHECK(std::filesystem::last_write_time(folder.path() + "/out/checkpoint.pth") == saved_at);
  }
  ToyConfig other = config;
  other.train.epochs = 2;
  {
    const CapturedLog log;
    CHECK(whole_run(other) == outcome);
    CHECK(log.count("has been trained for 3 epochs and /train/epochs is 2: nothing is left to "
                    "train") > 0);
  }
  other.train.epochs = 4;
  const CapturedLog log;
  CHECK(whole_run(other).losses.size() == 20);
  CHECK(log.count("nothing left to do") == 0);
}

TEST_CASE("a record every n updates has the mean of the last n losses") {
  const TempDir each, third;
  const std::vector<double> losses = whole_run(toy_config(each.path())).losses;
  ToyConfig config = toy_config(third.path());
  config.train.log_every_n_updates = 3;
  const std::vector<double> means = whole_run(config).losses;
  REQUIRE(means.size() == 6);  // after the updates 0 and 3 of each of three epochs
  CHECK(means[0] == losses[0]);
  CHECK(means[1] == Approx((losses[1] + losses[2] + losses[3]) / 3).epsilon(1e-6));
  CHECK(means[2] == Approx((losses[3] + losses[4] + losses[5]) / 3).epsilon(1e-6));
}

TEST_CASE("a run that is stopped at any step goes on bit for bit, with both kinds of averages") {
  for (const EmaKind kind : {EmaKind::ema_pytorch, EmaKind::diffusers}) {
    for (const bool async_save : {false, true}) {
      const TempDir whole, parts;
      const Outcome expected = whole_run(variant(whole.path(), kind, true, async_save));
      const ToyConfig config = variant(parts.path(), kind, true, async_save);
      for (const int64_t last_step : {0, 4, 6, 14}) {
        ToyRun run(config);
        run_to_stop(run, last_step);
        CHECK(run.position().epoch * 5 + run.position().iteration == last_step + 1);
      }
      ToyRun last(config);
      CHECK(last.run() == ExitCode::kDone);
      CHECK(outcome_of(last, config.tracker.data_path) == expected);
    }
  }
}

TEST_CASE("a stop during a validation is reported once, and the validation is repeated") {
  const TempDir whole, parts;
  const Outcome expected = whole_run(toy_config(whole.path()));
  const ToyConfig config = toy_config(parts.path());
  // Calls: in an epoch's first or second batch. A loader throws where it hears of the signal first.
  for (const auto& [stop_at, loader_hears] :
       {std::pair{2, false}, std::pair{1, true}, std::pair{1, false}, std::pair{4, false}}) {
    StopRequest stop;
    const CapturedLog log;
    ToyRun run(config);
    int64_t calls = 0;
    run.in_validation = [&, last = stop_at, throws = loader_hears] {
      if (++calls != last) return;
      stop.make();
      if (throws) throw StoppedError("signal 15");
    };
    CHECK(run.run() == ExitCode::kStopped);
    CHECK(calls == stop_at);
    CHECK(log.count("SIGTERM: saving and stopping") == 1);
  }
  ToyRun last(config);
  CHECK(last.run() == ExitCode::kDone);
  CHECK(outcome_of(last, config.tracker.data_path) == expected);
}

TEST_CASE("averages for a choice after training are saved on the way and at the end") {
  const TempDir folder;
  const ToyConfig config = variant(folder.path(), EmaKind::ema_pytorch, true, true);
  whole_run(config);
  for (const char* name :
       {"step00000004.pth", "step00000008.pth", "step00000012.pth", "step00000015.pth"}) {
    const Value file = read_pth(config.tracker.data_path + "/averages/" + name);
    CHECK(Cursor(file).at("post_hoc_ema").at(0).at("prefix").as_string() == "toy.");
  }
}

// Faults that training has no part in: the state is saved, and the run ends with the fault.
TEST_CASE("a network that is lost costs no step: the state is saved, then the run ends with it") {
  const TempDir whole_folder, folder;
  const ToyConfig whole_config = toy_config(whole_folder.path());
  ToyRun whole(whole_config);
  CHECK(whole.run() == ExitCode::kDone);
  const ToyConfig config = toy_config(folder.path());
  {
    ToyRun run(config);
    run.while_reading = [](int64_t step) {
      if (step == 7) throw NetworkError("the network is lost");
    };
    CHECK_THROWS_WITH(run.run(), "the network is lost");
  }
  ToyRun run(config);
  CHECK(first_step_of(run) == 7);
  CHECK(bits_of(run.trainer()) == bits_of(whole.trainer()));
}

TEST_CASE("a fault whose state cannot be saved is still the fault that is reported") {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  CapturedLog log;
  run.while_reading = [&](int64_t step) {
    if (step != 2) return;
    std::filesystem::create_directories(folder / "out/checkpoint.pth/in the way");
    throw NetworkError("the network is lost");
  };
  CHECK_THROWS_WITH(run.run(), "the network is lost");
  CHECK(log.count("the state could not be saved: ") == 1);
}

/// @return whether a run that meets a fault of this kind has left a checkpoint
template <class Fault>
bool saves_at_fault(const std::function<void(ToyRun&)>& prepare) {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  prepare(run);
  CHECK_THROWS_AS(run.run(), Fault);
  return std::filesystem::exists(folder / "out/checkpoint.pth");
}

TEST_CASE("a fault before the first step, one of training itself and a lost rank save nothing") {
  CHECK_FALSE(saves_at_fault<DataError>([](ToyRun& run) {
    run.while_reading = [](int64_t) { throw DataError("no usable sample"); };
  }));
  CHECK_FALSE(saves_at_fault<ResourceError>([](ToyRun& run) {
    run.before_step = [](int64_t step, at::Tensor&) {
      if (step == 2) throw ResourceError("out of memory");
    };
  }));
  // No fault from outside: without the rank the others cannot save.
  CHECK_FALSE(saves_at_fault<PeerError>([](ToyRun& run) {
    run.while_reading = [](int64_t step) {
      if (step == 2) throw PeerError("rank 1 is gone");
    };
  }));
}

struct Rows {
  int64_t rows = 0;
  int64_t size() const { return rows; }
};

TEST_CASE("a rank that cannot read its batch ends with its fault, the others stop there") {
  std::array<std::string, 2> ends;
  as_ranks(2, [&](ProcessGroup& group) {
    try {
      rank_batch<Rows>(group, 8, 0, 2, [&](int64_t, int64_t count) -> std::optional<Rows> {
        if (group.rank() == 1) throw DataError("a disk is gone");
        return Rows{count};
      });
    } catch (const Error& error) {
      ends[static_cast<size_t>(group.rank())] =
          std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
  });
  CHECK(ends[0] == "75 another rank cannot read its batch");
  CHECK(ends[1] == "3 a disk is gone");
}

namespace fs = std::filesystem;
using Catch::Contains;
using test::BrokenListing;

/// Longer than any file system takes a name.
const std::string kLongName(300, 'x');

TEST_CASE("a file is written into a folder that is there, or into the working directory") {
  const test::TempDir folder;
  CHECK_NOTHROW(check_out_folder("--out", folder / "a.pth"));
  CHECK_NOTHROW(check_out_folder("--out", "a.pth"));
  CHECK_NOTHROW(check_out_folder("--out", ""));
  CHECK_NOTHROW(check_out_folder("--out", "/a.pth"));
}

TEST_CASE("a folder that is not there is a slip of the pen, and named with its option") {
  const test::TempDir folder;
  const std::string here = fs::current_path().string();
  CHECK_THROWS_WITH(check_out_folder("--out", "nowhere/deep/a.pth"),
                    Catch::Equals("--out nowhere/deep/a.pth: there is no folder nowhere/deep "
                                  "(relative to " +
                                  here + ")"));
  CHECK_THROWS_AS(check_out_folder("--out", "nowhere/a.pth"), ConfigError);
  CHECK_FALSE(fs::exists("nowhere"));
  std::ofstream(folder / "file") << "x";
  CHECK_THROWS_WITH(check_out_folder("--save", folder / "file/a.json"),
                    Contains("--save ") && Contains("there is no folder " + folder / "file"));
  CHECK_THROWS_AS(check_out_folder("--out", kLongName + "/a.pth"), ConfigError);
}

TEST_CASE("pictures of a folder that cannot be read are an error of ours") {
  const test::TempDir folder;
  CHECK_THROWS_WITH(load_pictures(folder / "absent"),
                    Catch::Equals(folder / "absent: no such file or folder"));
  CHECK_THROWS_WITH(
      load_pictures(folder.path()),
      Catch::Equals(folder.path() + ": no .png, .jpg, .jpeg or .webp in this folder"));
  CHECK_THROWS_AS(load_pictures(kLongName), DataError);
  std::ofstream(folder / "a.png") << "x";
  const BrokenListing broken;
  CHECK_THAT(test::message_of<DataError>([&] { load_pictures(folder.path()); }),
             Contains("the folder \"" + folder.path() + "\" cannot be read: "));
}

TEST_CASE("pictures to sample from are read as those of the training were") {
  const test::TempDir folder;
  const std::string file = folder / "a.png";
  Image half{2, 1, {255, 0, 0, 0, 255, 0}};
  half.alpha = {255, 0};
  write_png(file, half);
  const auto values = [&](const PictureReading& reading) {
    const at::Tensor picture = (load_pictures(file, reading) * 255).round().to(at::kLong)[0];
    return std::vector<int64_t>(picture.const_data_ptr<int64_t>(),
                                picture.const_data_ptr<int64_t>() + picture.numel());
  };
  using Values = std::vector<int64_t>;
  CHECK(values({}) == Values{255, 0, 0, 255, 0, 0});
  CHECK(values({.options = {.ground = Rgb{255, 255, 255}}}) == Values{255, 255, 0, 255, 0, 255});
  CHECK(values({.options = {.ground = Rgb{255, 255, 255}}, .channels = 1}) == Values{76, 255});
  CHECK(values({.options = {.keep_alpha = true}, .channels = 4}) ==
        Values{255, 0, 0, 255, 0, 0, 255, 0});
}

TEST_CASE("averages in a folder that cannot be read are an error of ours") {
  const test::TempDir folder;
  std::ofstream(folder / "step00000001.pth") << "x";
  const EmaCommand command{
      .sigma = 0.1, .step = {}, .checkpoints = {folder.path()}, .out_path = folder / "out.pth"};
  const BrokenListing broken;
  CHECK_THAT(test::message_of<DataError>([&] { run_ema(command); }),
             Contains("the folder \"" + folder.path() + "\" cannot be read: "));
}

}  // namespace
}  // namespace dalle2::test
