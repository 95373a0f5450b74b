// SPDX-License-Identifier: MIT
// Commands that read files of runs, and write others: `inspect`, `fsck`, `schema`, `ema`, `report`, `sync`; and
// `evaluate`.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/public_url.h"
#include "base/text.h"
#include "checkpoint/inspect.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/post_hoc.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands/several_processes.h"
#include "run/kinds.h"
#include "run/loop/run_session.h"
#include "tracker/places/copies.h"
#include "tracker/places/remote_file.h"
#include "tracker/report/report.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Part of the wanted profile above which what is made is another average than asked for.
constexpr double kMuchMissed = 0.05;

/// step00000036.pth, as a run names its averages.
bool is_name_of_averages(const fs::path& path) {
  const std::string stem = path.stem().string();
  return path.extension() == ".pth" && stem.size() > 4 && stem.starts_with("step") &&
         stem.find_first_not_of("0123456789", 4) == std::string::npos;
}

/// The result must not take the place of what it is made of.
void check_averages_out(const std::string& out, const std::vector<std::string>& files) {
  std::error_code ignored;
  const bool is_input = std::ranges::any_of(
      files, [&](const std::string& file) { return fs::equivalent(file, out, ignored); });
  if (is_input || (fs::exists(out, ignored) && is_name_of_averages(out))) {
    throw ConfigError(
        "{}: the last argument is the file to write, but this one holds averages of the run\n"
        "  Name another file after the averages, e.g. ema.pth.",
        out);
  }
}

/// The files themselves, and of folders those that a run saved, by name.
std::vector<std::string> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!is_folder(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (const std::string& file : files_in_folder(path)) {
      if (is_name_of_averages(file)) found.push_back(file);
    }
    if (found.empty()) {
      throw DataError("{}: found no file of averages (step00000036.pth, ...) in the folder", path);
    }
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

void check_replaces_report(const std::string& path) {
  constexpr size_t kHeadBytes = 400;  // which hold the generator
  std::ifstream there(path, std::ios::binary);
  if (!there) return;
  std::string head(kHeadBytes, '\0');
  there.read(head.data(), kHeadBytes);
  if (head.find("content=\"dalle2-train\"") != std::string::npos) return;
  throw ConfigError("--out {}: the file exists, and is no report of a run\n  Name another one.",
                    path);
}

}  // namespace

void check_out_folder(const std::string& option, const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  if (folder.empty() || is_folder(folder)) return;
  throw ConfigError("{} {}: there is no folder {} (relative to {})",
                    option,
                    path,
                    folder.string(),
                    fs::current_path().string());
}

void check_out_file(const std::string& option, const std::string& path, bool overwrite) {
  check_out_folder(option, path);
  if (overwrite || !path_exists(path)) return;
  throw ConfigError(
      "{} {}: the file exists\n  Name another one, or add --overwrite.", option, path);
}

void run_inspect(const FileCommand& command) {
  log_to_stderr();
  const FetchedFile file(command.path);
  Inspection inspection = inspect_file(file.path());
  if (file.path() != command.path) inspection.path = public_url(command.path);
  print_line("{}", command.json ? inspection_json(inspection) : inspection_text(inspection));
}

ExitCode run_fsck(const FileCommand& command) {
  const std::vector<CheckedFile> files = check_path(command.path);
  const std::string text =
      command.json ? fsck_json(command.path, files) + "\n" : fsck_text(command.path, files);
  std::printf("%s", text.c_str());
  return all_intact(files) ? ExitCode::kDone : ExitCode::kData;
}

void run_schema(const std::string& kind) {
  print_line("{}", config_schema(kind));
}

