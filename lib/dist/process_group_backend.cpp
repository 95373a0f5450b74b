// SPDX-License-Identifier: MIT
// The only file of the program that sees c10d and gloo; NCCL is seen by nccl_module.cpp.
#include "dist/process_group_backend.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef DALLE2_WITH_GLOO
#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include <cstdlib>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/this_process.h"
#include "dist/nccl_module.h"

namespace dalle2 {
namespace {

class C10dStore : public RankStore {
 public:
  C10dStore(const c10::intrusive_ptr<c10d::Store>& connection, const std::string& prefix)
      : store_(c10::make_intrusive<c10d::PrefixStore>(prefix, connection)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }

  std::vector<std::optional<std::string>> get(const std::vector<std::string>& keys) override {
    // multiGet waits for keys that are not there; one that is stays.
    std::vector<std::string> present;
    std::vector<size_t> places;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!present_.contains(keys[i]) && !store_->check({keys[i]})) continue;
      present_.insert(keys[i]);
      present.push_back(keys[i]);
      places.push_back(i);
    }
    std::vector<std::optional<std::string>> texts(keys.size());
    if (present.empty()) return texts;
    const std::vector<std::vector<uint8_t>> found = store_->multiGet(present);
    for (size_t i = 0; i < found.size(); ++i) {
      texts[places[i]].emplace(found[i].begin(), found[i].end());
    }
    return texts;
  }

  std::string decide(const std::string& key, const std::string& value) override {
    return store_->c10d::Store::compareSet(key, /*expectedValue=*/std::string(), value);
  }

 private:
  c10::intrusive_ptr<c10d::PrefixStore> store_;
  std::unordered_set<std::string> present_;
};

c10::intrusive_ptr<c10d::TCPStore> connect(const World& world,
                                           bool as_host,
                                           std::chrono::seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = world.store_port;
  options.isServer = as_host;
  options.numWorkers = std::nullopt;  // the group's own meeting follows
  options.waitWorkers = false;
  options.timeout = timeout;
  // Its own store is on this machine, whatever the address is that others have been given.
  const std::string host = world.hosts_store ? "127.0.0.1" : world.store_host;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

class C10dWork : public BackendWork {
 public:
  /// @param tensors kept as long as the work is under way
  C10dWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : work_(std::move(work)), tensors_(std::move(tensors)) {}
  void wait() override { work_->wait(); }
  WorkStatus status() noexcept override {
    try {
      if (!work_->isCompleted()) return {};  // which asks the GPU too
      if (const std::exception_ptr fault = work_->exception()) std::rethrow_exception(fault);
      return {.state = WorkState::kDone};
    } catch (const std::exception& error) {
      return {.state = WorkState::kFailed, .fault = error.what()};
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

using Group = c10::intrusive_ptr<c10d::Backend>;

#ifdef DALLE2_WITH_GLOO
/// Those of GLOO_SOCKET_IFNAME, as PyTorch reads it; else the one on which the other ranks can be reached.
std::vector<std::shared_ptr<gloo::transport::Device>> gloo_devices(const World& world) {
  using Gloo = c10d::ProcessGroupGloo;
  std::vector<std::shared_ptr<gloo::transport::Device>> devices;
  const char* const names = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream interfaces(names != nullptr ? names : "");
  for (std::string name; std::getline(interfaces, name, ',');) {
    if (!name.empty()) devices.push_back(Gloo::createDeviceForInterface(name));
  }
  if (!devices.empty()) return devices;
  // All on this machine: the name of a laptop or a container need not resolve to anything.
  if (world.launcher == Launcher::kOurs) return {Gloo::createDeviceForHostname("127.0.0.1")};
  if (const auto address = own_address(world)) return {Gloo::createDeviceForHostname(*address)};
  return {Gloo::createDefaultDevice()};
}
#endif

Group make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                const World& world,
                std::chrono::milliseconds timeout) {
#ifdef DALLE2_WITH_GLOO
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices = gloo_devices(world);
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, world.rank, world.size, options);
#else
  (void)store;
  (void)timeout;
  throw ConfigError(
      "{}: this program was built without Gloo, which several processes need: install its headers "
      "(libgloo-dev) and build it again",
      world.name());
#endif
}

Group make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                const World& world,
                const at::Device& device,
                std::chrono::milliseconds timeout) {
  if (device.is_cpu()) {
    throw ConfigError("DALLE2_GROUP: NCCL carries what is on GPUs, and this run is on the CPU");
  }
  leave_failures_to_our_watch();
  Group made;
  load_nccl_module()(store, world.rank, world.size, timeout, made);
  return made;
}

class C10dBackend : public GroupBackend {
 public:
  C10dBackend(const World& world, std::chrono::seconds timeout)
      : world_(world),
        timeout_(timeout),
        store_(c10::make_intrusive<c10d::PrefixStore>(world.store_prefix,
                                                      connect(world, /*as_host=*/false, timeout))) {
    host_ = make_gloo(c10::make_intrusive<c10d::PrefixStore>("host/", store_), world, timeout);
  }

  void open_device(const at::Device& device) override {
    // A group of its own, so that small things overtake the gradients that are on their way.
    const auto store = c10::make_intrusive<c10d::PrefixStore>("device/", store_);
    device_carrier_ = world_.carrier != Carrier::kByDevice ? world_.carrier
                      : device.is_cpu()                    ? Carrier::kGloo
                                                           : Carrier::kNccl;
    device_ = device_carrier_ == Carrier::kGloo ? make_gloo(store, world_, timeout_)
                                                : make_nccl(store, world_, device, timeout_);
  }

  std::shared_ptr<BackendWork> all_reduce(Where where, at::Tensor tensor, bool maximum) override {
    c10d::AllreduceOptions options;
    options.reduceOp = maximum ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    auto work = group(where)->allreduce(tensors, options);
    return std::make_shared<C10dWork>(std::move(work), std::move(tensors));
  }

  std::shared_ptr<BackendWork> broadcast(at::Tensor tensor, int root) override {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    auto work = device_->broadcast(tensors, options);
    return std::make_shared<C10dWork>(std::move(work), std::move(tensors));
  }

  std::shared_ptr<BackendWork> all_gather(Where where, at::Tensor whole, at::Tensor part) override {
    auto work = group(where)->_allgather_base(whole, part);
    return std::make_shared<C10dWork>(std::move(work), std::vector<at::Tensor>{whole, part});
  }

  std::shared_ptr<BackendWork> gather_on_main(at::Tensor whole, at::Tensor part) override {
    std::vector<std::vector<at::Tensor>> parts;
    if (whole.defined()) parts.push_back(whole.view({world_.size, part.numel()}).unbind(0));
    std::vector<at::Tensor> own = {part};
    auto work = host_->gather(parts, own);  // to rank 0
    return std::make_shared<C10dWork>(std::move(work), std::vector<at::Tensor>{whole, part});
  }

  std::shared_ptr<BackendWork> reduce(at::Tensor tensor, int root) override {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::ReduceOptions options;
    options.rootRank = root;
    auto work = device_->reduce(tensors, options);
    return std::make_shared<C10dWork>(std::move(work), std::move(tensors));
  }

  /// Gloo sends a tensor round a ring in as many segments as there are ranks, each from another start.
  bool sums_depend_on_place() const override { return device_carrier_ == Carrier::kGloo; }

  void abort() noexcept override {
    try {
      for (const Group& each : {device_, host_}) {
        if (each) each->abort();
      }
    } catch (const std::exception&) {  // the process ends in any case
    }
  }

  void shut_down() noexcept override {
    if (device_carrier_ != Carrier::kNccl) return;
    try {
      device_->shutdown();
    } catch (const std::exception&) {  // nothing is left to lose
    }
  }

 private:
  const Group& group(Where where) const { return where == Where::kHost ? host_ : device_; }

  const World world_;
  const std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  Group host_, device_;
  Carrier device_carrier_ = Carrier::kByDevice;  // what it came to
};

BackendMaker& stand_in() {
  static BackendMaker maker;
  return maker;
}

}  // namespace

