// SPDX-License-Identifier: MIT
#include "checkpoint/fsck.h"

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/script_file.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/disk_io.h"
#include "io/files/walk_folder.h"

#include <ATen/Functions.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace dalle2 {
namespace {

const char* name_of(FileState state) {
  constexpr std::array kNames = {"intact", "damaged", "unfinished"};
  return kNames[static_cast<size_t>(state)];
}

const char* name_of(Resume resume) {
  constexpr std::array kNames = {"exact", "by samples", "no"};
  return kNames[static_cast<size_t>(resume)];
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + one_line(word);
  return text;
}

std::string position_text(const CheckedFile& file) {
  std::string text;
  if (file.epoch) text += fmt::format(" of epoch {}", *file.epoch);
  if (file.samples_seen) text += fmt::format(", {} samples seen", with_commas(*file.samples_seen));
  std::string steps;
  for (const int64_t count : file.steps) {
    steps += (steps.empty() ? "" : " and ") + with_commas(count);
  }
  if (!steps.empty()) text += fmt::format(", {} steps", steps);
  return text;
}

std::string resume_text(const CheckedFile& file) {
  if (file.resume == Resume::kExact) return "a run can resume from it";
  if (file.resume == Resume::kBySamples) {
    return fmt::format("a run can resume from it, in its epoch by the count of samples (no {})",
                       join(file.missing));
  }
  if (file.kind == kProgramKind) return "no checkpoint: no run can resume from it";
  return file.kind == "checkpoint" || file.kind.empty()
             ? fmt::format("no run can resume from it: it lacks {}", join(file.missing))
             : "weights without a run's state: no run can resume from it";
}

std::string file_text(const CheckedFile& file) {
  std::string text =
      fmt::format("{}: {}, {}", one_line(file.path), name_of(file.state), human_bytes(file.bytes));
  if (file.state == FileState::kUnfinished) {
    return text + ": a save in progress, or an interrupted one; the run's next start removes it\n";
  }
  if (file.kind == kProgramKind) {
    text += "; a " + file.kind;
  } else if (!file.kind.empty()) {
    text += fmt::format("; {}{}, {} tensors{}",
                        one_line(file.kind),
                        position_text(file),
                        with_commas(static_cast<int64_t>(file.tensor_count)),
                        file.has_checksums ? "" : ", no checksums in this format");
  }
  text += '\n';
  for (const std::string& fault : file.faults) text += fmt::format("  {}\n", printable(fault));
  if (file.state == FileState::kIntact) text += fmt::format("  {}\n", resume_text(file));
  return text;
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

namespace fs = std::filesystem;

constexpr size_t kMostFaults = 20;

std::string type_and_shape(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(tensor.scalar_type()), shape_text(tensor.sizes()));
}

/// Looks at a checkpoint that could be read: what is it, and does it fit together?
class StateCheck {
 public:
  StateCheck(const Value& root, CheckedFile& out) : root_(root), out_(out) {}

  void run() {
    visit_tensors(root_.value(),
                  [&](const std::string&, const at::Tensor&) { ++out_.tensor_count; });
    if (!root_.value().is_dict() || !root_.has("model")) {
      out_.kind = "tensors";
      out_.missing = {"model", "steps"};
      return;
    }
    const bool trains = root_.has("steps") || root_.has("step") || root_.has("optimizer");
    out_.kind = trains ? "checkpoint" : "model";
    attempt([&] { weights_ = to_map(root_.at("model").as_state_dict()); });
    check_finite();
    find_layout();
    attempt([&] { read_position(is_one_part_ && root_.has("step") ? "step" : "steps"); });
    check_optimizers();
    if (root_.has("ema")) attempt([&] { check_averages(); });
    decide_resume();
  }

 private:
  using Tensors = std::map<std::string, at::Tensor>;

