// SPDX-License-Identifier: MIT
#include "checkpoint/fsck.h"

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/walk_folder.h"

#include <ATen/Functions.h>

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr std::array kStateNames = {"intact", "damaged", "unfinished"};
constexpr std::array kResumeNames = {"exact", "by samples", "no"};

template <class Enum, size_t kCount>
const char* name_of(Enum value, const std::array<const char*, kCount>& names) {
  return names[static_cast<size_t>(value)];
}

/// What a run needs besides the model. The entries of the file show how its kind names them.
std::vector<std::string> needed(const Cursor& root, size_t parts) {
  if (root.has("optimizer") || (root.has("step") && !root.has("steps")))
    return {root.has("steps") ? "steps" : "step", "optimizer", "scheduler"};
  std::vector<std::string> keys = {"steps"};
  if (root.has("optim") || root.has("discr_optim")) return {"steps", "optim"};
  for (size_t part = 0; part < parts; ++part) {
    keys.push_back(fmt::format("optim{}", part));
    keys.push_back(fmt::format("sched{}", part));
  }
  return keys;
}

/// @throws DataError for an entry of another type
void look_at_run(const Cursor& root, CheckedFile& file) {
  if (root.has("epoch")) file.epoch = root.at("epoch").as_int();
  if (root.has("samples_seen")) file.samples_seen = root.at("samples_seen").as_int();
  if (const auto steps = root.find(root.has("steps") ? "steps" : "step")) {
    const at::Tensor numbers = steps->as_tensor().to(at::kLong).flatten().contiguous();
    const auto* first = numbers.const_data_ptr<int64_t>();
    file.steps.assign(first, first + numbers.numel());
  }
  file.missing = needed(root, file.steps.size());
  std::erase_if(file.missing, [&](const std::string& key) { return root.has(key); });
  if (!file.missing.empty() || !file.faults.empty()) return;
  const auto own = root.find("dalle2_train");
  const bool is_exact = own && own->has("loader_position");
  file.resume = is_exact ? Resume::kExact : Resume::kBySamples;
}

void look_at(const Value& value, CheckedFile& file) {
  visit_tensors(value, [&](const std::string& name, const at::Tensor& tensor) {
    ++file.tensor_count;
    const bool must_be_finite = (name.starts_with("model/") || name.starts_with("ema/")) &&
                                at::isFloatingType(tensor.scalar_type());
    if (must_be_finite && !at::isfinite(tensor).all().item<bool>())
      file.faults.push_back(name + ": NaN or infinity");
  });
  const Cursor root(value);
  const bool has_model = value.is_dict() && root.has("model");
  const bool trains = has_model && (root.has("steps") || root.has("step") || root.has("optimizer"));
  file.kind = trains ? "checkpoint" : has_model ? "model" : "tensors";
  if (!trains) return;
  try {
    look_at_run(root, file);
  } catch (const DataError& error) {
    file.faults.emplace_back(error.what());
  }
}

/// Where a file that cannot be read is damaged: each entry if only contents are, else the first
/// fault of its structure.
std::vector<std::string> faults_of(const std::string& path, std::string first) {
  std::vector<std::string> faults;
  try {
    for (const DamagedMember& member : damaged_members(path)) {
      faults.push_back(
          fmt::format("entry '{}'{}, bytes {} to {}: expected CRC-32 {:08x}, got {:08x}",
                      member.name,
                      member.tensor.empty() ? "" : " (" + member.tensor + ")",
                      member.offset,
                      member.offset + member.size,
                      member.expected_crc,
                      member.got_crc));
    }
  } catch (const DataError&) {  // the structure itself: `first` says it
  }
  if (!faults.empty()) return faults;
  return {first.starts_with(path + ": ") ? first.substr(path.size() + 2) : first};
}

bool is_intact_program(const std::string& path) {
  try {
    return check_script_file(MappedFile(path));
  } catch (const DataError&) {
    return false;
  }
}

std::string resume_text(const CheckedFile& file) {
  if (file.resume == Resume::kExact) return "a run can resume from it";
  if (file.resume == Resume::kBySamples)
    return "a run can resume from it, in its epoch by the count of samples";
  if (file.kind != "checkpoint") return "no checkpoint of a run: none can resume from it";
  return fmt::format("no run can resume from it: it lacks {}", fmt::join(file.missing, ", "));
}

