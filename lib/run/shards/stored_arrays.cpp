// SPDX-License-Identifier: MIT
#include "run/shards/stored_arrays.h"

#include <array>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/streams/url_source.h"
#include "run/checkpoints/clip_weights.h"
#include "run/checkpoints/model_weights.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array kReadingKeys = {"ground", "apply_exif", "range"};

/// The manifests of that name beside the shards of this machine.
std::set<std::string> manifests_beside(const ShardDataConfig& data, const char* name) {
  std::set<std::string> paths;
  for (const std::string& url : data.webdataset_base_url.values()) {
    std::error_code ignored;
    const fs::path path = fs::path(local_path(url)).parent_path() / name;
    if (is_local_url(url) && fs::is_regular_file(path, ignored)) paths.insert(path.string());
  }
  return paths;
}

/// @param own what the run has, by pointers whose last part is a key of the manifest
/// @param what of the shards the manifest describes @param command that makes them again
void check_manifest(const std::string& path,
                    const Json& own,
                    const char* what,
                    const char* command) {
  Json manifest;
  try {
    manifest = parse_untrusted_object(read_file(path));
  } catch (const std::exception&) {  // it is there for people too
    return;
  }
  std::string faults;
  for (const auto& [pointer, value] : own.items()) {
    const std::string key = pointer.substr(pointer.rfind('/') + 1);
    if (!manifest.contains(key) || manifest[key] == value) continue;
    faults += fmt::format("\n  {}: the run has {}, the {} were made with {}",
                          pointer,
                          value.dump(),
                          what,
                          manifest[key].dump());
  }
  if (faults.empty()) return;
  throw DataError(
      "{}: the {} in the shards are not what the run would make of their pictures:{}\n  Give the run the "
      "values that they were made with, or make them again: dalle2-train shards {}",
      printable(path),
      what,
      printable(faults),
      command);
}

}  // namespace

void add_reading(Json& manifest, const Json& data) {
  for (const char* key : kReadingKeys) manifest[key] = data[key];
}

void check_stored_arrays(const LoadedDecoderConfig& loaded,
                         const Decoder& decoder,
                         const ClipEmbedder* clip) {
  const ShardDataConfig& config = loaded.config.data;
  const Json data = Json::parse(loaded.full_json)["data"];
  Json reading;
  for (const char* key : kReadingKeys) reading[std::string("/data/") + key] = data[key];
  if (config.embeddings_in_tar) {
    Json own = reading;
    if (clip != nullptr)
      own[std::string("/decoder/clip/") + kClipOfEmbeddings] = clip_sha256(clip->clip());
    for (const std::string& path : manifests_beside(config, kEmbeddingsManifest))
      check_manifest(path, own, "embeddings", "embed");
  }
  if (!config.latents_in_tar) return;
  Json own = reading;
  own["/data/preprocessing"] = data["preprocessing"];
  own["/decoder/image_size"] = loaded.plan.stages.front().image_size;
  own[std::string("/decoder/vae/0/") + kVaeOfLatents] = weights_sha256(*decoder->vae(1));
  for (const std::string& path : manifests_beside(config, kLatentsManifest))
    check_manifest(path, own, "latents", "encode");
}

}  // namespace dalle2
