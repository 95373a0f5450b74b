// SPDX-License-Identifier: MIT
#include "optim/pass_graphs.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/this_process.h"
#include "kernels/gpu/device_graph.h"

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
  return std::find(flags.begin(), flags.end(), true) != flags.end();
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

/// What a pass changes, to go back to.
class PassGraphs::Before {
 public:
  Before(FlatGradients& gradients, const std::vector<at::Tensor>& buffers)
      : gradients_(gradients), received_(gradients.received()), buffers_(buffers) {
    const torch::NoGradGuard no_grad;
    if (has_any(received_)) values_ = gradients.values().clone();
    for (const at::Tensor& buffer : buffers_) kept_.push_back(buffer.clone());
  }
  void restore() const {
    const torch::NoGradGuard no_grad;
    if (values_.defined()) gradients_.values().copy_(values_);
    gradients_.restore_account(received_);
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(kept_[i]);
  }

 private:
  FlatGradients& gradients_;
  std::vector<bool> received_;
  const std::vector<at::Tensor>& buffers_;
  at::Tensor values_;
  std::vector<at::Tensor> kept_;
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

  bool is_recorded() const { return work != nullptr; }
};

/// All that there are in this process: parts share a device.
struct PassGraphs::Living {
  std::mutex mutex;
  std::vector<PassGraphs*> all;
};

PassGraphs::Living& PassGraphs::living() {
  static Living all;
  return all;
}

std::vector<PassGraphs*> PassGraphs::that_hold_memory() const {
  const std::lock_guard lock(living().mutex);
  std::vector<PassGraphs*> found;
  for (PassGraphs* const each : living().all) {
    if (each->device_ == device_ && each->hold_memory()) found.push_back(each);
  }
  return found;
}

PassGraphs::PassGraphs(std::string part_name,
                       FlatGradients& gradients,
                       std::vector<at::Tensor> buffers,
                       const at::Device& device)
    : part_name_(std::move(part_name)),
      gradients_(gradients),
      buffers_(std::move(buffers)),
      device_(device) {
  const std::lock_guard lock(living().mutex);
  living().all.push_back(this);
}

PassGraphs::~PassGraphs() {
  const std::lock_guard lock(living().mutex);
  std::erase(living().all, this);
}

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

/// Of messages.
std::string PassGraphs::prefix() const {
  return part_name_.empty() ? "" : part_name_ + ": ";
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

PassGraphs::Graph& PassGraphs::find_or_add(const RecordablePass& pass, double factor) {
  Key key = key_of(pass, factor);
  if (Graph* const found = find(key)) return *found;
  graphs_.push_back(std::make_unique<Graph>());
  graphs_.back()->key = std::move(key);
  return *graphs_.back();
}

at::Tensor PassGraphs::replay(const RecordablePass& pass, double factor) {
  const Graph* const graph = find(key_of(pass, factor));
  if (graph == nullptr || graph->state != Graph::State::ready) return {};
  return replay(*graph, pass.inputs);
}

at::Tensor PassGraphs::run(const RecordablePass& pass, double factor, const Work& work) {
  if (has_stopped_) return work(pass.inputs, /*is_recorded=*/false);
  Graph& graph = find_or_add(pass, factor);
  if (graph.state == Graph::State::unchecked) return check(graph, pass.inputs, work);
  // The graph is checked in the next pass, not in this one. A number from the host is frozen in the recording, and only a pass with
  // another number reveals this.
  if (graph.state == Graph::State::without && ++graph.passes > kPassesWithout)
    record(graph, pass.inputs, work);
  Tensors nothing;
  return run_without(pass.inputs, work, nothing);
}

std::vector<std::unique_ptr<PassGraphs::Graph>>::const_iterator PassGraphs::first_recorded() const {
  return std::find_if(
      graphs_.begin(), graphs_.end(), [](const auto& each) { return each->is_recorded(); });
}

bool PassGraphs::hold_memory() const {
  return first_recorded() != graphs_.end();
}

at::Tensor PassGraphs::run_without(const Tensors& inputs, const Work& work, Tensors& beside) {
  if (that_hold_memory().empty()) return work(inputs, /*is_recorded=*/false);
  std::optional<Before> before;
  std::string fault;
  try {
    before.emplace(gradients_, buffers_);
    return work(inputs, /*is_recorded=*/false);
  } catch (const c10::Error& error) {  // cuDNN has other words for a lack of memory
    fault = error.what_without_backtrace();
  }
  for (PassGraphs* const each : that_hold_memory()) each->stop_recording(fault);
  if (before) before->restore();
  before.reset();
  beside.clear();
  at::getDeviceAllocator(device_.type())->emptyCache();
  return work(inputs, /*is_recorded=*/false);
}

void PassGraphs::stop_recording(const std::string& reason) {
  has_stopped_ = true;
  graphs_.clear();
  log_warning(
      "train",
      "{}passes run without CUDA graphs from now on, to have their memory for others: {}\n  {}",
      prefix(),
      reason,
      kWithoutGraphs);
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
  const int64_t recorded = std::count_if(
      graphs_.begin(), graphs_.end(), [](const auto& each) { return each->is_recorded(); });
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
  bool has_begun = false, has_memory = true;
  try {
    const GraphMaker make = graph_maker(device_.type());
    if (!make) throw ConfigError("{} has no graphs", device_.str());
    const auto neighbour = first_recorded();
    graph.work = make(neighbour == graphs_.end() ? nullptr : (*neighbour)->work.get());
    for (const at::Tensor& input : inputs)
      graph.inputs.push_back(input.defined() ? input.clone() : input);
    if (!side_) side_ = device.getStreamFromGlobalPool(device_);
    c10::Event so_far(device_.type());
    so_far.record(device.getStream(device_));
    const c10::StreamGuard on_side(*side_);
    so_far.block(*side_);
    graph.work->begin_capture();
    has_begun = true;
    graph.loss = work(graph.inputs, /*is_recorded=*/true);
  } catch (const c10::Error& error) {
    fault = error.what_without_backtrace();
    has_memory =
        dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr && !says_out_of_memory(fault);
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
  if (!fault.empty()) give_up(graph, fault);
  // What the recording took stays in the memory that graphs share.
  if (!has_memory && hold_memory()) return stop_recording(fault);
  if (fault.empty()) graph.state = Graph::State::unchecked;
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
  Tensors by_graph;  // gradients, loss
  std::optional<Before> before;
  try {
    const torch::NoGradGuard no_grad;
    before.emplace(gradients_, buffers_);
    const at::Tensor loss = replay(graph, inputs);
    by_graph = {gradients_.values().clone(), loss};
  } catch (const std::exception& error) {
    give_up(graph, error.what());
  }
  if (before) before->restore();
  before.reset();
  const at::Tensor loss = run_without(inputs, work, by_graph);
  if (has_stopped_) return loss;  // the graph is gone
  if (graph.state == Graph::State::given_up) return loss;
  const torch::NoGradGuard no_grad;
  const at::Tensor& expected = gradients_.values();
  const double size = expected.norm().item<double>();
  const double loss_size = loss.abs().item<double>();
  if (!std::isfinite(size) || !std::isfinite(loss_size))
    return loss;  // says nothing: the next pass will
  const double rest = by_graph[0].sub_(expected).norm().item<double>();
  const double loss_rest = (by_graph[1] - loss).abs().item<double>();
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
