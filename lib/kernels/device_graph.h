// SPDX-License-Identifier: MIT
// Work of a GPU that is recorded once and then started as a whole: a CUDA graph. The host starts one graph in the place of hundreds of
// kernels, each of which costs it microseconds.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace dalle2 {

/// Usage: begin_capture(), the work, end_capture(), then replay() as often as needed. The recorded work uses the same memory each time.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// From here on, work on the current stream is recorded instead of done. The stream must not be the device's default stream.
  /// @throws c10::Error
  virtual void begin_capture() = 0;
  /// Ends the recording, even if the recorded work threw an exception.
  /// @throws c10::Error if something between the two calls could not be recorded; the device is then in the same state as before
  virtual void end_capture() = 0;
  /// Starts the recorded work on the current stream.
  virtual void replay() = 0;
};

/// Makes an empty graph. @param neighbour its memory is shared; null: the graph has its own. Graphs that share memory must not run at the
/// same time, and nothing that one leaves in its memory outlives a replay of another
/// @throws std::exception if graphs cannot be used
using GraphMaker = std::function<std::shared_ptr<DeviceGraph>(DeviceGraph* neighbour)>;

/// The maker of a device type; empty if it has no graphs. CUDA has one by default, from load_cuda_graph_module().
/// @throws ConfigError if the module of CUDA's cannot be loaded
GraphMaker graph_maker(c10::DeviceType type);
/// Sets the maker of a device type; an empty function removes it.
void set_graph_maker(c10::DeviceType type, GraphMaker maker);

/// CUDA's graphs are in a shared object beside the program, for they need the symbols of LibTorch's CUDA half.
inline constexpr const char* kCudaGraphModule = "libdalle2_cuda_graph.so";
inline constexpr const char* kMakeCudaGraph = "dalle2_make_cuda_graph";
using MakeCudaGraph = void(DeviceGraph* neighbour, std::shared_ptr<DeviceGraph>& made);

/// Loads the module. @throws ConfigError if it is absent or does not fit
MakeCudaGraph* load_cuda_graph_module();

}  // namespace dalle2