  /// The entries of the file show how its kind of run names its parts.
  void find_layout() {
    is_one_part_ = root_.has("optimizer") || (root_.has("step") && !root_.has("steps"));
    is_numbered_ = !is_one_part_ && !has_weights("enc_dec.");
    if (is_one_part_) {
      parts_[""] = "";
    } else if (!is_numbered_) {
      parts_ = {{"0.", prefix_of_part(root_, "0")}, {"1.", prefix_of_part(root_, "1")}};
    }
    for (const auto& [name, weight] : weights_) {
      const size_t dot = name.starts_with("unets.") ? name.find('.', 6) : std::string::npos;
      if (is_numbered_ && dot != std::string::npos) {
        parts_[name.substr(6, dot - 5)] = name.substr(0, dot + 1);
      }
    }
  }

  bool has_weights(const std::string& prefix) const {
    const auto first = weights_.lower_bound(prefix);
    return first != weights_.end() && first->first.starts_with(prefix);
  }

  /// The state of the optimizers, and of their schedules where there are some.
  void check_optimizers() {
    const auto check = [&](const std::string& key) { attempt([&] { check_optimizer(key); }); };
    if (is_one_part_) {
      check("optimizer");
      need("scheduler");
    } else if (!is_numbered_) {
      check("optim");
      if (has_weights("discr.")) check("discr_optim");
    }
    for (size_t part = 0; is_numbered_ && part < out_.steps.size(); ++part) {
      check("optim" + std::to_string(part));
      need("sched" + std::to_string(part));
    }
  }

  static Tensors to_map(const StateDict& tensors) { return {tensors.begin(), tensors.end()}; }

  void fault(std::string text) {
    out_.state = FileState::kDamaged;
    out_.faults.push_back(std::move(text));
  }

  /// What a reader of the entry would refuse is a fault of the file.
  template <class Check>
  void attempt(Check check) {
    try {
      check();
    } catch (const DataError& error) {
      fault(error.what());
    }
  }

  /// No run resumes from weights that are not numbers.
  void check_finite() {
    for (const auto& [name, weight] : weights_) {
      if (at::isFloatingType(weight.scalar_type()) && !at::isfinite(weight).all().item<bool>()) {
        fault(fmt::format("model/{}: NaN or infinity", name));
      }
    }
  }

  bool need(const std::string& key) {
    if (root_.has(key)) return true;
    out_.missing.push_back(key);
    return false;
  }

  void read_position(const std::string& key) {
    if (root_.has("epoch")) out_.epoch = root_.at("epoch").as_int();
    if (root_.has("samples_seen")) out_.samples_seen = root_.at("samples_seen").as_int();
    if (!need(key)) return;
    const at::Tensor steps = root_.at(key).as_tensor();
    if (at::isFloatingType(steps.scalar_type()) || steps.numel() == 0) {
      throw DataError("{}: expected whole numbers, one for each part, got {}",
                      root_.at(key).where(),
                      type_and_shape(steps));
    }
    const at::Tensor numbers = steps.to(at::kLong).flatten();
    for (int64_t i = 0; i < numbers.numel(); ++i) out_.steps.push_back(numbers[i].item<int64_t>());
  }

  /// Both moments of a parameter have its shape, and no state is without a parameter.
  void check_optimizer(const std::string& key) {
    if (!need(key) || root_.at(key).is_none()) return;
    int64_t parameters = 0;
    const Cursor groups = root_.at(key).at("param_groups");
    for (size_t g = 0; g < groups.size(); ++g) {
      parameters += static_cast<int64_t>(groups.at(g).at("params").size());
    }
    const Cursor states = root_.at(key).at("state");
    for (const auto& [index, value] : states.as_dict().items) {
      const int64_t number = index.as_int(states.where());
      const std::string place = fmt::format("{}/{}", states.where(), number);
      const Cursor entry(value, place);
      if (number < 0 || number >= parameters) {
        fault(fmt::format(
            "{}: expected one of {} parameters, got {}", states.where(), parameters, number));
      }
      const at::Tensor first = entry.at("exp_avg").as_tensor();
      const at::Tensor second = entry.at("exp_avg_sq").as_tensor();
      if (first.sizes() != second.sizes() || first.scalar_type() != second.scalar_type()) {
        fault(fmt::format("{}: expected two moments of one shape, got {} and {}",
                          place,
                          type_and_shape(first),
                          type_and_shape(second)));
      }
    }
  }