std::unique_ptr<RankStore> connect_store(const World& world,
                                         bool as_host,
                                         std::chrono::seconds timeout) {
  return std::make_unique<C10dStore>(connect(world, as_host, timeout), world.store_prefix);
}

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer() : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  impl_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

StoreServer::~StoreServer() = default;

uint16_t StoreServer::port() const {
  return impl_->store->getPort();
}

std::unique_ptr<RankStore> StoreServer::open() const {
  return std::make_unique<C10dStore>(impl_->store, World{}.store_prefix);
}

void stand_in_for_backends(BackendMaker make) {
  stand_in() = std::move(make);
}

std::unique_ptr<GroupBackend> make_backend_of_group(const World& world,
                                                    std::chrono::seconds timeout) {
  return stand_in() ? stand_in()(world, timeout) : make_backend(world, timeout);
}

std::unique_ptr<GroupBackend> make_backend(const World& world, std::chrono::seconds timeout) {
  return std::make_unique<C10dBackend>(world, timeout);
}

void leave_failures_to_our_watch() {
  for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING",
                           "TORCH_NCCL_RETHROW_CUDA_ERRORS",
                           "TORCH_NCCL_DUMP_ON_TIMEOUT",
                           "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
                           "TORCH_NCCL_ENABLE_MONITORING",
                           "TORCH_NCCL_DESYNC_DEBUG",
                           "TORCH_NCCL_PROPAGATE_ERROR",
                           "TORCH_NCCL_BLOCKING_WAIT"}) {
    ::setenv(name, "0", /*overwrite=*/1);
  }
}

MakeNcclGroup* load_nccl_module() {
  ModuleFunction found = function_of_module(kNcclModule, kMakeNcclGroup);
  if (found.function != nullptr) {
    const ModuleFunction check = function_of_module(kNcclModule, kFaultOfNccl);
    found.fault = check.fault;
    if (check.function != nullptr) reinterpret_cast<FaultOfNccl*>(check.function)(found.fault);
  }
  if (!found.fault.empty()) {
    throw ConfigError(
        "several GPUs need NCCL, and the module for it cannot be loaded: {}\n"
        "  Programs built by scripts/build.sh --cuda have it, and so do wheels and archives made of "
        "such a build. DALLE2_GROUP=gloo trains without NCCL, more slowly.",
        found.fault);
  }
  return reinterpret_cast<MakeNcclGroup*>(found.function);
}

}  // namespace dalle2
