// SPDX-License-Identifier: MIT
#include "trainer/rank_shards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "checkpoint/archive/mapped_file.h"

namespace dalle2 {

RankShards::RankShards(ProcessGroup& group, int64_t numel, std::string scratch_path)
    : group_(group),
      slices_(split_flat(numel, group.size())),
      scratch_path_(std::move(scratch_path)) {}

void RankShards::share(const at::Tensor& whole, const std::string& what) const {
  // The slices are equal but for what the last has more.
  const FlatSlice& last = slices_.back();
  const int64_t share = slices_.front().length(), shared = share * group_.size();
  if (share > 0) {
    group_.all_gather(whole.narrow(0, 0, shared), whole.narrow(0, own().begin, share), what);
  }
  if (shared < last.end) {
    group_.broadcast(whole.narrow(0, shared, last.end - shared), what, group_.size() - 1);
  }
}

at::Tensor RankShards::gather_to_file(const at::Tensor& own,
                                      int64_t numel,
                                      const std::string& what) const {
  constexpr int64_t kPiece = int64_t{1} << 24;
  std::optional<ScratchFile> file;
  std::exception_ptr fault;
  const auto unless_failed = [&](const auto& action) {
    if (!group_.is_main() || fault) return;
    try {
      action();
    } catch (...) {
      fault = std::current_exception();  // the others are in the middle of their calls
    }
  };
  unless_failed([&] { file.emplace(scratch_path_); });
  // One for all pieces: on a GPU a rank that writes nothing queues them all, and each would stay allocated until its broadcast.
  int64_t longest = 0;
  for (const FlatSlice& slice : slices_) {
    longest = std::max(longest, slice.overlap({0, numel}).length());
  }
  const at::Tensor received = at::empty({std::min(kPiece, longest)}, own.options());
  for (size_t rank = 0; rank < slices_.size(); ++rank) {
    const int64_t length = slices_[rank].overlap({0, numel}).length();
    const bool is_own = static_cast<int>(rank) == group_.rank();
    for (int64_t begin = 0; begin < length; begin += kPiece) {
      const int64_t size = std::min(kPiece, length - begin);
      const at::Tensor piece = is_own ? own.narrow(0, begin, size) : received.narrow(0, 0, size);
      group_.broadcast(piece, what, static_cast<int>(rank));
      unless_failed([&] { file->append(piece); });
    }
  }
  at::Tensor whole;
  unless_failed([&] { whole = file->tensor({numel}, own.scalar_type()); });
  if (fault) std::rethrow_exception(fault);
  return whole;
}

}  // namespace dalle2
