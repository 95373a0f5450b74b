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
#include "kernels/gpu/device_graph.h"

namespace dalle2 {
namespace {

constexpr int64_t kPassesWithout =
    3;                               // before one is recorded, as LibTorch's own recordings have it
constexpr int64_t kMostGraphs = 16;  // each keeps the memory of its inputs
constexpr size_t kMostKeys = 64;     // of passes with a graph and without
/// Of the difference between the gradients of both ways, relative to the gradients. Atomic additions change last bits; stale inputs
/// change everything. A run with deterministic algorithms has no atomic additions.
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

std::optional<std::string> PassGraphs::fault_of(const at::Device& device) {
  try {
    if (graph_maker(device.type())) return std::nullopt;
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "only GPUs have graphs";
}

std::string PassGraphs::text_of(const Graph& graph) const {
  int64_t samples = 0;
  for (const Key::Shape& shape : graph.key.shapes) {
    if (samples == 0 && !shape.sizes.empty()) samples = shape.sizes.front();
  }
  return fmt::format("{}{}passes of {} samples{}{}",
                     part_name_,
                     part_name_.empty() ? "" : ": ",
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

PassGraphs::Graph* PassGraphs::find(const RecordablePass& pass, double factor) const {
  const Key key = key_of(pass, factor);
  for (const auto& graph : graphs_) {
    if (graph->key == key) return graph.get();
  }
  return nullptr;
}

PassGraphs::Graph* PassGraphs::find_or_add(const RecordablePass& pass, double factor) {
  if (Graph* const found = find(pass, factor)) return found;
  make_room();
  graphs_.push_back(std::make_unique<Graph>());
  graphs_.back()->key = key_of(pass, factor);
  return graphs_.back().get();
}

/// Of the passes without a graph the one that came first goes: shapes of texts may be many.
void PassGraphs::make_room() {
  if (graphs_.size() < kMostKeys) return;
  const auto oldest = std::find_if(graphs_.begin(), graphs_.end(), [](const auto& each) {
    return each->state == Graph::State::without || each->state == Graph::State::given_up;
  });
  graphs_.erase(oldest);
}

at::Tensor PassGraphs::replay(const RecordablePass& pass, double factor) {
  const Graph* const graph = find(pass, factor);
  if (graph == nullptr || graph->state != Graph::State::ready) return {};
  return replay(*graph, pass.inputs);
}

at::Tensor PassGraphs::run(const RecordablePass& pass, double factor, const Work& work) {
  if (has_stopped_) return work(pass.inputs, /*is_recorded=*/false);
  Graph& graph = *find_or_add(pass, factor);
  if (graph.state == Graph::State::unchecked) return check(graph, pass.inputs, work);
  // The check comes with the next pass: it finds out what a pass has from the host, which stays as it was when it was recorded.
  if (graph.state == Graph::State::without && ++graph.passes > kPassesWithout)
    record(graph, pass.inputs, work);
  return run_without(pass.inputs, work);
}

/// Without a graph. Where graphs have taken the memory for that, they are given up.
at::Tensor PassGraphs::run_without(const Tensors& inputs, const Work& work) {
  const bool holds_memory = std::any_of(
      graphs_.begin(), graphs_.end(), [](const auto& each) { return each->work != nullptr; });
  if (!holds_memory) return work(inputs, /*is_recorded=*/false);
  const Before before(gradients_, buffers_);
  try {
    return work(inputs, /*is_recorded=*/false);
  } catch (const c10::OutOfMemoryError&) {
    stop_recording();
    before.restore();
  }
  return work(inputs, /*is_recorded=*/false);
}

void PassGraphs::stop_recording() {
  has_stopped_ = true;
  graphs_.clear();
  at::getDeviceAllocator(device_.type())->emptyCache();
  log_warning(
      "train",
      "{}{}passes run without CUDA graphs from now on: the GPU has no memory left for both\n  The "
      "results are the same. Where the GPU waits for the host, steps take longer.",
      part_name_,
      part_name_.empty() ? "" : ": ");
}

void PassGraphs::give_up(Graph& graph, const std::string& reason) {
  graph.state = Graph::State::given_up;
  graph.work.reset();
  graph.inputs.clear();
  graph.loss.reset();
  at::getDeviceAllocator(device_.type())->emptyCache();
  log_warning(
      "train",
      "{}: run without a CUDA graph: {}\n  The results are the same. Where the GPU waits for the "
      "host, steps take longer.",
      text_of(graph),
      reason);
}

void PassGraphs::record(Graph& graph, const Tensors& inputs, const Work& work) {
  const int64_t recorded = std::count_if(
      graphs_.begin(), graphs_.end(), [](const auto& each) { return each->work != nullptr; });
  if (recorded >= kMostGraphs) {
    if (!std::exchange(has_told_of_limit_, true)) {
      log_warning("train",
                  "{}{}passes have more than {} shapes; those of further shapes are not recorded",
                  part_name_,
                  part_name_.empty() ? "" : ": ",
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
    const auto neighbour = std::find_if(
        graphs_.begin(), graphs_.end(), [](const auto& each) { return each->work != nullptr; });
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
  at::Tensor by_graph, loss_by_graph;
  {
    const torch::NoGradGuard no_grad;
    const Before before(gradients_, buffers_);
    try {
      loss_by_graph = replay(graph, inputs);
      by_graph = gradients_.values().clone();
    } catch (const std::exception& error) {
      give_up(graph, error.what());
    }
    before.restore();
  }
  const at::Tensor loss = run_without(inputs, work);
  if (has_stopped_) return loss;  // the graph is gone
  if (graph.state == Graph::State::given_up) return loss;
  const torch::NoGradGuard no_grad;
  const at::Tensor& expected = gradients_.values();
  const double size = expected.norm().item<double>();
  const double loss_size = loss.abs().item<double>();
  if (!std::isfinite(size) || !std::isfinite(loss_size))
    return loss;  // says nothing: the next pass will
  const double rest = by_graph.sub_(expected).norm().item<double>();
  const double loss_rest = (loss_by_graph - loss).abs().item<double>();
  if (graph.received != gradients_.received()) {
    give_up(graph, "other parameters have a gradient than when it was recorded");
  } else if (!(rest <= tolerance() * size) || !(loss_rest <= tolerance() * loss_size)) {
    give_up(graph,
            fmt::format(
                "it gives other gradients (by {:.1e} of them) or another loss (by {:.1e} of it)",
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