ExitCode run_sync(const std::string& data_path) {
  const SyncReport report = sync_run(data_path);
  for (const std::string& error : report.errors) log_error("track", "{}", error);
  std::string left;
  if (report.left > 0) left += ", " + counted(static_cast<int64_t>(report.left), "file") + " left";
  if (report.rows_left > 0) left += ", " + counted(report.rows_left, "row") + " left";
  const std::string rows =
      report.rows_sent > 0 ? " and " + counted(report.rows_sent, "row") : std::string();
  print_line("{}{} sent{}",
             counted(static_cast<int64_t>(report.sent), "file"),
             rows,
             left.empty() ? ", nothing is left" : left);
  return left.empty() && report.errors.empty() ? ExitCode::kDone : ExitCode::kNetwork;
}

void run_ema(const EmaCommand& command) {
  if (!command.out_path.ends_with(".pth") && !command.out_path.ends_with(".pt")) {
    throw ConfigError(
        "{}: the last argument is the file to write; expected a name that ends in .pth",
        command.out_path);
  }
  const std::vector<std::string> files = files_of(command.checkpoints);
  check_averages_out(command.out_path, files);
  check_out_file("OUT", command.out_path, command.overwrite);
  const PostHocResult result =
      combine_post_hoc(files, {.sigma = command.sigma, .step = command.step});
  if (result.missed > kMuchMissed) {
    log_warning(
        "ema",
        "{:.0f} % of the average of sigma {} at step {} cannot be made from these files: save more "
        "often, or ask for a sigma nearer to /train/post_hoc_ema/sigmas",
        100 * result.missed,
        command.sigma,
        result.step);
  }
  write_pth(command.out_path, result.model_file);
  print_line("{}: sigma {} at step {}, of {} averages in {} files; {:.2g} % missed",
             command.out_path,
             command.sigma,
             result.step,
             result.snapshots,
             files.size(),
             100 * result.missed);
}

void run_report(const ReportCommand& command) {
  if (is_folder(command.out_path)) {
    throw ConfigError("--out {}: is a folder; expected the name of a file, e.g. {}",
                      command.out_path,
                      (fs::path(command.out_path) / "report.html").string());
  }
  if (const std::string ending = fs::path(command.out_path).extension().string();
      ending != ".html" && ending != ".htm") {
    throw ConfigError(
        "--out {}: expected a name that ends in .html, so that no file of a run is replaced by "
        "mistake",
        command.out_path);
  }
  check_out_folder("--out", command.out_path);
  check_replaces_report(command.out_path);
  const std::string page =
      make_report(command.data_path,
                  {.most_picture_steps = command.most_picture_steps, .compare = command.compare});
  write_file_atomically(command.out_path, page);
  print_line("{}: {}", command.out_path, human_bytes(page.size()));
}

ModelSource Evaluation::source(const SharedTrainConfig& config) const {
  return {.checkpoint_path = command.checkpoint_path,
          .config_path = command.config_path,
          .overrides = command.overrides,
          .use_ema = command.use_ema,
          .version_option = "/written_by",
          .allow_changed_config = config.allow_changed_config};
}

ExitCode run_evaluate(const EvaluateCommand& command) {
  const RunKind& kind = run_kind_of(config_kind(command.config_path));
  if (!command.timesteps.empty() && !kind.sample) {
    throw ConfigError("--timesteps: a {} draws nothing\n  Leave it out.", kind.key);
  }
  log_to_stderr();
  const LoadedRun loaded =
      kind.load(command.config_path, with_checkpoints({.overrides = command.overrides}));
  if (command.processes > 1) return launch(command.processes);
  const SharedTrainConfig& train = *loaded.train;
  const auto evaluate = [&](ProcessGroup& group) {
    check_same_config(group, loaded.full_json, train.device);
    {
      const ProcessGroup::BusyScope busy(group, "evaluating");
      const at::Device device =
          group.is_alone() ? prepare_device(train, group.world()) : group.device();
      const nlohmann::ordered_json found = loaded.figures({command, device, group});
      if (group.is_main()) print_line("{}", found.dump(2));
    }
    group.barrier("the end of the evaluation");
    return ExitCode::kDone;
  };
  return as_one_of_several(meeting_of(train, loaded.work, loaded.warnings), evaluate);
}

}  // namespace dalle2
