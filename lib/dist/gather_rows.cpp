// SPDX-License-Identifier: MIT
#include "dist/gather_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/this_process.h"

namespace dalle2 {
namespace {

constexpr int64_t kMostDims = 6;
/// Of all ranks together in a piece: what rank 0 takes beside the rows.
constexpr int64_t kBytesAtOnce = int64_t{32} << 20;

struct Rows {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;  // empty: nothing
};

/// @param own may be undefined @return a rank's each
std::vector<Rows> rows_of_ranks(ProcessGroup& group,
                                const at::Tensor& own,
                                const std::string& what) {
  std::vector<int64_t> shape(2 + kMostDims, 0);
  if (own.defined()) {
    D2_CHECK(
        own.dim() >= 1 && own.dim() <= kMostDims, "{}: rows of {} dimensions", what, own.dim());
    shape[0] = static_cast<int64_t>(own.scalar_type());
    shape[1] = own.dim();
    std::copy(own.sizes().begin(), own.sizes().end(), shape.begin() + 2);
  }
  std::vector<Rows> rows;
  for (const std::vector<int64_t>& theirs : group.exchange(shape, what + " (shape)")) {
    rows.push_back({static_cast<at::ScalarType>(theirs[0]),
                    {theirs.begin() + 2, theirs.begin() + 2 + theirs[1]}});
  }
  return rows;
}

/// A tensor like that of each rank.
std::vector<at::Tensor> room_for_rows(ProcessGroup& group,
                                      const at::Tensor& own,
                                      const std::string& what) {
  std::vector<at::Tensor> room;
  for (const Rows& theirs : rows_of_ranks(group, own, what)) {
    room.push_back(at::empty(theirs.sizes, at::TensorOptions().dtype(theirs.type)));
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

GatheredRows all_gather_rows(ProcessGroup& group, const at::Tensor& own, const std::string& what) {
  if (group.is_alone()) return {own, 0};
  const std::vector<Rows> rows = rows_of_ranks(group, own, what);
  std::vector<int64_t> sizes;  // of the largest part: a collective takes as much of every rank
  for (const Rows& each : rows) {
    if (!each.sizes.empty() && (sizes.empty() || each.sizes[0] > sizes[0])) sizes = each.sizes;
  }
  if (sizes.empty() || sizes[0] == 0) return {};
  const int64_t most = sizes[0];
  const at::TensorOptions options = at::TensorOptions(group.device()).dtype(at::kFloat);
  const at::Tensor part = at::zeros(sizes, options);
  if (own.defined()) part.narrow(0, 0, own.size(0)).copy_(own);
  sizes[0] = most * group.size();
  const at::Tensor whole = at::zeros(sizes, options);
  group.all_gather(whole.view({-1}), part.view({-1}), what);
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const int64_t count = rows[rank].sizes.empty() ? 0 : rows[rank].sizes[0];
    if (static_cast<int>(rank) < group.rank()) begin += count;
    pieces.push_back(whole.narrow(0, static_cast<int64_t>(rank) * most, count));
  }
  return {at::cat(pieces), begin};
}

}  // namespace dalle2
