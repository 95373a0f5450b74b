// SPDX-License-Identifier: MIT
// Collectives of ranks that are threads and have their tensors on the fake device, or on the CPU as if it
// were one: Gloo on copies in the host's memory, which reach the tensors when a rank waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "dist/process_group_backend.h"

namespace dalle2::test {

/// How backends of all ranks ended.
struct GroupEnds {
  std::atomic<int> shut_down = 0, aborted = 0;
  /// A communicator that a lost peer keeps from ending.
  std::chrono::seconds abort_takes{0};
};

class FakeDeviceGroup : public GroupBackend {
 public:
  FakeDeviceGroup(std::unique_ptr<GroupBackend> host, std::shared_ptr<GroupEnds> ends)
      : host_(std::move(host)), ends_(std::move(ends)) {}

  void open_device(const at::Device& /*device*/) override { host_->open_device(at::kCPU); }
  std::shared_ptr<BackendWork> all_reduce(Where where, at::Tensor tensor, bool maximum) override {
    const at::Tensor copy = copy_of(tensor);
    return back({{copy, tensor}}, host_->all_reduce(where, copy, maximum));
  }
  std::shared_ptr<BackendWork> broadcast(at::Tensor tensor, int root) override {
    const at::Tensor copy = copy_of(tensor);
    return back({{copy, tensor}}, host_->broadcast(copy, root));
  }
  std::shared_ptr<BackendWork> all_gather(Where where, at::Tensor whole, at::Tensor part) override {
    const at::Tensor copy = copy_of(whole);
    return back({{copy, whole}}, host_->all_gather(where, copy, copy_of(part)));
  }
  std::shared_ptr<BackendWork> gather_on_main(at::Tensor whole, at::Tensor part) override {
    return host_->gather_on_main(std::move(whole), std::move(part));
  }
  std::shared_ptr<BackendWork> reduce(at::Tensor tensor, int root) override {
    const at::Tensor copy = copy_of(tensor);
    return back({{copy, tensor}}, host_->reduce(copy, root));
  }
  bool sums_depend_on_place() const override { return host_->sums_depend_on_place(); }
  void abort() noexcept override {
    ++ends_->aborted;
    // The group leaves it behind: what it would do afterwards concerns nobody.
    const auto until = std::chrono::steady_clock::now() + ends_->abort_takes;
    while (std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  void shut_down() noexcept override { ++ends_->shut_down; }

 private:
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;  // the host's, the device's

  /// Copies what the host has got to the device, in the waiting thread's stream.
  class Work : public BackendWork {
   public:
    Work(std::shared_ptr<BackendWork> host, Copies copies)
        : host_(std::move(host)), copies_(std::move(copies)) {}
    void wait() override {
      host_->wait();
      const at::NoGradGuard no_grad;
      for (auto& [of_host, of_device] : copies_) of_device.copy_(of_host);
    }
    WorkStatus status() noexcept override { return host_->status(); }

   private:
    std::shared_ptr<BackendWork> host_;
    Copies copies_;
  };

  static at::Tensor copy_of(const at::Tensor& tensor) {
    return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  static std::shared_ptr<BackendWork> back(Copies copies, std::shared_ptr<BackendWork> host) {
    return std::make_shared<Work>(std::move(host), std::move(copies));
  }

  std::unique_ptr<GroupBackend> host_;
  std::shared_ptr<GroupEnds> ends_;
};

/// Such groups, for as long as it lives.
class FakeDeviceGroups {
 public:
  FakeDeviceGroups() {
    stand_in_for_backends([ends = ends](const World& world, std::chrono::seconds timeout) {
      return std::make_unique<FakeDeviceGroup>(make_backend(world, timeout), ends);
    });
  }
  ~FakeDeviceGroups() { stand_in_for_backends(nullptr); }
  FakeDeviceGroups(const FakeDeviceGroups&) = delete;
  FakeDeviceGroups& operator=(const FakeDeviceGroups&) = delete;

  const std::shared_ptr<GroupEnds> ends = std::make_shared<GroupEnds>();
};

}  // namespace dalle2::test
