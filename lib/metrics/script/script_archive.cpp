// SPDX-License-Identifier: MIT
#include "metrics/script/script_archive.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/script.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "base/this_process.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pth.h"
#include "kernels/cpu_algorithms.h"
#include "net/digest.h"
#include "optim/precision.h"

namespace dalle2 {
namespace {

constexpr const char* kAbout = "dalle2.json";

/// What a file that cannot be loaded is, by its beginning.
std::string what_it_is(const MappedFile& file) {
  constexpr uint8_t kFirstOfPickle = 0x80;
  if (file.size() == 0) return "an empty file";
  if (looks_like_zip(file)) return "a zip archive, but not TorchScript: perhaps only the weights";
  if (file.data()[0] == kFirstOfPickle) {
    return "a pickle of Python: perhaps a network of StyleGAN3 or EDM, or weights in the old "
           "format";
  }
  return "no TorchScript";
}

/// @return the file's sha256. @throws DataError, its text without what to do
std::string check_archive(const std::string& path) {
  const MappedFile file(path);
  if (!check_script_file(file)) throw DataError("{} is {}", path, what_it_is(file));
  return to_hex(sha256({reinterpret_cast<const char*>(file.data()), file.size()}));
}

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
  const bool same = !numbers.empty() && std::ranges::all_of(numbers, [&](int64_t number) {
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

ScriptArchive open_script_archive(const std::string& path,
                                  const std::string& where,
                                  const std::string& how_to_make_one,
                                  const at::Device& device) {
  if (!std::filesystem::is_regular_file(path))
    throw ConfigError("{}: there is no file {}\n  {}", where, printable(path), how_to_make_one);
  ScriptArchive archive{.path = path, .sha256 = {}, .about = {}, .module = {}};
  torch::jit::ExtraFilesMap extra = {{kAbout, ""}};
  std::string fault;
  try {
    archive.sha256 = check_archive(path);
    // It would replace kernels after the first passes, and with them bits, where a resume has none.
    if (!device.is_cpu()) torch::jit::setTensorExprFuserEnabled(false);
    archive.module = std::make_shared<torch::jit::Module>(torch::jit::load(path, device, extra));
  } catch (const DataError& error) {
    fault = error.what();
    fault.erase(std::min(fault.find('\n'), fault.size()));  // how to make one says more
  } catch (const ResourceError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = last_message(error);
    fault = fmt::format(
        "{} is TorchScript that LibTorch cannot load: {}", path, text.substr(0, text.find('\n')));
  }
  if (!fault.empty()) throw ConfigError("{}: {}\n  {}", where, printable(fault), how_to_make_one);
  archive.module->eval();
  for (const at::Tensor& parameter : archive.module->parameters())
    parameter.set_requires_grad(false);
  if (!extra[kAbout].empty()) archive.about = parse_untrusted_object(extra[kAbout]);
  return archive;
}

at::Tensor floats_of(const c10::IValue& answer) {
  if (!answer.isTensor()) {
    throw std::runtime_error(
        fmt::format("a {}, where a tensor is expected: let forward() return "
                    "the features alone",
                    answer.tagKind()));
  }
  const at::Tensor& tensor = answer.toTensor();
  if (tensor.is_complex() || !tensor.defined())
    throw std::runtime_error("complex numbers, where real ones are expected");
  return tensor.to(at::kFloat);
}

std::string last_message(const std::exception& error) {
  constexpr size_t kMostLetters = 300;
  constexpr const char* kMark = "Error: ";
  const std::string text = error.what();
  const size_t mark = text.rfind(kMark);
  return text.substr(mark == std::string::npos ? 0 : mark + std::strlen(kMark), kMostLetters);
}

at::Tensor trial_pictures(int64_t count, int64_t side) {
  return at::randint(256,
                     {count, 3, side, side},
                     at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1),
                     at::TensorOptions().dtype(at::kByte));
}

void for_parts(int64_t rows,
               int64_t at_once,
               const std::function<void(int64_t begin, int64_t count)>& part) {
  const c10::InferenceMode inference;
  const PlainFloat32 plain;
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    still_working();
    part(begin, std::min(at_once, rows - begin));
  }
}

at::Tensor in_parts(int64_t rows,
                    int64_t at_once,
                    const std::function<at::Tensor(int64_t begin, int64_t count)>& of_rows) {
  std::vector<at::Tensor> parts;
  for_parts(
      rows, at_once, [&](int64_t begin, int64_t count) { parts.push_back(of_rows(begin, count)); });
  const c10::InferenceMode inference;
  return at::cat(parts);
}

int64_t use_own_convolutions(torch::jit::Module& network, const at::Device& device) {
  if (!uses_cpu_algorithms(device)) return 0;
  const auto graph = network.get_method("forward").graph();
  const int64_t replaced = replace_in(*graph->block());
  torch::jit::EliminateDeadCode(graph);  // the filters in their old order
  return replaced;
}

}  // namespace dalle2
