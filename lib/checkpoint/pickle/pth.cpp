// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/pth.h"

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/atomic_file.h"
#include "io/files/disk_io.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace dalle2 {
namespace {

constexpr std::string_view kLegacyMagic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
constexpr int64_t kLegacyProtocol = 1001;
constexpr uint64_t kVectorBytes = 16;  // an address that suits every element type

/// The storages of one file by key; the same memory for the same key.
class Storages {
 public:
  explicit Storages(std::shared_ptr<MappedFile> file) : file_(std::move(file)) {}

  void add(const std::string& key, uint64_t offset, uint64_t bytes) {
    places_[key] = {offset, bytes, {}};
  }

  at::Tensor load(const StorageRef& ref) {
    const auto found = places_.find(ref.key);
    if (found == places_.end()) {
      throw DataError("{}: storage '{}' is missing{}", file_->path(), ref.key, kDamagedAdvice);
    }
    Place& place = found->second;
    uint64_t expected = 0;
    if (__builtin_mul_overflow(ref.numel, ref.item_bytes(), &expected) || expected != place.bytes) {
      throw DataError("{}: storage '{}': expected {} elements of {} bytes, got {} bytes",
                      file_->path(),
                      ref.key,
                      ref.numel,
                      ref.item_bytes(),
                      place.bytes);
    }
    if (!place.tensor.defined()) {
      place.tensor = tensor_of(place);
      check_bools(ref, place.tensor);
    }
    return place.tensor;
  }

 private:
  struct Place {
    uint64_t offset = 0, bytes = 0;
    at::Tensor tensor;
  };

  at::Tensor tensor_of(const Place& place) const {
    const at::Tensor bytes =
        tensor_in_file(file_, place.offset, {static_cast<int64_t>(place.bytes)}, at::kByte);
    return place.offset % kVectorBytes == 0 ? bytes : bytes.clone();
  }

  /// Bytes other than 0 and 1 in a bool are undefined behaviour for whoever reads it.
  void check_bools(const StorageRef& ref, const at::Tensor& bytes) const {
    if (ref.dtype == at::kBool && bytes.numel() > 0 && bytes.max().item<int64_t>() > 1) {
      throw DataError(
          "{}: storage '{}': expected bools, got bytes beyond 1", file_->path(), ref.key);
    }
  }

  std::shared_ptr<MappedFile> file_;
  std::unordered_map<std::string, Place> places_;
};

const ZipMember& find_pickle(const MappedFile& file, const std::vector<ZipMember>& members) {
  for (const ZipMember& member : members) {
    if (member.name.ends_with("/data.pkl") && member.name.find('/') + 9 == member.name.size()) {
      return member;
    }
  }
  throw DataError("{}: an archive, but not of torch.save(): expected a member '<name>/data.pkl'",
                  file.path());
}

/// @param packing of a program, whose code may be compressed, or of a checkpoint
Value value_of(const std::shared_ptr<MappedFile>& file,
               const std::vector<ZipMember>& members,
               Packing packing) {
  const ZipMember& pickle = find_pickle(*file, members);
  const std::string folder = pickle.name.substr(0, pickle.name.size() - 8);
  const std::string data = folder + "data/";
  Storages storages(file);
  for (const ZipMember& member : members) {
    if (member.name.starts_with(data)) {
      storages.add(member.name.substr(data.size()), member.offset, member.size);
    } else if (member.name == folder + "constants.pkl" && packing == Packing::kStored) {
      throw DataError("{}: expected a checkpoint, got a TorchScript program", file->path());
    } else if (member.name == folder + "byteorder" &&
               file->bytes(member.offset, member.size) != "little") {
      throw DataError("{}: written on a big-endian machine, which we cannot read", file->path());
    }
  }
  const PickleGraph graph = run_pickle(file->bytes(pickle.offset, pickle.size), file->path());
  if (graph.end != pickle.size) {
    throw DataError("{}: damaged pickle: bytes after its end{}", file->path(), kDamagedAdvice);
  }
  return value_of_pickle(
      graph, [&](const StorageRef& ref) { return storages.load(ref); }, file->path());
}

/// The layout before torch 1.6: pickles of magic, protocol, system, object and list of storage
/// keys, then for every key its number of elements (i64) and their bytes.
class LegacyReader {
 public:
  explicit LegacyReader(std::shared_ptr<MappedFile> file)
      : file_(std::move(file)), storages_(file_) {}

  Value run() {
    at_ = kLegacyMagic.size();
    const PickleGraph protocol = next_pickle();
    if (protocol.nodes[protocol.root].integer != kLegacyProtocol) {
      throw DataError("{}: expected torch's protocol 1001, got {}",
                      file_->path(),
                      protocol.nodes[protocol.root].integer);
    }
    next_pickle();  // the machine it was written on; Python does not look at it either
    const PickleGraph object = next_pickle();
    const PickleGraph keys = next_pickle();
    find_storages(object, keys);
    return value_of_pickle(
        object, [&](const StorageRef& ref) { return storages_.load(ref); }, file_->path());
  }

