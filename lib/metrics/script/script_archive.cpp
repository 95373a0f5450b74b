// SPDX-License-Identifier: MIT
#include "metrics/script/script_archive.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/script.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pth.h"
#include "metrics/still_working.h"
#include "net/digest.h"
#include "optim/tf32.h"

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

}  // namespace

ScriptArchive open_script_archive(const std::string& path,
                                  const std::string& where,
                                  const std::string& how_to_make_one,
                                  const at::Device& device) {
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError("{}: there is no file {}\n  {}", where, printable(path), how_to_make_one);
  }
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
  } catch (const ResourceError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = last_message(error);
    fault = fmt::format(
        "{} is TorchScript that LibTorch cannot load: {}", path, text.substr(0, text.find('\n')));
  }
  if (!fault.empty()) {
    throw ConfigError("{}: {}\n  {}", where, printable(fault), how_to_make_one);
  }
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

}  // namespace dalle2
