// SPDX-License-Identifier: MIT
#include "checkpoint/clip/raw_clip.h"

#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/archive/script_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/atomic_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Lists in which state dicts lie, in the order in which they are looked for.
constexpr const char* kStateDictKeys[] = {"state_dict", "model"};
constexpr const char* kParallelPrefix = "module.";

/// Tensors of the modules of a program, by their paths. A module that stands in several places counts
/// in the first: the paths through a shared graph are without number.
class ModuleTensors {
 public:
  /// Recurses as deep as the modules are nested, which read_script_attributes() limits.
  void collect(const Value& module, const std::string& prefix = "") {
    const auto* stub = std::get_if<std::shared_ptr<StubObject>>(&module.data);
    if (stub == nullptr || !(*stub)->state.is_dict() || !seen_.insert(stub->get()).second) return;
    for (const auto& [key, value] : (*stub)->state.as_dict().items) {
      if (!key.is_string()) continue;
      const std::string name = prefix + key.as_string();
      if (value.is_tensor()) tensors.emplace_back(name, value.as_tensor());
      collect(value, name + ".");
    }
  }

  StateDict tensors;

 private:
  std::unordered_set<const StubObject*> seen_;
};

RawClip read_pickled(const std::string& path) {
  const Value root = read_pth(path);
  const Cursor cursor(root, path);
  RawClip raw;
  for (const char* key : {kClipConfigKey, kClipMergesKey}) {
    if (const auto text = cursor.value().is_dict() ? cursor.find(key) : std::nullopt)
      raw.texts[key] = text->as_string();
  }
  for (const char* key : kStateDictKeys) {
    if (!cursor.value().is_dict() || !cursor.has(key)) continue;
    raw.tensors = cursor.at(key).as_state_dict();
    return raw;
  }
  raw.tensors = cursor.as_state_dict();
  return raw;
}

RawClip read_tensors(const std::string& path) {
  bool is_program = false, is_torch = path.ends_with(".pth") || path.ends_with(".bin");
  {
    const MappedFile file(path);
    is_program = check_script_file(file);
    is_torch = is_torch || looks_like_zip(file) || path.ends_with(".pt");
  }
  if (is_program) {
    RawClip raw;
    raw.is_program = true;
    ModuleTensors modules;
    modules.collect(read_script_attributes(path));
    raw.tensors = std::move(modules.tensors);
    return raw;
  }
  if (is_torch) return read_pickled(path);
  SafetensorsFile file = read_safetensors(path);
  return {.tensors = std::move(file.tensors), .texts = std::move(file.metadata)};
}

}  // namespace

std::string clip_identity_in(const Cursor& root) {
  const auto identity = root.value().is_dict() ? root.find(kClipIdentityKey) : std::nullopt;
  return identity && identity->value().is_string() ? identity->as_string() : "";
}

std::string short_clip_identity(const std::string& identity) {
  constexpr size_t kDigits = 16;
  return identity.substr(0, kDigits);
}

std::optional<std::string> RawClip::merges() const {
  const auto found = texts.find(kClipMergesKey);
  return found == texts.end() ? std::optional<std::string>() : found->second;
}

RawClip read_raw_clip(const std::string& path) {
  RawClip raw = read_tensors(path);
  const bool is_wrapped = !raw.tensors.empty() &&
                          std::all_of(raw.tensors.begin(), raw.tensors.end(), [](const auto& item) {
                            return item.first.starts_with(kParallelPrefix);
                          });
  if (is_wrapped) raw.tensors = strip_prefix(raw.tensors, kParallelPrefix);
  return raw;
}

Json json_in_file(const std::string& text, const std::string& where) {
  ParsedJson json = parse_untrusted_json(text);
  if (!json.is_right()) throw DataError("{}: {}", where, json.fault);
  return std::move(json.value);
}

std::optional<std::pair<std::string, Json>> json_beside(const std::string& path, const char* name) {
  const std::string file = (fs::path(path).parent_path() / name).string();
  if (!fs::is_regular_file(file)) return std::nullopt;
  return std::pair(file, json_in_file(read_file(file), file));
}

}  // namespace dalle2
