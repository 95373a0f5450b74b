// SPDX-License-Identifier: MIT
// The whole of libdalle2_cuda_graph.so, and the only file that sees CUDA's graphs.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "kernels/gpu/device_graph.h"

namespace dalle2 {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(CudaGraph* neighbour)
      : pool_(neighbour == nullptr ? at::cuda::graph_pool_handle() : neighbour->pool_) {}

  /// Other threads, such as those that load pictures, may meanwhile use the GPU as they like.
  void begin_capture() override {
    c10::cuda::CUDACachingAllocator::emptyCache();  // the graph's memory is apart from it
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  }
  void end_capture() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

extern "C" MakeCudaGraph dalle2_make_cuda_graph;

void dalle2_make_cuda_graph(DeviceGraph* neighbour, std::shared_ptr<DeviceGraph>& made) {
  made = std::make_shared<CudaGraph>(static_cast<CudaGraph*>(neighbour));
}

}  // namespace dalle2
