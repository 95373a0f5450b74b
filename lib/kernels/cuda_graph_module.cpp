// SPDX-License-Identifier: MIT
// The whole of libdalle2_cuda_graph.so, and the only file that sees CUDA's graphs.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "kernels/device_graph.h"

namespace dalle2 {
namespace {

/// Runs a step and ignores its exception. @return whether the step succeeded
template <class Step>
bool attempt(const Step& step) {
  try {
    step();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(CudaGraph* neighbour)
      : pool_(neighbour == nullptr ? at::cuda::graph_pool_handle() : neighbour->pool_) {}

  /// Other threads, such as those that load pictures, may meanwhile use the GPU as they like.
  void begin_capture() override {
    c10::cuda::CUDACachingAllocator::emptyCache();  // the graph's memory is apart from it
    device_ = c10::cuda::current_device();
    undone_if_it_throws([&] { graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal); });
  }
  void end_capture() override {
    undone_if_it_throws([&] { graph_.capture_end(); });
  }
  void replay() override { graph_.replay(); }

 private:
  /// When a recording fails, LibTorch leaves its allocators in recording mode. They would keep allocating from the graph's memory, and
  /// never use other memory again. (The default generator also stays in this mode, but no draw uses that generator.)
  template <class Step>
  void undone_if_it_throws(const Step& step) {
    try {
      step();
    } catch (...) {
      using namespace c10::cuda;
      if (attempt([&] { CUDACachingAllocator::endAllocateToPool(device_, pool_); }))
        attempt([&] { CUDACachingAllocator::releasePool(device_, pool_); });
      at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
      if (attempt([&] { host->end_allocate_to_pool(pool_); }))
        attempt([&] { host->release_pool(pool_); });
      throw;
    }
  }

  at::cuda::MempoolId_t pool_;
  c10::DeviceIndex device_ = 0;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

extern "C" MakeCudaGraph dalle2_make_cuda_graph;

void dalle2_make_cuda_graph(DeviceGraph* neighbour, std::shared_ptr<DeviceGraph>& made) {
  made = std::make_shared<CudaGraph>(static_cast<CudaGraph*>(neighbour));
}

}  // namespace dalle2
