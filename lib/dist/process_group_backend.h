// SPDX-License-Identifier: MIT
// The part of ProcessGroup that sees c10d: its headers take seconds in each file.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/world.h"

namespace dalle2 {

/// Keys and values that all ranks see. Calls throw std::runtime_error if the process that keeps
/// them is gone.
class RankStore {
 public:
  virtual ~RankStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// One a key, none if nobody has set it. Keys that have been there before cost one request
  /// together.
  virtual std::vector<std::optional<std::string>> get(const std::vector<std::string>& keys) = 0;
  /// Sets a key unless somebody has: of several that do, the first decides.
  /// @return what it is then, not empty
  virtual std::string decide(const std::string& key, const std::string& value) = 0;
};

/// A connection of its own to the ranks' store; with `as_host` the store itself, which ends with what is
/// returned. @throws std::exception if it does not answer
std::unique_ptr<RankStore> connect_store(const World& world,
                                         bool as_host,
                                         std::chrono::seconds timeout);

/// A store that this process keeps for others, at a free port.
class StoreServer {
 public:
  StoreServer();
  ~StoreServer();
  uint16_t port() const;
  /// As the ranks of this launcher see it before they have met.
  std::unique_ptr<RankStore> open() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class WorkState { kPending, kDone, kFailed };

struct WorkStatus {
  WorkState state = WorkState::kPending;
  std::string fault = {};  ///< why it failed, whole
};

/// A collective of c10d.
class BackendWork {
 public:
  virtual ~BackendWork() = default;
  /// @throws std::exception if a peer is gone
  virtual void wait() = 0;
  /// On a GPU this asks the driver, which may wait. A fault of the GPU itself is one of the work.
  virtual WorkStatus status() noexcept = 0;
};

/// Collectives of one kind of device.
class GroupBackend {
 public:
  enum class Where { kDevice, kHost };
  virtual ~GroupBackend() = default;
  /// All ranks have to have the same kind of device.
  virtual void open_device(const at::Device& device) = 0;
  virtual std::shared_ptr<BackendWork> all_reduce(Where where, at::Tensor tensor, bool maximum) = 0;
  virtual std::shared_ptr<BackendWork> broadcast(at::Tensor tensor, int root) = 0;
  virtual std::shared_ptr<BackendWork> all_gather(Where where,
                                                  at::Tensor whole,
                                                  at::Tensor part) = 0;
  /// Of the hosts. @param whole of rank 0, undefined on the others
  virtual std::shared_ptr<BackendWork> gather_on_main(at::Tensor whole, at::Tensor part) = 0;
  virtual std::shared_ptr<BackendWork> reduce(at::Tensor tensor, int root) = 0;
  /// Sums of three and more values may depend on where in its tensor an element lies.
  virtual bool sums_depend_on_place() const = 0;
  /// Breaks off what is under way, so that a failing process can end.
  virtual void abort() noexcept = 0;
  /// Ends what needs an end; all ranks call it when the last collective is through. It may hang.
  virtual void shut_down() noexcept = 0;
};

/// Connects the hosts of all ranks; before collectives of the device GroupBackend::open_device()
/// is to be called. @throws std::exception if the ranks do not meet
std::unique_ptr<GroupBackend> make_backend(const World& world, std::chrono::seconds timeout);

/// What makes a rank's backend.
using BackendMaker =
    std::function<std::unique_ptr<GroupBackend>(const World&, std::chrono::seconds)>;
/// From now on groups use what `make` gives, for tests without NCCL; null: make_backend().
void stand_in_for_backends(BackendMaker make);
/// By the stand-in where there is one.
std::unique_ptr<GroupBackend> make_backend_of_group(const World& world,
                                                    std::chrono::seconds timeout);

}  // namespace dalle2
