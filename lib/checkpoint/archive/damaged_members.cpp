// SPDX-License-Identifier: MIT
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"

#include "base/error.h"

#include <unordered_map>

namespace dalle2 {
namespace {

/// The first entry that lies in each storage, by the storage's address.
using StorageNames = std::unordered_map<const void*, std::string>;

/// Which tensors lie where, from a pickle that is whole.
StorageNames storage_names(const std::shared_ptr<MappedFile>& file,
                           const std::vector<ZipMember>& members,
                           const ZipMember& pickle) {
  const std::string data = pickle.name.substr(0, pickle.name.size() - 8) + "data/";
  std::unordered_map<std::string, at::Tensor> storages;
  for (const ZipMember& member : members) {
    if (member.name.starts_with(data)) {
      storages[member.name.substr(data.size())] =
          tensor_in_file(file, member.offset, {static_cast<int64_t>(member.size)}, at::kByte);
    }
  }
  const auto load = [&](const StorageRef& ref) {
    const auto found = storages.find(ref.key);
    if (found == storages.end()) {
      throw DataError("{}: storage '{}' is missing", file->path(), ref.key);
    }
    return found->second;
  };
  const Value value = value_of_pickle(
      run_pickle(file->bytes(pickle.offset, pickle.size), file->path()), load, file->path());
  StorageNames names;
  visit_tensors(value, [&](const std::string& name, const at::Tensor& tensor) {
    names.try_emplace(tensor.storage().data(), name);
  });
  return names;
}

}  // namespace

std::vector<DamagedMember> damaged_members(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  if (!looks_like_zip(*file)) return {};
  const std::vector<ZipMember> members = read_zip_directory(*file);
  const std::vector<uint32_t> crcs = content_crcs(*file, members);
  StorageNames names;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i].name.ends_with("/data.pkl") || crcs[i] != members[i].crc) continue;
    try {
      names = storage_names(file, members, members[i]);
    } catch (const DataError&) {
      // Without names the members themselves still say where the damage is.
    }
  }
  std::vector<DamagedMember> damaged;
  for (size_t i = 0; i < members.size(); ++i) {
    const ZipMember& member = members[i];
    if (crcs[i] == member.crc) continue;
    const auto name = names.find(file->data() + member.offset);
    damaged.push_back({member.name,
                       name == names.end() ? "" : name->second,
                       member.offset,
                       member.size,
                       member.crc,
                       crcs[i]});
  }
  return damaged;
}

}  // namespace dalle2
