// SPDX-License-Identifier: MIT
#include "checkpoint/clip/clip_by_arguments.h"

#include <torch/types.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace dalle2 {
namespace {

int64_t layers_in(const StateDict& tensors, const ExpectedTensors::Layers& expected) {
  int64_t layers = 0;
  while (find_tensor(tensors, fmt::format("{}.{}.{}", expected.list, layers, expected.tensor)) !=
         nullptr)
    ++layers;
  return layers;
}

}  // namespace

const ClipMaker* maker_of(const StateDict& tensors) {
  for (const ClipMaker* maker : {&kXClip, &kCoca}) {
    const bool has_all =
        std::all_of(maker->signs.begin(), maker->signs.end(), [&](const char* name) {
          return find_tensor(tensors, name) != nullptr;
        });
    if (has_all) return maker;
  }
  return nullptr;
}

void check_arguments(const ExpectedTensors& expected,
                     const ClipMaker& maker,
                     const std::string& config_where,
                     const StateDict& tensors,
                     const std::string& path) {
  std::vector<std::string> faults;
  for (const ExpectedTensors::Shape& each : expected.shapes) {
    const at::Tensor* const found = find_tensor(tensors, each.tensor);
    if (found != nullptr && found->sizes() == each.sizes) continue;
    faults.push_back(fmt::format("{}: expected {} (by {}), got {}",
                                 each.tensor,
                                 shape_text(each.sizes),
                                 each.arguments,
                                 found == nullptr ? "none" : shape_text(found->sizes())));
  }
  for (const ExpectedTensors::Layers& each : expected.layers) {
    const int64_t found = layers_in(tensors, each);
    if (found == each.count) continue;
    faults.push_back(fmt::format(
        "{}: expected {} layers (by {}), got {}", each.list, each.count, each.argument, found));
  }
  if (faults.empty()) return;
  throw DataError(
      "{}: these weights are of another CLIP than {} describes:{}\n  Give there the arguments of "
      "{}.",
      printable(path),
      config_where,
      indented_list(faults),
      maker.constructor);
}

void throw_without_arguments(const ClipMaker& maker, const std::string& path) {
  throw ConfigError(
      "{}: {}, whose weights do not say all that it was made with\n  Put the arguments of its "
      "constructor into {} beside the file, e.g. {}; in a config give them as "
      "\"base_model_kwargs\", with \"make\": \"{}\".",
      printable(path),
      maker.name,
      maker.config_name,
      maker.example,
      maker.make);
}

}  // namespace dalle2
