// SPDX-License-Identifier: MIT
// The collectives of a run: over NCCL on GPUs, over Gloo on the CPU. A process that is alone
// communicates nothing and gets its own values back. Rows of tensors of which each rank has some.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/stop_signal.h"
#include "dist/world.h"

namespace dalle2 {

/// Another rank is gone, stuck, or in another operation (exit 6). Nothing can be saved after it: that
/// would take all ranks.
class PeerError : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

class BackendWork;
class GroupBackend;
class RankStore;
class RankWatch;

/// A collective in progress. Call wait() before you read its tensor.
class PendingCollective {
 public:
  PendingCollective() = default;
  PendingCollective(std::shared_ptr<BackendWork> work,
                    RankWatch& watch,
                    int64_t number,
                    std::string what)
      : work_(std::move(work)), watch_(&watch), number_(number), what_(std::move(what)) {}
  PendingCollective(PendingCollective&&) noexcept = default;
  PendingCollective& operator=(PendingCollective&&) noexcept = default;
  /// On a GPU later work of the current stream waits, not the host.
  /// @throws NetworkError naming the rank that is gone or stuck
  void wait();

 private:
  std::shared_ptr<BackendWork> work_;  // null: nothing to wait for
  RankWatch* watch_ = nullptr;
  int64_t number_ = 0;  // of the collective
  std::string what_;
};

enum class Reduction { kSum, kMax };

struct GroupOptions {
  at::Device device = at::kCPU;  ///< of the tensors
  std::string device_id = {};    ///< a name that no other GPU of the machine has; empty: not known
  /// How long a rank may be stuck before the others give up.
  std::chrono::seconds hang_timeout{60};
};

/// All ranks must make the same calls in the same order. `what` says in a few words what a call is
/// for. Reports of stuck ranks show it, and it is an error if ranks meet in different calls.
class ProcessGroup {
 public:
  /// A process that is alone.
  ProcessGroup();
  /// Meets the other ranks. @throws NetworkError if they do not come
  ProcessGroup(const World& world, const GroupOptions& options);
  ~ProcessGroup();

  const World& world() const { return world_; }
  int rank() const { return world_.rank; }
  int size() const { return world_.size; }
  bool is_alone() const { return world_.is_alone(); }
  bool is_main() const { return world_.is_main(); }
  /// Of the tensors.
  const at::Device& device() const { return device_; }

  // Tensors, contiguous, on the group's device.

  /// In place.
  void all_reduce(const at::Tensor& tensor, Reduction reduction, const std::string& what);
  /// Sums in place; returns at once.
  PendingCollective start_all_reduce(const at::Tensor& tensor, const std::string& what);
  /// Sums in place, for rank `root` only. On the others, `tensor` is undefined afterwards. Returns
  /// at once.
  PendingCollective start_reduce(const at::Tensor& tensor, const std::string& what, int root);
  /// The bits of a sum over the ranks may depend on where in its tensor an element lies, and so on
  /// how values are shared out among calls: over Gloo with more than two ranks.
  bool sums_depend_on_place() const;
  /// The values of rank `root` on all ranks.
  void broadcast(const at::Tensor& tensor, const std::string& what, int root = 0);
  /// @param part [n], which may be this rank's part of `whole`
  /// @param whole [size * n], in the order of the ranks
  void all_gather(const at::Tensor& whole, const at::Tensor& part, const std::string& what);

  // Small values on the host, whatever the device.

  /// The values of all ranks, one row per rank. Every rank gives equally many.
  std::vector<std::vector<int64_t>> exchange(const std::vector<int64_t>& own,
                                             const std::string& what);
  /// Sums over the ranks, in their order: the same bits on all.
  std::vector<double> sum(const std::vector<double>& own, const std::string& what);
  /// How ranks agree on a stop. Each of these calls also carries the stop signal of every rank.
  /// This is the signal that any rank had at the last call, or 0. It is therefore the same on all
  /// ranks at the same place of the program. A process that is alone sees its own signal at once.
  int64_t heard_stop() const { return is_alone() ? stop_requested() : heard_stop_; }
  /// Seconds on rank 0's clock at the last of these calls: the same on all ranks at the same place
  /// of the program. A process that is alone uses its own clock.
  double heard_seconds() const;
  /// The largest.
  int64_t most(int64_t own, const std::string& what);
  /// True if it is true on any rank.
  bool any(bool own, const std::string& what) { return most(own ? 1 : 0, what) != 0; }
  /// One flag per entry: true if it is true on any rank.
  void any(std::vector<bool>& flags, const std::string& what);
  /// @param part [n] on the CPU @param whole [size * n] on the CPU, in the order of the ranks; of
  /// rank 0, on the others undefined
  void gather_on_main(const at::Tensor& whole, const at::Tensor& part, const std::string& what);
  std::vector<std::string> gather_texts(const std::string& own, const std::string& what);
  /// Rank 0's text on all ranks.
  std::string text_of_main(const std::string& own, const std::string& what);
  void barrier(const std::string& what) { any(false, what); }

  /// For reports: the number of the next step.
  void set_step(int64_t step);
  /// While the scope lives, the other ranks wait for this one up to ten times the hang timeout: for
  /// a save, or a wait for data.
  class BusyScope {
   public:
    BusyScope(ProcessGroup& group, const std::string& what);
    ~BusyScope();
    BusyScope(const BusyScope&) = delete;
    BusyScope& operator=(const BusyScope&) = delete;

   private:
    RankWatch* watch_;
    std::string before_;  // what it was busy with: scopes lie in each other
  };
  /// Within a BusyScope: reports progress, so the longer timeout starts over.
  void still_busy();
  /// Tells the others why this rank ends, so that they can report it. @throws nothing
  void tell_failure(const std::string& message) noexcept;

 private:
  void check_devices(const std::string& id);
  void connect_device();
  at::Tensor exchange_rows(const at::Tensor& own, const std::string& what);

  World world_;
  at::Device device_ = at::kCPU;
  int64_t heard_stop_ = 0, heard_us_ = 0;
  std::unique_ptr<RankStore> store_;       // the store itself where this rank keeps it
  std::unique_ptr<GroupBackend> backend_;  // null: alone
  std::unique_ptr<RankWatch> watch_;       // null: alone
};

/// The rows of all ranks on rank 0 alone, in pieces, each a sign of life. All ranks have to call it.
/// @param own [n, ...] contiguous on the CPU; n may be another on each rank, 0 too, and where it is
/// not 0 the rest of the shape and the type are the same
/// @return rank 0: a tensor a rank, in their order; on the others nothing
std::vector<at::Tensor> gather_rows(ProcessGroup& group,
                                    const at::Tensor& own,
                                    const std::string& what);

/// The rows of all ranks, in the order of the ranks.
struct GatheredRows {
  at::Tensor rows;    ///< [N, ...]; undefined if no rank has any
  int64_t begin = 0;  ///< the first of this rank's
};

/// All ranks call it. @param own [n, ...] float32 on the group's device, of one shape but for n;
/// undefined where a rank has none
GatheredRows all_gather_rows(ProcessGroup& group, const at::Tensor& own, const std::string& what);

}  // namespace dalle2