 private:
  PickleGraph next_pickle() {
    PickleGraph graph = run_pickle(file_->bytes(at_, file_->size() - at_), file_->path());
    at_ += graph.end;
    return graph;
  }

  void find_storages(const PickleGraph& object, const PickleGraph& keys) {
    std::unordered_map<std::string, uint64_t> item_bytes;
    for (const StorageRef& ref : storages_of(object, file_->path())) {
      item_bytes[ref.key] = ref.item_bytes();
    }
    for (const uint32_t id : keys.nodes[keys.root].items) {
      const std::string& key = keys.nodes[id].text;
      const auto item = item_bytes.find(key);
      if (item == item_bytes.end()) {
        throw DataError("{}: storage '{}' belongs to no tensor", file_->path(), key);
      }
      uint64_t numel = 0;
      if (file_->size() - at_ >= sizeof numel) {
        std::memcpy(&numel, file_->data() + at_, sizeof numel);
        at_ += sizeof numel;
      }
      uint64_t bytes = 0;
      if (__builtin_mul_overflow(numel, item->second, &bytes) || bytes > file_->size() - at_) {
        throw DataError("{}: cut off in storage '{}'{}", file_->path(), key, kDamagedAdvice);
      }
      storages_.add(key, at_, bytes);
      at_ += bytes;
    }
    if (at_ != file_->size()) {
      throw DataError(
          "{}: {} bytes after its end{}", file_->path(), file_->size() - at_, kDamagedAdvice);
    }
  }

