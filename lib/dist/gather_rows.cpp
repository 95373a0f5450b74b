// SPDX-License-Identifier: MIT
#include "dist/gather_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/sign_of_life.h"

namespace dalle2 {
namespace {

constexpr int64_t kMostDims = 6;
/// Of all ranks together in a piece: what rank 0 takes beside the rows.
constexpr int64_t kBytesAtOnce = int64_t{32} << 20;

/// A tensor like that of each rank. @return on rank 0, a tensor a rank
std::vector<at::Tensor> room_for_rows(ProcessGroup& group,
                                      const at::Tensor& own,
                                      const std::string& what) {
  D2_CHECK(own.dim() >= 1 && own.dim() <= kMostDims, "{}: rows of {} dimensions", what, own.dim());
  std::vector<int64_t> shape = {static_cast<int64_t>(own.scalar_type()), own.dim()};
  shape.insert(shape.end(), own.sizes().begin(), own.sizes().end());
  shape.resize(2 + kMostDims, 0);
  std::vector<at::Tensor> room;
  for (const std::vector<int64_t>& theirs : group.exchange(shape, what + " (shape)")) {
    const std::vector<int64_t> sizes(theirs.begin() + 2, theirs.begin() + 2 + theirs[1]);
    room.push_back(
        at::empty(sizes, at::TensorOptions().dtype(static_cast<at::ScalarType>(theirs[0]))));
  }
  return room;
}

}  // namespace

std::vector<at::Tensor> gather_rows(ProcessGroup& group,
                                    const at::Tensor& own,
                                    const std::string& what) {
  if (group.is_alone()) return {own};
  std::vector<at::Tensor> room = room_for_rows(group, own, what);
  int64_t most = 0;
  for (const at::Tensor& rows : room) most = std::max(most, static_cast<int64_t>(rows.nbytes()));
  const int64_t piece =
      std::clamp<int64_t>(kBytesAtOnce / group.size(), 1, std::max<int64_t>(most, 1));
  const at::Tensor part = at::zeros({piece}, at::kByte);
  const at::Tensor whole =
      group.is_main() ? at::empty({piece * group.size()}, at::kByte) : at::Tensor();
  // What of the piece from `begin` a tensor has.
  const auto share = [&](const at::Tensor& rows, int64_t begin) {
    return std::clamp<int64_t>(static_cast<int64_t>(rows.nbytes()) - begin, 0, piece);
  };
  for (int64_t begin = 0; begin < most; begin += piece) {
    if (const int64_t bytes = share(own, begin); bytes > 0) {
      std::memcpy(part.mutable_data_ptr(),
                  static_cast<const char*>(own.const_data_ptr()) + begin,
                  static_cast<size_t>(bytes));
    }
    group.gather_on_main(whole, part, what);
    sign_of_life();
    if (!group.is_main()) continue;
    for (size_t rank = 0; rank < room.size(); ++rank) {
      const int64_t bytes = share(room[rank], begin);
      if (bytes == 0) continue;
      std::memcpy(
          static_cast<char*>(room[rank].mutable_data_ptr()) + begin,
          static_cast<const char*>(whole.const_data_ptr()) + static_cast<int64_t>(rank) * piece,
          static_cast<size_t>(bytes));
    }
  }
  if (!group.is_main()) room.clear();
  return room;
}

}  // namespace dalle2
