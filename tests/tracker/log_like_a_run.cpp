// SPDX-License-Identifier: MIT
// Logs as a run does, without training: what tests of services start as a process of its own.
//
//   log_like_a_run CONFIG.json DATA_PATH RECORDS [SECONDS between two]
//
// CONFIG.json is a `tracker.log`. Every tenth record comes with two pictures; some have a NaN.

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/untrusted_json.h"
#include "config/reading/reader.h"
#include "io/files/atomic_file.h"
#include "io/pictures/image.h"
#include "tracker/tracker.h"

namespace dalle2 {
namespace {

TrackerConfig read_config(const char* path, const char* data_path) {
  TrackerConfig config;
  const Json json = {
      {"data_path", data_path},
      {"overwrite_data_path", true},
      {"log", parse_untrusted_json(read_file(path)).value},
      {"save", {{"save_to", "local"}, {"save_latest_to", std::string(data_path) + "/latest.pth"}}}};
  ReadFindings findings;
  Reader(findings).read_struct(json, "/tracker", config);
  findings.faults.throw_if_any(path);
  return config;
}

void log_all(Tracker& tracker, int64_t records, double pause_seconds) {
  const std::string png = encode_png({2, 3, std::vector<uint8_t>(18, 200)});
  for (int64_t step = 0; step < records && stop_requested() == 0; ++step) {
    const bool is_skipped = step % 7 == 5;
    tracker.log({{"Epoch", step / 100},
                 {"Unet 0 Training Loss", 1.0 / static_cast<double>(step + 1)},
                 {"Gradient Norm", is_skipped ? std::nan("") : 0.25}},
                step);
    if (step % 10 == 0) {
      tracker.log_images({{png, fmt::format("a cat {}", step)}, {png, ""}}, "Train Samples", step);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_seconds));
  }
}

int run(int count, char** arguments) {
  if (count < 4) return 2;
  install_stop_signals();
  try {
    Tracker tracker(read_config(arguments[1], arguments[2]), {}, /*dummy=*/false);
    tracker.describe({.config = R"({"train": {"lr": 0.5}, "seed": 7})",
                      .process = {{"NumProcesses", "1"}},
                      .files = {{"decoder_config.json", R"({"seed": 7})"}}});
    const StartPlan& plan = tracker.open();
    tracker.begin(plan.files.empty() ? LoadedState{} : LoadedState{.path = plan.files.front()});
    tracker.save_config("decoder_config.json", R"({"seed": 7})");
    const int64_t records = std::atoll(arguments[3]);
    log_all(tracker, records, count > 4 ? std::atof(arguments[4]) : 0);
    if (records >= 0) tracker.log_error("the disk is slow");  // else a start that logs nothing
    tracker.save(
        {.is_latest = true,
         .write_checkpoint = [](const std::string& path) { write_file_atomically(path, "c"); },
         .write_model = [](const std::string& path) { write_file_atomically(path, "m"); }});
    const bool stopped = stop_requested() != 0;
    tracker.finish({.outcome = stopped ? RunEnd::Outcome::kStopped : RunEnd::Outcome::kDone,
                    .exit_code = stopped ? 75 : 0});
    return stopped ? 75 : 0;
  } catch (const Error& error) {
    log_error("", "{}", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace dalle2

int main(int count, char** arguments) {
  return dalle2::run(count, arguments);
}