  /// Each averaged tensor has the shape of the weight that it is the average of.
  void check_averages() {
    const Cursor ema = root_.at("ema");
    const Tensors averages = to_map(ema.as_state_dict());
    check_all_averaged(averages);
    for (const auto& [name, tensor] : averages) {
      for (const std::string& kind : {kEmaModel, kOnlineModel}) {
        const size_t at = is_one_part_ ? 0 : name.find('.') + 1;
        if (name.compare(at, kind.size(), kind) != 0) continue;
        const auto part = parts_.find(name.substr(0, at));
        const auto weight = part == parts_.end()
                                ? weights_.end()
                                : weights_.find(part->second + name.substr(at + kind.size()));
        if (weight == weights_.end()) {
          fault(fmt::format("{}/{}: the model has no such weight", ema.where(), name));
        } else if (weight->second.sizes() != tensor.sizes()) {
          fault(fmt::format("{}/{}: expected {} as in the model, got {}",
                            ema.where(),
                            name,
                            type_and_shape(weight->second),
                            type_and_shape(tensor)));
        }
      }
    }
  }

  /// A part with an average of some of its weights has one of every weight, except frozen ones
  /// beside adapters. A file's only part has been trained, so nothing of it may be missing.
  void check_all_averaged(const Tensors& averages) {
    if (root_.has("lora") || averages.empty()) return;
    for (const char* counter : {"initted", "step"}) {
      if (is_one_part_ && !averages.contains(counter)) {
        fault(fmt::format("ema/{}: is not there", counter));
      }
    }
    for (const auto& [name, weight] : weights_) {
      const auto part = part_of(name);
      if (part == parts_.end()) continue;
      const std::string prefix = part->first + kEmaModel;
      const auto first = averages.lower_bound(prefix);
      const bool has_some = first != averages.end() && first->first.starts_with(prefix);
      const std::string average = prefix + name.substr(part->second.size());
      if ((has_some || is_one_part_) && !averages.contains(average)) {
        fault(fmt::format("ema/{}: the average of model/{} is missing", average, name));
      }
    }
  }

  /// The part that a weight belongs to: that of the longest prefix. None: it has no average.
  std::map<std::string, std::string>::const_iterator part_of(const std::string& name) const {
    auto found = parts_.end();
    for (auto part = parts_.begin(); part != parts_.end(); ++part) {
      const bool is_longer = found == parts_.end() || part->second.size() > found->second.size();
      if (name.starts_with(part->second) && is_longer) found = part;
    }
    return found;
  }

  /// A number gives the place in the epoch's order, or, of what reads shards, that of each loader.
  void decide_resume() {
    if (!out_.missing.empty() || out_.state == FileState::kDamaged) return;
    const auto own = root_.find("dalle2_train");
    const auto has_lanes = [](const Cursor& of) {
      return of.has("loader_position") && of.at("loader_position").has("lanes");
    };
    const bool exact = own && (has_lanes(*own) || (!is_numbered_ && own->has("row")));
    out_.resume = exact ? Resume::kExact : Resume::kBySamples;
    if (exact) return;
    out_.missing.push_back(is_numbered_ ? "dalle2_train/loader_position" : "dalle2_train/row");
  }

