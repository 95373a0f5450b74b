// SPDX-License-Identifier: MIT
// Forward and backward pass of a part as one CUDA graph: small networks are limited by the host, which starts hundreds of kernels a pass.
// A pass is recorded once for each shape of its inputs, and checked against the same pass without a graph before it is used.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/flat_parameters.h"

namespace dalle2 {

using Tensors = std::vector<at::Tensor>;

/// A pass whose operations are the same each time, apart from the values of its inputs.
struct RecordablePass {
  /// On the device, samples in the first dimension where there is one; undefined ones are allowed.
  Tensors inputs;
  /// What else decides which operations the pass consists of, in words: "conditioned on itself".
  std::string variant = "";
};

/// A variant that decoder and prior have.
inline constexpr const char* kSelfConditioned = "conditioned on the network's own estimate";

/// The graphs of a part. What a pass uses besides its inputs (weights, buffers, gradients) must stay at the same address. After a move,
/// the caller has to call forget().
class PassGraphs {
 public:
  /// Runs the pass on these inputs and adds to the gradients. @param is_recorded the pass is being recorded, so the work must neither
  /// wait for the device nor measure its time
  /// @return [] the loss of the pass, detached
  using Work = std::function<at::Tensor(const Tensors& inputs, bool is_recorded)>;

  /// @param part_name in messages, empty where the run has one part @param gradients has to outlive this
  /// @param buffers that a pass may write, such as running means
  PassGraphs(std::string part_name,
             FlatGradients& gradients,
             std::vector<at::Tensor> buffers,
             const at::Device& device);
  ~PassGraphs();

  /// Discards all graphs. The owner calls this when something that a pass uses may have moved in memory.
  void forget();

  /// Why `processes` that train together have no graphs on a device, as a message on /train/cuda_graph; none if they have.
  static std::optional<std::string> fault_of(const at::Device& device, int64_t processes);

  /// Runs the pass by its graph. @param factor of the loss; the work multiplies by this factor itself, here it only tells passes apart
  /// @return [] the loss; undefined if the pass has no usable graph, and run() has to be called instead
  at::Tensor replay(const RecordablePass& pass, double factor);
  /// Runs the pass without a graph, and prepares one. The first passes of a kind do what is needed only once (choosing algorithms,
  /// allocating workspaces). A later pass is also recorded, and the pass after that checks the graph.
  at::Tensor run(const RecordablePass& pass, double factor, const Work& work);

 private:
  struct Key;
  struct Graph;

  Key key_of(const RecordablePass& pass, double factor) const;
  Graph* find(const Key& key) const;
  void record(Graph& graph, const Tensors& inputs, const Work& work);
  at::Tensor replay(const Graph& graph, const Tensors& inputs);
  at::Tensor check(Graph& graph, const Tensors& inputs, const Work& work);
  void give_up(Graph& graph, const std::string& reason);
  std::string prefix() const { return part_name_.empty() ? "" : part_name_ + ": "; }  // of messages
  std::string text_of(const Graph& graph) const;

  std::string part_name_;
  FlatGradients& gradients_;
  std::vector<at::Tensor> buffers_;
  at::Device device_;
  std::optional<c10::Stream> side_;  // on which passes are recorded
  std::vector<std::unique_ptr<Graph>> graphs_;
  bool has_told_of_limit_ = false;
};

}  // namespace dalle2
