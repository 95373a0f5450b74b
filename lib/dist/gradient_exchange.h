// SPDX-License-Identifier: MIT
// Adds the flat gradients of a network up over the ranks while the backward pass runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace dalle2 {

struct ExchangeOptions {
  int64_t bucket_bytes = int64_t{25} << 20;  ///< of a slice that is sent at once
  bool in_bfloat16 = false;                  ///< half the bytes, eight bits of mantissa
  bool static_graph = false;                 ///< the same entries get a gradient in every update
  bool unused_is_error = false;              ///< an entry that no rank has a gradient for
  /// Where the slice of each rank ends of which it alone needs the sums; the first begins at 0 and
  /// the last reaches to the end. Half the bytes go over the network then. Empty: all need all.
  std::vector<int64_t> owner_ends = {};
};

/// One entry of the flat buffer: the gradient of a parameter.
struct ExchangeEntry {
  int64_t offset = 0, numel = 0;
  bool expected = true;  ///< a backward pass may give it a gradient
};

/// A slice goes on its way as soon as all its entries have arrived on this rank, behind the slices
/// before it in an order that all ranks agree on: that in which they were complete on rank 0 at
/// the first time. What has not arrived by send_rest() goes as zeros: a parameter that
/// the loss did not reach on this rank.
class GradientExchange {
 public:
  /// @param flat [n] the gradients; it has to outlive this object
  /// @param name of the network, for reports
  GradientExchange(ProcessGroup& group,
                   at::Tensor flat,
                   const std::vector<ExchangeEntry>& entries,
                   const ExchangeOptions& options,
                   const std::string& name);

  /// The next backward pass is the last before the update: its gradients are complete as they come.
  void begin();
  /// The gradient of an entry is complete; from the hook of the backward pass. Without effect
  /// unless begin() was called.
  void ready(size_t entry);
  /// The last pass is over on this rank, or it has none: sends what was not sent. With several
  /// networks all ranks have to do so in the same order of these, each before the next one's
  /// passes; then all send in the same order, whatever arrived where. Entries as for finish().
  void send_rest();
  /// Sends what was not sent and waits until all sums are in `flat`; with owners, those of this
  /// rank's slice, and outside it nothing that means anything. Entries that are not ready have to be
  /// zero in it. To be called once an update, with or without begin().
  void finish();

  size_t num_buckets() const { return buckets_.size(); }
  /// Slices of the last update that were on their way during the backward pass.
  size_t overlapped() const { return overlapped_; }

 private:
  struct Piece {
    int64_t begin, end;  // within a bucket
    int owner;
  };
  struct Bucket {
    at::Tensor slice;           // [m] view of the flat buffer
    at::Tensor half;            // [m] bfloat16, while it is on its way
    std::vector<Piece> pieces;  // empty: all ranks need all of it
    int64_t entries = 0;        // expected
    int64_t missing = 0;        // of them, in this pass
    std::vector<PendingCollective> sums;
  };

  std::vector<Piece> pieces_of(int64_t begin, int64_t end) const;
  void send(Bucket& bucket);
  void send_in_order(bool all);
  void agree_on_order();

  ProcessGroup& group_;
  const ExchangeOptions options_;
  const std::string what_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_entry_;
  std::vector<bool> is_ready_, is_expected_;
  std::vector<size_t> order_;      // of the buckets
  std::vector<size_t> completed_;  // in this pass, in the order in which they were complete
  size_t next_ = 0;                // in order_
  size_t overlapped_ = 0;
  bool running_ = false, order_is_agreed_ = false;
};

}  // namespace dalle2
