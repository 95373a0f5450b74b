// SPDX-License-Identifier: MIT
#include "metrics/script_archive.h"

#include <torch/csrc/jit/serialization/import.h>
#include <torch/script.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

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

}  // namespace dalle2
