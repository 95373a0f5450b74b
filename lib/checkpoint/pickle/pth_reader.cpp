// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/pth.h"

#include "base/error.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/script_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pickle.h"

#include <torch/types.h>

#include <cstring>
#include <optional>
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
      throw DataError("{}: storage '{}' is missing", file_->path(), ref.key);
    }
    Place& place = found->second;
    uint64_t expected = 0;
    if (__builtin_mul_overflow(ref.numel, ref.item_bytes(), &expected) ||
        (ref.view ? expected > place.bytes : expected != place.bytes)) {
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
    return ref.view ? narrow(ref, place.tensor) : place.tensor;
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

  at::Tensor narrow(const StorageRef& ref, const at::Tensor& bytes) const {
    const auto available = static_cast<uint64_t>(bytes.numel()) / ref.item_bytes();
    if (ref.view->offset > available || ref.view->size > available - ref.view->offset) {
      throw DataError("{}: a view reaches beyond storage '{}'", file_->path(), ref.key);
    }
    const auto item = static_cast<int64_t>(ref.item_bytes());
    return bytes.narrow(0,
                        static_cast<int64_t>(ref.view->offset) * item,
                        static_cast<int64_t>(ref.view->size) * item);
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

/// What an archive is expected to hold: the code of a program may be compressed.
enum class Holds { kCheckpoint, kProgram };

/// The members with their contents checked, or, without `contents`, those of the pickle alone.
std::vector<ZipMember> read_members(const MappedFile& file,
                                    std::optional<Contents> contents,
                                    Holds holds) {
  if (contents) {
    return read_zip(
        file, *contents, holds == Holds::kProgram ? Packing::kStoredOrDeflated : Packing::kStored);
  }
  std::vector<ZipMember> members = read_zip_directory(file);
  const ZipMember& pickle = find_pickle(file, members);
  if (content_crcs(file, {pickle}).front() != pickle.crc) {
    throw DataError("{}: damaged: the CRC-32 of '{}' is wrong", file.path(), pickle.name);
  }
  return members;
}

Value read_archive(const std::shared_ptr<MappedFile>& file,
                   std::optional<Contents> contents,
                   Holds holds = Holds::kCheckpoint) {
  const std::vector<ZipMember> members = read_members(*file, contents, holds);
  const ZipMember& pickle = find_pickle(*file, members);
  const std::string folder = pickle.name.substr(0, pickle.name.size() - 8);
  const std::string data = folder + "data/";
  Storages storages(file);
  for (const ZipMember& member : members) {
    if (member.name.starts_with(data)) {
      storages.add(member.name.substr(data.size()), member.offset, member.size);
    } else if (member.name == folder + "constants.pkl" && holds == Holds::kCheckpoint) {
      throw DataError("{}: expected a checkpoint, got a TorchScript program", file->path());
    } else if (member.name == folder + "byteorder" &&
               file->bytes(member.offset, member.size) != "little") {
      throw DataError("{}: written on a big-endian machine, which we cannot read", file->path());
    }
  }
  const PickleGraph graph = run_pickle(file->bytes(pickle.offset, pickle.size), file->path());
  if (graph.end != pickle.size) {
    throw DataError("{}: damaged pickle: bytes after its end", file->path());
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
        throw DataError("{}: cut off in storage '{}'", file_->path(), key);
      }
      storages_.add(key, at_, bytes);
      at_ += bytes;
    }
    if (at_ != file_->size()) {
      throw DataError("{}: {} bytes after its end", file_->path(), file_->size() - at_);
    }
  }

  std::shared_ptr<MappedFile> file_;
  Storages storages_;
  uint64_t at_ = 0;
};

}  // namespace

namespace {

Value read_torch_file(const std::string& path, std::optional<Contents> contents) {
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

}  // namespace

Value read_pth(const std::string& path) {
  return read_torch_file(path, Contents::kMapped);
}

Value read_pth_outline(const std::string& path) {
  return read_torch_file(path, std::nullopt);
}

Value read_script_attributes(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  if (!check_script_file(*file)) {
    throw DataError("{}: expected a TorchScript program, got something else", path);
  }
  return read_archive(file, Contents::kMapped, Holds::kProgram);
}

void verify_pth(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  file->expect_scattered_reads();
  if (!looks_like_zip(*file)) throw DataError("{}: truncated or damaged: not an archive", path);
  read_archive(file, Contents::kOnDisk);
}

}  // namespace dalle2
