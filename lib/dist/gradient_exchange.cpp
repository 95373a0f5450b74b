// SPDX-License-Identifier: MIT
#include "dist/gradient_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace dalle2 {

GradientExchange::GradientExchange(ProcessGroup& group,
                                   at::Tensor flat,
                                   const std::vector<ExchangeEntry>& entries,
                                   const ExchangeOptions& options,
                                   const std::string& name)
    : group_(group),
      options_(options),
      what_(name.empty() ? "gradients" : "gradients of " + name),
      bucket_of_entry_(entries.size()),
      is_ready_(entries.size(), false),
      is_expected_(entries.size()) {
  std::vector<size_t> by_offset(entries.size());
  std::iota(by_offset.begin(), by_offset.end(), size_t{0});
  std::ranges::sort(by_offset, {}, [&](size_t i) { return entries[i].offset; });
  const int64_t least = std::max<int64_t>(options.bucket_bytes / 4, 1);
  int64_t begin = 0;
  int64_t expected = 0;
  for (size_t place = 0; place < by_offset.size(); ++place) {
    const size_t entry = by_offset[place];
    bucket_of_entry_[entry] = buckets_.size();
    is_expected_[entry] = entries[entry].expected;
    expected += entries[entry].expected ? 1 : 0;
    const bool last = place + 1 == by_offset.size();
    const int64_t end = last ? flat.numel() : entries[by_offset[place + 1]].offset;
    if (end - begin < least && !last) continue;
    Bucket& bucket = buckets_.emplace_back();
    bucket.slice = flat.narrow(0, begin, end - begin);
    bucket.pieces = pieces_of(begin, end);
    bucket.entries = bucket.missing = expected;
    begin = end;
    expected = 0;
  }
  // A backward pass goes from the last layer to the first.
  order_.resize(buckets_.size());
  std::iota(order_.rbegin(), order_.rend(), size_t{0});
}

/// Of the elements begin ... end - 1 of the buffer.
std::vector<GradientExchange::Piece> GradientExchange::pieces_of(int64_t begin, int64_t end) const {
  std::vector<Piece> pieces;
  int64_t owner_begin = 0;
  for (size_t owner = 0; owner < options_.owner_ends.size(); ++owner) {
    const int64_t owner_end = options_.owner_ends[owner];
    const int64_t first = std::max(begin, owner_begin), last = std::min(end, owner_end);
    if (first < last) pieces.push_back({first - begin, last - begin, static_cast<int>(owner)});
    owner_begin = owner_end;
  }
  return pieces;
}

void GradientExchange::begin() {
  running_ = true;
  overlapped_ = 0;
}

void GradientExchange::ready(size_t entry) {
  if (!running_ || is_ready_[entry] || !is_expected_[entry]) return;
  is_ready_[entry] = true;
  Bucket& bucket = buckets_[bucket_of_entry_[entry]];
  if (--bucket.missing > 0) return;
  completed_.push_back(bucket_of_entry_[entry]);
  send_in_order(/*all=*/false);
}

void GradientExchange::send(Bucket& bucket) {
  at::Tensor sent = bucket.slice;
  if (options_.in_bfloat16) sent = bucket.half = bucket.slice.to(at::kBFloat16);
  if (bucket.pieces.empty()) bucket.sums.push_back(group_.start_all_reduce(sent, what_));
  for (const Piece& piece : bucket.pieces) {
    bucket.sums.push_back(group_.start_reduce(
        sent.narrow(0, piece.begin, piece.end - piece.begin), what_, piece.owner));
  }
}

void GradientExchange::send_in_order(bool all) {
  // Until the order is agreed on, nothing may go: another rank might complete in another order.
  if (!order_is_agreed_ && !all) return;
  for (; next_ < order_.size(); ++next_) {
    Bucket& bucket = buckets_[order_[next_]];
    if (!all && bucket.missing > 0) return;
    send(bucket);
    overlapped_ += all ? 0 : 1;
  }
}

/// The order of rank 0's backward pass: what it did not complete stands last. A pass that it did not
/// announce by begin(), or in which it completed nothing, has no order to go by: then the next one.
void GradientExchange::agree_on_order() {
  std::vector<int64_t> mine(completed_.begin(), completed_.end());
  for (const size_t bucket : order_) {
    if (std::ranges::find(completed_, bucket) == completed_.end()) {
      mine.push_back(static_cast<int64_t>(bucket));
    }
  }
  constexpr int64_t kNoOrder = -1;
  if (completed_.empty()) mine.assign(order_.size(), kNoOrder);
  const std::vector<int64_t> agreed = group_.exchange(mine, "order of the gradients").front();
  if (agreed.front() == kNoOrder) return;
  order_.assign(agreed.begin(), agreed.end());
  order_is_agreed_ = true;
}

void GradientExchange::send_rest() {
  if (group_.is_alone()) return;
  running_ = false;
  send_in_order(/*all=*/true);
}

void GradientExchange::finish() {
  if (group_.is_alone()) return;
  const bool first = !order_is_agreed_;
  send_rest();
  for (const size_t index : order_) {
    Bucket& bucket = buckets_[index];
    for (PendingCollective& sum : bucket.sums) sum.wait();
    bucket.sums.clear();
    if (bucket.half.defined()) bucket.slice.copy_(bucket.half);
    bucket.half.reset();
    bucket.missing = bucket.entries;
  }
  if (first) agree_on_order();
  is_ready_.assign(is_ready_.size(), false);
  completed_.clear();
  next_ = 0;
}

}  // namespace dalle2