  std::shared_ptr<MappedFile> file_;
  Storages storages_;
  uint64_t at_ = 0;
};

/// @param contents whether those of all members are checked, or of the pickle alone
Value read_archive(const std::shared_ptr<MappedFile>& file,
                   bool contents,
                   Packing packing = Packing::kStored) {
  if (contents) return value_of(file, read_zip(*file, packing), packing);
  const std::vector<ZipMember> members = read_zip_directory(*file);
  const ZipMember& pickle = find_pickle(*file, members);
  if (content_crcs(*file, {pickle}).front() != pickle.crc) {
    throw DataError(
        "{}: damaged: the CRC-32 of '{}' is wrong{}", file->path(), pickle.name, kDamagedAdvice);
  }
  return value_of(file, members, packing);
}

Value read_torch_file(const std::string& path, bool contents) {
  const auto file = std::make_shared<MappedFile>(path);
  if (looks_like_zip(*file)) return read_archive(file, contents);
  if (file->size() >= kLegacyMagic.size() && file->bytes(0, kLegacyMagic.size()) == kLegacyMagic) {
    return LegacyReader(file).run();
  }
  throw DataError(
      "{}: is not a checkpoint: expected a file of torch.save(), got {} bytes in another format",
      path,
      file->size());
}

const std::string kFolder = "archive/";

/// 40 digits that depend on every member's name and content, as torch's own writer has them.
std::string serialization_id(const std::vector<ZipMember>& members) {
  Fnv1a<uint64_t> names, contents;
  for (const ZipMember& member : members) {
    names.add(member.name);
    contents.mix(member.crc);
  }
  return fmt::format("{:020}{:020}", names.value(), contents.value());
}

/// @param storages of the pickle, on any device
void write_archive(const std::string& path,
                   const std::string& pickle,
                   const std::vector<at::Tensor>& storages,
                   ReadBack read_back) {
  AtomicFile file(path);
  ZipWriter zip(file);
  zip.add(kFolder + "data.pkl", pickle);
  zip.add(kFolder + "byteorder", "little");
  for (size_t key = 0; key < storages.size(); ++key) {
    const at::Tensor elements = storages[key].cpu();
    zip.add(kFolder + "data/" + std::to_string(key), elements.const_data_ptr(), elements.nbytes());
  }
  zip.add(kFolder + "version", "3\n");
  zip.add(kFolder + ".data/serialization_id", serialization_id(zip.members()));
  zip.finish();
  if (read_back == ReadBack::kYes) {
    file.sync();
    verify_pth(file.part_path(), zip.crc());
  }
  file.commit();
}

int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct PiecePlace {
  size_t piece;
  int64_t offset;  // in it
};

/// The place of `bytes` behind what the pieces hold already. @param sizes of the pieces; grows
PiecePlace place_in_pieces(std::vector<int64_t>& sizes, int64_t bytes, int64_t piece_bytes) {
  if (sizes.empty() || sizes.back() + aligned(bytes) > piece_bytes) sizes.push_back(0);
  const PiecePlace place{sizes.size() - 1, sizes.back()};
  sizes.back() += aligned(bytes);
  return place;
}

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

Value read_pth(const std::string& path) {
  return read_torch_file(path, /*contents=*/true);
}

Value read_pth_outline(const std::string& path) {
  return read_torch_file(path, /*contents=*/false);
}

Value read_script_attributes(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  if (!check_script_file(*file)) {
    throw DataError("{}: expected a TorchScript program, got something else", path);
  }
  return read_archive(file, /*contents=*/true, Packing::kStoredOrDeflated);
}

void verify_pth(const std::string& path, uint32_t crc) {
  uint32_t got = 0;
  read_from_disk(path, [&](const char* piece, size_t size) { got = crc32_of(got, piece, size); });
  if (got != crc) {
    throw DataError(
        "{}: damaged on the disk: expected the CRC-32 {:08x} of what was written, got {:08x}",
        path,
        crc,
        got);
  }
  const auto file = std::make_shared<MappedFile>(path);
  file->expect_scattered_reads();
  read_archive(file, /*contents=*/false);
}

void write_pth(const std::string& path, const Value& value, ReadBack read_back) {
  const PickleToWrite pickle = pickle_of_value(value);
  write_archive(path, pickle.bytes, pickle.storages, read_back);
}

void PthSnapshot::take(const Value& value) {
  PickleToWrite pickle = pickle_of_value(value);
  pickle_ = std::move(pickle.bytes);
  storages_ = std::move(pickle.storages);
  std::vector<PiecePlace> places;
  std::vector<int64_t> sizes;        // of the pieces
  std::optional<at::Device> device;  // that copies come from
  for (const at::Tensor& live : storages_) {
    if (lies_in_file(live)) continue;
    places.push_back(place_in_pieces(sizes, static_cast<int64_t>(live.nbytes()), piece_bytes_));
    if (!live.is_cpu()) device = live.device();
  }
  make_memory(sizes, /*pinned=*/device.has_value());
  auto place = places.begin();
  for (at::Tensor& storage : storages_) {
    const at::Tensor live = storage;
    if (lies_in_file(live)) continue;
    storage = pieces_[place->piece]
                  .narrow(0, place->offset, static_cast<int64_t>(live.nbytes()))
                  .view(live.scalar_type());
    storage.copy_(live, /*non_blocking=*/true);
    ++place;
  }
  if (device) c10::impl::VirtualGuardImpl(device->type()).getStream(*device).synchronize();
}

/// Pieces of these sizes at least; those of an earlier call stay where they are large enough.
void PthSnapshot::make_memory(const std::vector<int64_t>& sizes, bool pinned) {
  pieces_.resize(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (pieces_[i].defined() && pieces_[i].numel() >= sizes[i]) continue;
    pieces_[i].reset();  // given back before more is taken
    pieces_[i] = at::empty({sizes[i]}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
  }
}

void PthSnapshot::clear() {
  pickle_.clear();
  storages_.clear();
}

void PthSnapshot::write(const std::string& path, ReadBack read_back) const {
  write_archive(path, pickle_, storages_, read_back);
}

bool check_script_file(const MappedFile& file) {
  if (!looks_like_zip(file)) return false;
  MembersByName members;
  std::string folder;
  for (ZipMember& member : read_zip(file, Packing::kStoredOrDeflated)) {
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

std::vector<std::string> damaged_members(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  if (!looks_like_zip(*file)) return {};
  const std::vector<ZipMember> members = read_zip_directory(*file);
  const std::vector<uint32_t> crcs = content_crcs(*file, members);
  std::unordered_map<const void*, std::string> names;  // of the first entry in each storage
  try {
    const ZipMember& pickle = find_pickle(*file, members);
    const auto at = static_cast<size_t>(&pickle - members.data());
    const Value value =
        crcs[at] == pickle.crc ? value_of(file, members, Packing::kStored) : Value();
    visit_tensors(value, [&](const std::string& name, const at::Tensor& tensor) {
      names.try_emplace(tensor.storage().data(), name);
    });
  } catch (const DataError&) {
    // Without names the members themselves still say where the damage is.
  }
  std::vector<std::string> damaged;
  for (size_t i = 0; i < members.size(); ++i) {
    const ZipMember& member = members[i];
    if (crcs[i] == member.crc) continue;
    const auto name = names.find(file->data() + member.offset);
    damaged.push_back(
        fmt::format("entry '{}'{}, bytes {} to {}: expected CRC-32 {:08x}, got {:08x}",
                    member.name,
                    name == names.end() ? "" : " (" + name->second + ")",
                    member.offset,
                    member.offset + member.size,
                    member.crc,
                    crcs[i]));
  }
  return damaged;
}

}  // namespace dalle2
