// SPDX-License-Identifier: MIT
#include "optim/pass_graphs.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "kernels/device_graph.h"

namespace dalle2 {
namespace {

constexpr int64_t kPassesWithout = 3;  // before a recording, as in LibTorch's own
constexpr int64_t kMostGraphs = 16;    // each keeps the memory of its inputs
constexpr const char* kWithoutGraphs =
    "The results are the same. Where the GPU waits for the host, steps take longer.";
/// The largest relative difference allowed between a pass with and without a graph, for the gradients and for the loss. Atomic additions
/// change the last bits; stale inputs change everything. A run with deterministic algorithms has no atomic additions.
double tolerance() {
  return at::globalContext().deterministicAlgorithms() ? 0.0 : 1e-2;
}

bool has_any(const std::vector<bool>& flags) {
  return std::ranges::find(flags, true) != flags.end();
}

}  // namespace

/// What decides whether two passes have the same operations.
struct PassGraphs::Key {
  struct Shape {
    std::vector<int64_t> sizes, strides;
    std::optional<at::ScalarType> dtype;  ///< none: undefined

    bool operator==(const Shape&) const = default;
  };

  std::vector<Shape> shapes;  ///< of the inputs
  std::string variant;
  double factor = 0;
  std::vector<bool> received;  ///< parameters that have a gradient already, to which the pass adds

  bool operator==(const Key&) const = default;
};

struct PassGraphs::Graph {
  enum class State { without, unchecked, ready, given_up };

