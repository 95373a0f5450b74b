// SPDX-License-Identifier: MIT
#include "trainer/rank_shards.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dalle2 {

RankShards::RankShards(ProcessGroup& group, int64_t numel)
    : group_(group), slices_(split_flat(numel, group.size())), numel_(numel) {}

const FlatSlice& RankShards::own() const {
  return slices_[static_cast<size_t>(group_.rank())];
}

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

at::Tensor RankShards::gather(const at::Tensor& own, const std::string& what) const {
  at::Tensor whole = at::empty({numel_}, own.options());
  this->own().of(whole).copy_(own);
  share(whole, what);
  return whole;
}

at::Tensor RankShards::gather_on_main(const at::Tensor& own,
                                      int64_t numel,
                                      const std::string& what) const {
  constexpr int64_t kPiece = int64_t{1} << 24;
  at::Tensor whole;
  if (group_.is_main()) whole = at::empty({numel}, own.options().device(at::kCPU));
  for (size_t rank = 0; rank < slices_.size(); ++rank) {
    const FlatSlice slice = slices_[rank].overlap({0, numel});
    const bool is_own = static_cast<int>(rank) == group_.rank();
    for (int64_t begin = 0; begin < slice.length(); begin += kPiece) {
      const int64_t length = std::min(kPiece, slice.length() - begin);
      const at::Tensor piece =
          is_own ? own.narrow(0, begin, length) : at::empty({length}, own.options());
      group_.broadcast(piece, what, static_cast<int>(rank));
      if (whole.defined()) whole.narrow(0, slice.begin + begin, length).copy_(piece);
    }
  }
  return whole;
}

}  // namespace dalle2