std::string file_text(const CheckedFile& file) {
  std::string text = fmt::format(
      "{}: {}, {}", one_line(file.path), name_of(file.state, kStateNames), human_bytes(file.bytes));
  if (file.state == FileState::kUnfinished)
    return text + ": a save in progress, or an interrupted one; the run's next start removes it\n";
  if (!file.kind.empty()) text += "; " + file.kind;
  if (file.epoch) text += fmt::format(" of epoch {}", *file.epoch);
  if (file.samples_seen) text += fmt::format(", {} samples seen", with_commas(*file.samples_seen));
  std::string steps;
  for (const int64_t count : file.steps)
    steps += (steps.empty() ? ", " : " and ") + with_commas(count);
  if (!steps.empty()) text += steps + " steps";
  if (file.tensor_count > 0)
    text += ", " + counted(static_cast<int64_t>(file.tensor_count), "tensor");
  text += '\n';
  for (const std::string& fault : file.faults) text += fmt::format("  {}\n", printable(fault));
  if (file.state == FileState::kIntact) text += "  " + resume_text(file) + "\n";
  return text;
}

}  // namespace

CheckedFile check_file(const std::string& path) {
  CheckedFile file;
  file.path = path;
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  file.bytes = error ? 0 : static_cast<uint64_t>(bytes);
  if (path.ends_with(".part")) {
    file.state = FileState::kUnfinished;
    return file;
  }
  try {
    look_at(read_checkpoint(path), file);
  } catch (const DataError& fault) {
    if (is_intact_program(path)) {
      file.kind = "TorchScript program";
    } else {
      file.faults = faults_of(path, fault.what());
    }
  }
  if (!file.faults.empty()) file.state = FileState::kDamaged;
  constexpr size_t kMostFaults = 20;
  if (file.faults.size() > kMostFaults) {
    const size_t more = file.faults.size() - kMostFaults;
    file.faults.resize(kMostFaults);
    file.faults.push_back(fmt::format("and {} more", more));
  }
  return file;
}

std::vector<CheckedFile> check_path(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw DataError("{}: no such file or folder: expected a checkpoint or the folder of a run",
                    path);
  }
  if (!fs::is_directory(path, error)) return {check_file(path)};
  std::vector<std::string> names;
  const WalkEnd end = walk_folder(path, Below::kReadable, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    const std::string ending = entry.path().extension().string();
    const bool is_checked =
        ending == ".pth" || ending == ".pt" || ending == ".safetensors" || ending == ".part";
    if (is_checked && entry.is_regular_file(ignored)) names.push_back(entry.path().string());
  });
  if (end.error) throw DataError("{}: cannot be read: {}", path, end.error.message());
  if (names.empty()) {
    throw DataError("{}: expected checkpoints (.pth, .pt, .safetensors) in it, found none", path);
  }
  std::sort(names.begin(), names.end());
  std::vector<CheckedFile> files;
  for (const std::string& name : names) files.push_back(check_file(name));
  return files;
}

bool all_intact(const std::vector<CheckedFile>& files) {
  return std::none_of(files.begin(), files.end(), [](const CheckedFile& file) {
    return file.state == FileState::kDamaged;
  });
}

std::string fsck_text(const std::string& path, const std::vector<CheckedFile>& files) {
  std::string text;
  std::array<int64_t, 3> counts = {};
  int64_t resumable = 0;
  for (const CheckedFile& file : files) {
    text += file_text(file);
    ++counts[static_cast<size_t>(file.state)];
    resumable += file.resume != Resume::kNo ? 1 : 0;
  }
  return text + fmt::format("{}: {} intact ({} to resume from), {} damaged, {} unfinished\n",
                            one_line(path),
                            counts[0],
                            resumable,
                            counts[1],
                            counts[2]);
}

std::string fsck_json(const std::string& path, const std::vector<CheckedFile>& files) {
  Json list = Json::array();
  for (const CheckedFile& file : files) {
    list.push_back({{"file", file.path},
                    {"state", name_of(file.state, kStateNames)},
                    {"bytes", file.bytes},
                    {"kind", file.kind.empty() ? Json() : Json(file.kind)},
                    {"tensors", file.tensor_count},
                    {"faults", file.faults},
                    {"resume", name_of(file.resume, kResumeNames)},
                    {"missing", file.missing},
                    {"epoch", file.epoch ? Json(*file.epoch) : Json()},
                    {"samples_seen", file.samples_seen ? Json(*file.samples_seen) : Json()},
                    {"steps", file.steps}});
  }
  const Json json = {{"path", path}, {"intact", all_intact(files)}, {"files", std::move(list)}};
  return escaped_json(json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace dalle2