  Cursor root_;
  CheckedFile& out_;
  Tensors weights_;
  std::map<std::string, std::string> parts_;  ///< what names begin with, in "ema" and in "model"
  bool is_one_part_ = false;  ///< neither the averages nor the optimizer have a number
  bool is_numbered_ = false;  ///< optim0, optim1, ... of unets.0, unets.1, ...
};

/// "a.pth: text" -> "text"
std::string without_path(const std::string& text, const std::string& path) {
  return text.starts_with(path + ": ") ? text.substr(path.size() + 2) : text;
}

/// Where a file that cannot be read is damaged: each entry if only contents are, else the first
/// fault of its structure.
std::vector<std::string> faults_of(const std::string& path, const DataError& first) {
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
  } catch (const DataError&) {
    faults.clear();  // the structure itself: `first` says it
  }
  if (faults.empty()) faults.push_back(without_path(first.what(), path));
  return faults;
}

void limit(std::vector<std::string>& faults) {
  if (faults.size() <= kMostFaults) return;
  const size_t more = faults.size() - kMostFaults;
  faults.resize(kMostFaults);
  faults.push_back(fmt::format("and {} more", more));
}

bool is_checked(const fs::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".pth" || ending == ".pt" || ending == ".safetensors" || ending == ".part";
}

/// The first bytes of a zip archive: every entry of it has a CRC-32.
bool is_archive(const std::string& path) {
  char start[4] = {};
  try {
    return OpenFile(path).read(start, sizeof start) == sizeof start &&
           std::string_view(start, sizeof start) == "PK\x03\x04";
  } catch (const DataError&) {
    return false;  // whoever reads all of it says why
  }
}

/// Networks for metrics and OpenAI's CLIPs are programs.
bool is_intact_program(const std::string& path) {
  try {
    return check_script_file(MappedFile(path));
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

CheckedFile check_file(const std::string& path) {
  CheckedFile file;
  file.path = path;
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  file.bytes = error ? 0 : static_cast<uint64_t>(bytes);
  if (fs::path(path).extension() == ".part") {
    file.state = FileState::kUnfinished;
    return file;
  }
  file.has_checksums = is_archive(path);
  try {
    const Value root = read_checkpoint(path);
    StateCheck(root, file).run();
  } catch (const DataError& fault) {
    if (is_intact_program(path)) {
      file.kind = kProgramKind;
    } else {
      file.state = FileState::kDamaged;
      file.faults = faults_of(path, fault);
    }
  }
  limit(file.faults);
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
    if (entry.is_regular_file(ignored) && is_checked(entry.path())) {
      names.push_back(entry.path().string());
    }
  });
  if (end.error) throw DataError("{}: cannot be read: {}", path, end.error.message());
  if (names.empty()) {
    throw DataError("{}: expected checkpoints (.pth, .pt, .safetensors) in it, found none", path);
  }
  std::sort(names.begin(), names.end());
  std::vector<CheckedFile> files;
  files.reserve(names.size());
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
                            counts[static_cast<size_t>(FileState::kIntact)],
                            resumable,
                            counts[static_cast<size_t>(FileState::kDamaged)],
                            counts[static_cast<size_t>(FileState::kUnfinished)]);
}

std::string fsck_json(const std::string& path, const std::vector<CheckedFile>& files) {
  Json list = Json::array();
  for (const CheckedFile& file : files) {
    list.push_back({{"file", file.path},
                    {"state", name_of(file.state)},
                    {"bytes", file.bytes},
                    {"kind", file.kind.empty() ? Json() : Json(file.kind)},
                    {"checksums", file.has_checksums},
                    {"tensors", file.tensor_count},
                    {"faults", file.faults},
                    {"resume", name_of(file.resume)},
                    {"missing", file.missing},
                    {"epoch", or_null(file.epoch)},
                    {"samples_seen", or_null(file.samples_seen)},
                    {"steps", file.steps}});
  }
  const Json json = {{"path", path}, {"intact", all_intact(files)}, {"files", std::move(list)}};
  return escaped_json(json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace dalle2
