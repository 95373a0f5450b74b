// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/pth.h"

#include "base/fnv1a.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pickle.h"
#include "io/files/atomic_file.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <optional>

namespace dalle2 {
namespace {

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
    verify_pth(file.part_path());
  }
  file.commit();
}

std::vector<at::Tensor> elements_of(const PickleToWrite& pickle) {
  std::vector<at::Tensor> elements;
  elements.reserve(pickle.storages.size());
  for (const StorageToWrite& storage : pickle.storages) elements.push_back(storage.elements);
  return elements;
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

}  // namespace

void write_pth(const std::string& path, const Value& value, ReadBack read_back) {
  const PickleToWrite pickle = pickle_of_value(value);
  write_archive(path, pickle.bytes, elements_of(pickle), read_back);
}

void PthSnapshot::take(const Value& value) {
  PickleToWrite pickle = pickle_of_value(value);
  pickle_ = std::move(pickle.bytes);
  storages_ = elements_of(pickle);
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

}  // namespace dalle2
