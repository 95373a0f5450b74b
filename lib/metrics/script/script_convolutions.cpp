// SPDX-License-Identifier: MIT
#include "metrics/script/script_convolutions.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/script.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/cpu_algorithms.h"

namespace dalle2 {
namespace {

using torch::jit::Node;
using torch::jit::Value;

/// The places of arguments of aten::conv2d; those of aten::_convolution, which traces have, begin alike.
enum Argument : size_t { kX, kWeight, kBias, kStride, kPadding, kDilation };
constexpr size_t kConv2dGroups = 6;
constexpr size_t kTransposed = 6, kConvolutionGroups = 8;

/// The number that all entries of a list are, of a constant one or of one made of constants.
std::optional<int64_t> same_number(const Value* list) {
  std::vector<int64_t> numbers;
  if (list->node()->kind() == c10::prim::ListConstruct) {
    for (const Value* entry : list->node()->inputs()) {
      const auto constant = torch::jit::toIValue(entry);
      if (!constant || !constant->isInt()) return std::nullopt;
      numbers.push_back(constant->toInt());
    }
  } else if (const auto constant = torch::jit::toIValue(list); constant && constant->isIntList()) {
    numbers = constant->toIntVector();
  }
  const bool same =
      !numbers.empty() && std::all_of(numbers.begin(), numbers.end(), [&](int64_t number) {
        return number == numbers.front();
      });
  return same ? std::optional(numbers.front()) : std::nullopt;
}

bool is_constant(const Value* value, const c10::IValue& expected) {
  const auto constant = torch::jit::toIValue(value);
  return constant && *constant == expected;
}

struct Convolution {
  at::Tensor weight;  // [out, in, k, k]
  int64_t stride, padding;
};

/// A convolution of maps with known filters, neither dilated nor grouped.
std::optional<Convolution> convolution_of(const Node& node) {
  const bool is_traced = node.kind() == c10::Symbol::fromQualString("aten::_convolution");
  if (!is_traced && node.kind() != c10::aten::conv2d) return std::nullopt;
  const auto weight = torch::jit::toIValue(node.input(kWeight));
  const auto stride = same_number(node.input(kStride)), padding = same_number(node.input(kPadding));
  const bool is_plain =
      same_number(node.input(kDilation)) == 1 &&
      is_constant(node.input(is_traced ? kConvolutionGroups : kConv2dGroups), int64_t{1}) &&
      (!is_traced || is_constant(node.input(kTransposed), false));
  if (!is_plain || !stride || !padding || !weight || !weight->isTensor()) return std::nullopt;
  const at::Tensor filters = weight->toTensor();
  if (filters.dim() != 4) return std::nullopt;
  return Convolution{filters, *stride, *padding};
}

int64_t replace_in(torch::jit::Block& block) {
  int64_t replaced = 0;
  for (auto next = block.nodes().begin(); next != block.nodes().end();) {
    Node& node = **next;
    ++next;  // the node may be removed
    for (torch::jit::Block* inner : node.blocks()) replaced += replace_in(*inner);
    const auto found = convolution_of(node);
    if (!found) continue;
    torch::jit::Graph& graph = *node.owningGraph();
    const torch::jit::WithInsertPoint before(&node);
    Node* const own = graph.insertNode(graph.create(
        c10::Symbol::fromQualString("dalle2::convolution"),
        {node.input(kX),
         graph.insertConstant(found->weight.contiguous(at::MemoryFormat::ChannelsLast)),
         node.input(kBias),
         graph.insertConstant(found->stride),
         graph.insertConstant(found->padding)}));
    own->output()->setType(node.output()->type());
    node.output()->replaceAllUsesWith(own->output());
    node.destroy();
    ++replaced;
  }
  return replaced;
}

}  // namespace

int64_t use_own_convolutions(torch::jit::Module& network, const at::Device& device) {
  if (!uses_cpu_algorithms(device)) return 0;
  const auto graph = network.get_method("forward").graph();
  const int64_t replaced = replace_in(*graph->block());
  torch::jit::EliminateDeadCode(graph);  // the filters in their old order
  return replaced;
}

}  // namespace dalle2
