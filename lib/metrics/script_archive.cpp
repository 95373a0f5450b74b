// SPDX-License-Identifier: MIT
#include "metrics/script_archive.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/script.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "net/sha256.h"

namespace dalle2 {
namespace {

constexpr const char* kAbout = "dalle2.json";

/// What a file that cannot be loaded is, by its beginning.
std::string what_it_is(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 4> head{};
  in.read(head.data(), head.size());
  if (in.gcount() == 0) return "an empty file";
  if (head[0] == 'P' && head[1] == 'K') {
    return "a zip archive, but no TorchScript: perhaps the weights alone";
  }
  if (static_cast<unsigned char>(head[0]) == 0x80) {
    return "a pickle of Python: perhaps a network of StyleGAN3 or EDM, or weights in the old format";
  }
  return "no TorchScript";
}

std::string sha256_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return to_hex(sha256(content));
}

}  // namespace

ScriptArchive open_script_archive(const std::string& path,
                                  const std::string& where,
                                  const std::string& how_to_make_one,
                                  const at::Device& device) {
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError("{}: there is no file {}\n  {}", where, printable(path), how_to_make_one);
  }
  ScriptArchive archive{.path = path, .sha256 = sha256_of_file(path), .about = {}, .module = {}};
  torch::jit::ExtraFilesMap extra = {{kAbout, ""}};
  try {
    archive.module = std::make_shared<torch::jit::Module>(torch::jit::load(path, device, extra));
  } catch (const std::exception&) {  // its text speaks of the inside of LibTorch
    throw ConfigError(
        "{}: {} is {}\n  {}", where, printable(path), what_it_is(path), how_to_make_one);
  }
  archive.module->eval();
  for (const at::Tensor& parameter : archive.module->parameters())
    parameter.set_requires_grad(false);
  if (!extra[kAbout].empty()) archive.about = parse_untrusted_object(extra[kAbout]);
  return archive;
}

std::string last_message(const std::exception& error) {
  constexpr size_t kMostLetters = 300;
  constexpr const char* kMark = "Error: ";
  const std::string text = error.what();
  const size_t mark = text.rfind(kMark);
  return text.substr(mark == std::string::npos ? 0 : mark + std::strlen(kMark), kMostLetters);
}

at::Tensor in_parts(int64_t rows,
                    int64_t at_once,
                    const std::function<at::Tensor(int64_t begin, int64_t count)>& of_rows) {
  const c10::InferenceMode inference;
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    parts.push_back(of_rows(begin, std::min(at_once, rows - begin)));
  }
  return at::cat(parts);
}

}  // namespace dalle2
