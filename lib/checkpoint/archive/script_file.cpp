// SPDX-License-Identifier: MIT
#include "checkpoint/archive/script_file.h"

#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pickle.h"

namespace dalle2 {
namespace {

using MembersByName = std::unordered_map<std::string, ZipMember>;

/// @param storages the folder of the records that the pickle's tensors lie in
void check_pickle(const MappedFile& file,
                  const ZipMember& pickle,
                  const std::string& storages,
                  const MembersByName& members) {
  const std::string where = file.path() + ": " + pickle.name;
  const std::string_view bytes = file.bytes(pickle.offset, pickle.size);
  for (const StorageRef& ref : storages_of(run_pickle(bytes, where), where)) {
    const auto record = members.find(storages + ref.key);
    if (record == members.end()) {
      throw DataError("{}: the record \"{}\" of a tensor is missing", where, storages + ref.key);
    }
    uint64_t needed = 0;
    if (__builtin_mul_overflow(ref.numel, ref.item_bytes(), &needed) ||
        needed > record->second.size) {
      throw DataError("{}: expected {} elements of {} bytes in the record \"{}\", got {} bytes",
                      where,
                      ref.numel,
                      ref.item_bytes(),
                      storages + ref.key,
                      record->second.size);
    }
  }
}

}  // namespace

bool check_script_file(const MappedFile& file) {
  if (!looks_like_zip(file)) return false;
  MembersByName members;
  std::string folder;
  for (ZipMember& member : read_zip(file, Contents::kMapped, Packing::kStoredOrDeflated)) {
    if (folder.empty()) folder = member.name.substr(0, member.name.find('/') + 1);
    members[member.name] = std::move(member);
  }
  const auto data = members.find(folder + "data.pkl");
  const auto constants = members.find(folder + "constants.pkl");
  if (data == members.end() || constants == members.end()) return false;
  for (const auto& pickle : {data, constants}) {
    if (pickle->second.is_deflated) {
      throw DataError("{}: member '{}' is compressed: expected it as torch.jit.save() writes it",
                      file.path(),
                      pickle->first);
    }
  }
  check_pickle(file, data->second, folder + "data/", members);
  check_pickle(file, constants->second, folder + "constants/", members);
  return true;
}

}  // namespace dalle2