  Key key;
  State state = State::without;
  int64_t passes = 0;          ///< without a graph
  Tensors inputs;              ///< which the recorded work reads
  at::Tensor loss;             ///< [] which it writes
  std::vector<bool> received;  ///< parameters that have a gradient after it
  std::shared_ptr<DeviceGraph> work;
};

PassGraphs::PassGraphs(std::string part_name,
                       FlatGradients& gradients,
                       std::vector<at::Tensor> buffers,
                       const at::Device& device)
    : part_name_(std::move(part_name)),
      gradients_(gradients),
      buffers_(std::move(buffers)),
      device_(device) {}

PassGraphs::~PassGraphs() = default;

void PassGraphs::forget() {
  graphs_.clear();
}

std::optional<std::string> PassGraphs::fault_of(const at::Device& device, int64_t processes) {
  std::string place = device.is_cpu() ? "on the CPU" : "on " + device.str();
  std::string reason = "only GPUs have graphs";
  try {
    if (graph_maker(device.type())) {
      if (processes == 1) return std::nullopt;
      place = "with several processes";
      reason = "their gradients are sent while the backward pass runs";
    }
  } catch (const ConfigError& error) {
    reason = error.what();
  }
  return fmt::format("/train/cuda_graph has no effect {}: {}", place, reason);
}

std::string PassGraphs::text_of(const Graph& graph) const {
  int64_t samples = 0;
  for (const Key::Shape& shape : graph.key.shapes) {
    if (samples == 0 && !shape.sizes.empty()) samples = shape.sizes.front();
  }
  return fmt::format("{}passes of {} samples{}{}",
                     prefix(),
                     samples,
                     graph.key.variant.empty() ? "" : ", " + graph.key.variant,
                     has_any(graph.key.received) ? ", added to earlier gradients" : "");
}

PassGraphs::Key PassGraphs::key_of(const RecordablePass& pass, double factor) const {
  Key key{{}, pass.variant, factor, gradients_.received()};
  for (const at::Tensor& input : pass.inputs) {
    key.shapes.push_back(
        input.defined()
            ? Key::Shape{input.sizes().vec(), input.strides().vec(), input.scalar_type()}
            : Key::Shape{});
  }
  return key;
}

PassGraphs::Graph* PassGraphs::find(const Key& key) const {
  for (const auto& graph : graphs_) {
    if (graph->key == key) return graph.get();
  }
  return nullptr;
}

at::Tensor PassGraphs::replay(const RecordablePass& pass, double factor) {
  const Graph* const graph = find(key_of(pass, factor));
  if (graph == nullptr || graph->state != Graph::State::ready) return {};
  return replay(*graph, pass.inputs);
}

at::Tensor PassGraphs::run(const RecordablePass& pass, double factor, const Work& work) {
  Key key = key_of(pass, factor);
  Graph* graph = find(key);
  if (graph == nullptr) {
    graph = graphs_.emplace_back(std::make_unique<Graph>()).get();
    graph->key = std::move(key);
  }
  if (graph->state == Graph::State::unchecked) return check(*graph, pass.inputs, work);
  // The graph is checked in the next pass, not in this one. A number from the host is frozen in the recording, and only a pass with
  // another number reveals this.
  if (graph->state == Graph::State::without && ++graph->passes > kPassesWithout)
    record(*graph, pass.inputs, work);
  return work(pass.inputs, /*is_recorded=*/false);
}

void PassGraphs::give_up(Graph& graph, const std::string& reason) {
  graph.state = Graph::State::given_up;
  graph.work.reset();
  graph.inputs.clear();
  graph.loss.reset();
  at::getDeviceAllocator(device_.type())->emptyCache();
  log_warning(
      "train", "{}: run without a CUDA graph: {}\n  {}", text_of(graph), reason, kWithoutGraphs);
}

void PassGraphs::record(Graph& graph, const Tensors& inputs, const Work& work) {
  DeviceGraph* neighbour = nullptr;  // graphs share their memory
  int64_t recorded = 0;
  for (const auto& each : graphs_) {
    if (each->work != nullptr && recorded++ == 0) neighbour = each->work.get();
  }
  if (recorded >= kMostGraphs) {
    if (!std::exchange(has_told_of_limit_, true)) {
      log_warning("train",
                  "{}passes have more than {} shapes; those of further shapes are not recorded",
                  prefix(),
                  kMostGraphs);
    }
    graph.state = Graph::State::given_up;
    return;
  }
  const std::vector<bool> before = gradients_.received();
  const c10::impl::VirtualGuardImpl device(device_.type());
  std::string fault;
  bool has_begun = false;
  try {
    const GraphMaker make = graph_maker(device_.type());
    if (!make) throw ConfigError("{} has no graphs", device_.str());
    graph.work = make(neighbour);
    for (const at::Tensor& input : inputs)
      graph.inputs.push_back(input.defined() ? input.clone() : input);
    if (!side_) side_ = device.getStreamFromGlobalPool(device_);
    c10::Event so_far(device_.type());
    so_far.record(device.getStream(device_));
    const c10::StreamGuard on_side(*side_);
    so_far.block(*side_);
    gradients_.follow_stream();
    graph.work->begin_capture();
    has_begun = true;
    graph.loss = work(graph.inputs, /*is_recorded=*/true);
  } catch (const c10::Error& error) {
    fault = error.what_without_backtrace();
  } catch (const std::exception& error) {
    fault = error.what();
  }
  try {
    const c10::StreamGuard on_side(side_.value_or(device.getStream(device_)));
    if (has_begun) graph.work->end_capture();
  } catch (const std::exception& error) {
    if (fault.empty()) fault = error.what();  // else a consequence of it
  }
  graph.received = gradients_.received();
  gradients_.restore_account(before);
  gradients_.follow_stream();
  if (!fault.empty()) return give_up(graph, fault);
  graph.state = Graph::State::unchecked;
}

at::Tensor PassGraphs::replay(const Graph& graph, const Tensors& inputs) {
  const torch::NoGradGuard no_grad;
  Tensors to, from;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    to.push_back(graph.inputs[i]);
    from.push_back(inputs[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
  graph.work->replay();
  gradients_.restore_account(graph.received);
  return graph.loss.clone();  // the next replay writes it again
}

/// The pass runs both ways; what stays is the result of the one without a graph.
at::Tensor PassGraphs::check(Graph& graph, const Tensors& inputs, const Work& work) {
  at::Tensor gradients_by_graph, loss_by_graph;
  {
    const torch::NoGradGuard no_grad;
    const std::vector<bool> received = gradients_.received();
    const at::Tensor values = has_any(received) ? gradients_.values().clone() : at::Tensor();
    Tensors buffers;
    for (const at::Tensor& buffer : buffers_) buffers.push_back(buffer.clone());
    loss_by_graph = replay(graph, inputs);
    gradients_by_graph = gradients_.values().clone();
    if (values.defined()) gradients_.values().copy_(values);
    gradients_.restore_account(received);
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(buffers[i]);
  }
  const at::Tensor loss = work(inputs, /*is_recorded=*/false);
  const torch::NoGradGuard no_grad;
  const at::Tensor& expected = gradients_.values();
  const double size = expected.norm().item<double>();
  const double loss_size = loss.abs().item<double>();
  if (!std::isfinite(size) || !std::isfinite(loss_size))
    return loss;  // says nothing: the next pass will
  const double rest = gradients_by_graph.sub_(expected).norm().item<double>();
  const double loss_rest = (loss_by_graph - loss).abs().item<double>();
  if (graph.received != gradients_.received()) {
    give_up(graph, "the parameters that have a gradient are not those of the recording");
  } else if (!(rest <= tolerance() * size) || !(loss_rest <= tolerance() * loss_size)) {
    give_up(
        graph,
        fmt::format(
            "the graph's gradients differ by {:.1e} and its loss by {:.1e}, relative to those of the pass "
            "without a graph",
            rest / size,
            loss_rest / loss_size));
  } else {
    graph.state = Graph::State::ready;
    at::getDeviceAllocator(device_.type())->emptyCache();
    log_info("train", "{}: one CUDA graph each from now on", text_of(graph));
  }
  return loss;
}

}  // namespace dalle2
