// SPDX-License-Identifier: MIT
#include "kernels/device_graph.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/this_process.h"

namespace dalle2 {
namespace {

struct Makers {
  std::mutex mutex;
  std::map<c10::DeviceType, GraphMaker> by_type;
};

/// There before main(), when devices of tests register.
Makers& makers() {
  static auto* const all = new Makers;
  return *all;
}

}  // namespace

void set_graph_maker(c10::DeviceType type, GraphMaker maker) {
  const std::lock_guard lock(makers().mutex);
  makers().by_type[type] = std::move(maker);
}

GraphMaker graph_maker(c10::DeviceType type) {
  const std::lock_guard lock(makers().mutex);
  const auto found = makers().by_type.find(type);
  if (found != makers().by_type.end()) return found->second;
  if (type != c10::DeviceType::CUDA) return {};
  return [make = load_cuda_graph_module()](DeviceGraph* neighbour) {
    std::shared_ptr<DeviceGraph> made;
    make(neighbour, made);
    return made;
  };
}

MakeCudaGraph* load_cuda_graph_module() {
  const ModuleFunction found = function_of_module(kCudaGraphModule, kMakeCudaGraph);
  if (found.function == nullptr) {
    throw ConfigError(
        "CUDA graphs need a module that cannot be loaded: {}\n"
        "  Programs built by scripts/build.sh --cuda have it, and so do wheels and archives made of "
        "such a build.",
        found.fault);
  }
  return reinterpret_cast<MakeCudaGraph*>(found.function);
}

}  // namespace dalle2
