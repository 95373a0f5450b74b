// SPDX-License-Identifier: MIT
#include "checkpoint/pth.h"

#include "checkpoint/pickle.h"
#include "checkpoint/zip_archive.h"
#include "io/atomic_file.h"

#include <torch/types.h>

namespace dalle2 {
namespace {

const std::string kFolder = "archive/";

/// 40 digits that depend on every member's name and content, as torch's own writer has them.
std::string serialization_id(const std::vector<ZipMember>& members) {
  uint64_t names = 14695981039346656037ULL, contents = names;  // FNV-1a
  const auto mix = [](uint64_t& hash, uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
  for (const ZipMember& member : members) {
    for (const char letter : member.name) {
      mix(names, static_cast<uint8_t>(letter));
    }
    mix(contents, member.crc);
  }
  return fmt::format("{:020}{:020}", names, contents);
}

}  // namespace

void write_pth(const std::string& path, const Value& value, ReadBack read_back) {
  const PickleToWrite pickle = pickle_of_value(value);
  AtomicFile file(path);
  ZipWriter zip(file);
  zip.add(kFolder + "data.pkl", pickle.bytes);
  zip.add(kFolder + "byteorder", "little");
  for (size_t key = 0; key < pickle.storages.size(); ++key) {
    const at::Tensor elements = pickle.storages[key].elements.cpu();
    zip.add(kFolder + "data/" + std::to_string(key), elements.const_data_ptr(), elements.nbytes());
  }
  zip.add(kFolder + "version", "3\n");
  zip.add(kFolder + ".data/serialization_id", serialization_id(zip.members()));
  zip.finish();
  if (read_back == ReadBack::kYes) {
    file.sync();
    verify_pth(file.part_path());
  }
  file.commit();
}

}  // namespace dalle2
