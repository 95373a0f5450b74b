// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_record.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "net/login_files.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// The one list of the texts in run.json.
template <class Record, class Visitor>
void visit_texts(Record& record, Visitor&& visit) {
  visit("id", record.id);
  visit("token", record.token);
  visit("began", record.began);
  visit("job", record.job);
  visit("home", record.home);
  visit("began_from", record.began_from);
  visit("wandb", record.wandb);
  visit("finished", record.finished);
}

[[noreturn]] void throw_unreadable(const std::string& path, const std::string& why) {
  throw DataError(
      "{}: {}; expected what a run writes there\n  Put a copy of the file back, choose another "
      "/tracker/data_path, or remove it: with /tracker/log/auto_resume the folder then becomes a "
      "run again by its checkpoint.pth.",
      path,
      why);
}

}  // namespace

std::string make_run_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/uuid") >> id;
  if (id.size() != 36) throw ResourceError("the system gives no random UUID for the id of the run");
  return id;
}

std::optional<RunRecord> read_run_record(const std::string& folder) {
  const std::string path = (fs::path(folder) / kRecordFile).string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const Json json = parse_untrusted_object(read_file(path));
  if (json.is_null()) throw_unreadable(path, "is no JSON object");
  RunRecord record;
  visit_texts(record, [&](const char* key, std::string& text) {
    const auto entry = json.find(key);
    if (entry == json.end() || !entry->is_string())
      throw_unreadable(path, fmt::format("has no text \"{}\"", key));
    text = entry->get<std::string>();
  });
  if (record.id.empty() || record.token.empty()) throw_unreadable(path, "has an empty id or token");
  try {
    json.at("has_saved").get_to(record.has_saved);
    json.at("was_empty").get_to(record.was_empty);
    json.at("copies").get_to(record.copies);
    record.process = json.value("process", record.process);  // earlier versions have none
  } catch (const Json::exception& error) {
    throw_unreadable(path, json_error_text(error));
  }
  return record;
}

void write_run_record(const std::string& folder, const RunRecord& record) {
  Json json;
  visit_texts(record, [&](const char* key, const std::string& text) { json[key] = text; });
  json["has_saved"] = record.has_saved;
  json["was_empty"] = record.was_empty;
  json["copies"] = record.copies;
  json["process"] = record.process;
  write_file_atomically((fs::path(folder) / kRecordFile).string(),
                        json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::string this_job() {
  if (const std::string id = environment("SLURM_JOB_ID"); !id.empty()) return "slurm " + id;
  const std::string id = environment("TORCHELASTIC_RUN_ID");
  if (id.empty()) return "";
  // "none" unless the user gives one; the agent that restarts the processes stays.
  return id == "none" ? fmt::format("torchrun {} {}", host_name(), ::getppid()) : "torchrun " + id;
}

bool is_restarted_job() {
  return std::atoi(environment("SLURM_RESTART_COUNT").c_str()) > 0 ||
         std::atoi(environment("TORCHELASTIC_RESTART_COUNT").c_str()) > 0;
}

}  // namespace dalle2
