// SPDX-License-Identifier: MIT
#include "checkpoint/inspect.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/convert.h"
#include "checkpoint/file_version.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/folder_names.h"
#include "io/files/walk_folder.h"

namespace dalle2 {
namespace {

constexpr size_t kMaxValueWidth = 60;
constexpr size_t kMaxNameWidth = 72;

bool is_scalar(const Value& value) {
  return !value.is_tensor() && !value.is_list() && !value.is_tuple() && !value.is_dict();
}

void add_entries(const std::string& name, const Value& value, Inspection& found) {
  const auto below = [&](const std::string& child) {
    return name.empty() ? child : name + "/" + child;
  };
  const bool is_sequence = value.is_list() || value.is_tuple();
  if (value.is_tensor()) {
    const at::Tensor& tensor = value.as_tensor();
    found.entries.push_back({name, value});
    ++found.tensor_count;
    found.element_count += tensor.numel();
    found.tensor_bytes += tensor.nbytes();
  } else if (value.is_dict() && !value.as_dict().items.empty()) {
    for (const auto& [key, child] : value.as_dict().items)
      add_entries(below(describe(key)), child, found);
  } else if (is_sequence && !std::ranges::all_of(value.as_sequence(), is_scalar)) {
    size_t index = 0;
    for (const Value& child : value.as_sequence())
      add_entries(below(std::to_string(index++)), child, found);
  } else {
    found.entries.push_back({name, value});
  }
}

/// A tensor's element type ("float32"), else Python's name of the type.
std::string type_of(const Value& value) {
  return value.is_tensor() ? python_dtype(value.as_tensor().scalar_type()) : value.type_name();
}

/// A value as one line of a table, shortened if it is so long that it would hide the rest.
std::string in_table(const std::string& value) {
  const std::string text = one_line(value);
  if (text.size() <= kMaxValueWidth) return text;
  size_t end = kMaxValueWidth - 3;
  while (end > 0 && !begins_character(text[end])) --end;
  return text.substr(0, end) + "...";
}

/// Which older dalle2-pytorch wrote the weights; "" for the last one, and for other weights.
std::string layout_of_file(const Cursor& root) {
  if (!root.value().is_dict()) return "";
  const Value& model = root.has("model") ? root.at("model").value() : root.value();
  StateDict weights;
  visit_tensors(model,
                [&](const auto& name, const auto& tensor) { weights.emplace_back(name, tensor); });
  const std::string kind = !strip_prefix(weights, "unets.").empty() ? "decoder"
                           : !strip_prefix(weights, "net.").empty() ? "prior"
                                                                    : "";
  if (kind.empty()) return "";
  try {
    const VersionRange fits = versions_of_tensors(weights, kind, root.where());
    const std::optional<Version> said = said_version(root);
    if (said.value_or(fits.to) == kLastVersion) return "";
    if (!said) return fmt::format("{} of dalle2-pytorch {}, by its tensors", kind, to_text(fits));
    return fmt::format("{} of dalle2-pytorch {}, networks of {}{}",
                       kind,
                       to_text(*said),
                       to_text(same_network(kind, *said)),
                       fits.contains(*said) ? "" : ", but its tensors are of " + to_text(fits));
  } catch (const Error& error) {
    return error.what();
  }
}

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
    return {root.has("steps") ? "steps" : "step", "optimizer"};
  std::vector<std::string> keys = {"steps"};
  if (root.has("optim") || root.has("discr_optim")) return {"steps", "optim"};
  for (size_t part = 0; part < parts; ++part) keys.push_back(fmt::format("optim{}", part));
  return keys;
}

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
  first.erase(std::min(first.find('\n'), first.size()));  // what to do
  std::vector<std::string> faults;
  try {
    faults = damaged_members(path);
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

Inspection inspect_file(const std::string& path) {
  Inspection inspection;
  inspection.path = path;
  const Value root = read_checkpoint(path);
  add_entries("", root, inspection);
  inspection.layout = layout_of_file(Cursor(root, path));
  return inspection;
}

std::string inspection_text(const Inspection& inspection) {
  size_t name_width = 4, type_width = 4;
  for (const InspectEntry& entry : inspection.entries) {
    name_width = std::max(name_width, std::min(one_line(entry.name).size(), kMaxNameWidth));
    type_width = std::max(type_width, std::min(type_of(entry.value).size(), kMaxNameWidth));
  }
  std::string text;
  for (const InspectEntry& entry : inspection.entries) {
    const std::string what = entry.value.is_tensor() ? shape_text(entry.value.as_tensor().sizes())
                                                     : in_table(describe(entry.value));
    text += fmt::format("{:<{}}  {:<{}}  {}\n",
                        one_line(entry.name),
                        name_width,
                        one_line(type_of(entry.value)),
                        type_width,
                        what);
  }
  if (!inspection.layout.empty()) text += inspection.layout + "\n";
  text += fmt::format("{}: {} entries, {} tensors of {} elements, {}\n",
                      one_line(inspection.path),
                      with_commas(static_cast<int64_t>(inspection.entries.size())),
                      with_commas(static_cast<int64_t>(inspection.tensor_count)),
                      with_commas(inspection.element_count),
                      human_bytes(inspection.tensor_bytes));
  return text;
}

std::string inspection_json(const Inspection& inspection) {
  Json entries = Json::array();
  for (const InspectEntry& entry : inspection.entries) {
    Json json = {{"name", entry.name}};
    if (entry.value.is_tensor()) {
      json["dtype"] = type_of(entry.value);
      json["shape"] = entry.value.as_tensor().sizes().vec();
    } else {
      json["type"] = type_of(entry.value);
      json["value"] = Json::parse(json_of_value(entry.value));
    }
    entries.push_back(std::move(json));
  }
  const Json json = {{"file", inspection.path},
                     {"layout", inspection.layout},
                     {"tensors", inspection.tensor_count},
                     {"elements", inspection.element_count},
                     {"bytes", inspection.tensor_bytes},
                     {"entries", std::move(entries)}};
  return escaped_json(json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

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
  if (!path_exists(path)) {
    throw DataError("{}: no such file or folder: expected a checkpoint or the folder of a run",
                    path);
  }
  if (!is_folder(path)) return {check_file(path)};
  std::vector<std::string> names;
  const WalkEnd end = walk_folder(path, Below::kReadable, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    const std::string ending = entry.path().extension().string();
    const bool is_checked =
        ending == ".pth" || ending == ".pt" || ending == ".safetensors" || ending == ".part";
    if (is_checked && entry.is_regular_file(ignored)) names.push_back(entry.path().string());
  });
  if (end.error) throw DataError("{}: cannot be read: {}", path, end.error.message());
  if (names.empty())
    throw DataError("{}: expected checkpoints (.pth, .pt, .safetensors) in it, found none", path);
  std::ranges::sort(names);
  std::vector<CheckedFile> files;
  for (const std::string& name : names) files.push_back(check_file(name));
  return files;
}

bool all_intact(const std::vector<CheckedFile>& files) {
  return std::ranges::none_of(
      files, [](const CheckedFile& file) { return file.state == FileState::kDamaged; });
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
