// SPDX-License-Identifier: MIT
// Fixtures made by the reference: tensors and a JSON text in one safetensors file.
#pragma once

#include "base/error.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/state_dict.h"
#include "support/fixture_folder.h"

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace dalle2::test {

struct Fixture {
  std::string path;
  nlohmann::json json;  ///< what the maker put into the metadata under "json": config, scalars, ...
  StateDict tensors;

  bool has(const std::string& name) const { return find_tensor(tensors, name) != nullptr; }
  at::Tensor tensor(const std::string& name) const {
    const at::Tensor* found = find_tensor(tensors, name);
    if (found == nullptr) {
      throw DataError("{}: expected a tensor '{}'", path, name);
    }
    return *found;
  }
  /// The tensors below `prefix`, e.g. "weights.", without it.
  StateDict below(const std::string& prefix) const { return strip_prefix(tensors, prefix); }
};

/// Paths of all .safetensors files in a folder, sorted. @throws DataError if there are fewer than `at_least`
inline std::vector<std::string> fixture_files(const std::string& folder, size_t at_least) {
  std::vector<std::string> files;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") {
        files.push_back(entry.path().string());
      }
    }
  }
  if (files.size() < at_least) {
    throw DataError(
        "{}: expected at least {} fixtures, found {}; make them with tests/parity/make_*.py",
        folder,
        at_least,
        files.size());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// @param name a path, or "unet/d1" for fixture_folder("unet")/d1.safetensors
inline Fixture load_fixture(const std::string& name) {
  Fixture fixture;
  fixture.path = name;
  if (!name.ends_with(".safetensors")) {
    const size_t slash = name.find('/');
    fixture.path = fixture_folder(name.substr(0, slash)) + name.substr(slash) + ".safetensors";
  }
  SafetensorsFile file = read_safetensors(fixture.path);
  fixture.tensors = std::move(file.tensors);
  if (const auto text = file.metadata.find("json"); text != file.metadata.end()) {
    fixture.json = nlohmann::json::parse(text->second);
  }
  return fixture;
}

/// The list `key` of a fixture's JSON. @throws DataError if it has fewer than `at_least` elements
inline const nlohmann::json& listed(const Fixture& fixture, const char* key, size_t at_least) {
  const nlohmann::json& list = fixture.json.at(key);
  if (!list.is_array() || list.size() < at_least) {
    throw DataError(
        "{}: expected at least {} {}, found {}", fixture.path, at_least, key, list.size());
  }
  return list;
}

/// Fails unless shape and values agree: max |actual - expected| <= relative * max |expected|. Infinite
/// and NaN elements have to stand at the same places with the same sign. Where all of `expected` is
/// zero, `actual` has to be within `relative` of it.
inline void expect_close(const at::Tensor& actual,
                         const at::Tensor& expected,
                         double relative,
                         const std::string& what) {
  INFO(what);
  REQUIRE(actual.defined());
  REQUIRE(expected.defined());
  const std::string shapes =
      fmt::format("actual {} expected {}", c10::str(actual.sizes()), c10::str(expected.sizes()));
  INFO(shapes);
  REQUIRE(actual.sizes() == expected.sizes());
  const at::Tensor a = actual.detach().to(at::kCPU, at::kDouble).flatten();
  const at::Tensor e = expected.detach().to(at::kCPU, at::kDouble).flatten();
  if (e.numel() == 0) {
    return;
  }
  const at::Tensor finite = e.isfinite();
  REQUIRE(at::equal(at::nan_to_num(a.masked_fill(finite, 0.0), 7.0),
                    at::nan_to_num(e.masked_fill(finite, 0.0), 7.0)));
  const at::Tensor scaled = e.masked_fill(finite.logical_not(), 0.0);
  // NaN in `actual` where a number is expected counts as an infinite error.
  const at::Tensor error = at::nan_to_num(
      (a - scaled).masked_fill(finite.logical_not(), 0.0).abs(), INFINITY, INFINITY, INFINITY);
  const double largest = scaled.abs().max().item<double>();
  const int64_t worst = error.argmax().item<int64_t>();
  const double worst_error = error[worst].item<double>();
  const std::string report = fmt::format(
      "largest error {:.3e} at flat index {} (actual {:.9g}, expected {:.9g}); largest |expected| {:.3e}, "
      "relative {:.3e}, allowed {:.3e}",
      worst_error,
      worst,
      a[worst].item<double>(),
      e[worst].item<double>(),
      largest,
      largest > 0 ? worst_error / largest : worst_error,
      relative);
  INFO(report);
  CHECK(worst_error <= relative * (largest > 0 ? largest : 1.0));
}

/// off + scale * sin(f * i + phase) over the flat index i, as float32 of `shape`.
inline at::Tensor wave(at::IntArrayRef shape,
                       double f = 0.37,
                       double phase = 0.0,
                       double scale = 1.0,
                       double offset = 0.0) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  float* out = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    out[i] = static_cast<float>(offset + scale * std::sin(f * static_cast<double>(i) + phase));
  }
  return tensor;
}

inline constexpr int64_t kCompactEntries = 8;  // as in make_unet.py

/// [norm, two projections, entries] float64 of a gradient, as make_unet.py writes it.
inline at::Tensor compact(const at::Tensor& gradient) {
  const at::Tensor g = gradient.to(at::kDouble).flatten();
  const int64_t n = g.numel();
  std::vector<at::Tensor> values = {g.norm()};
  for (const auto& [f, phase] : {std::pair{0.61, 0.4}, std::pair{0.083, 1.1}}) {
    values.push_back((g * wave({n}, f, phase).to(at::kDouble)).sum());
  }
  for (int64_t k = 0; k < kCompactEntries; ++k) values.push_back(g[k * n / kCompactEntries]);
  return at::stack(values);
}

/// The weight of the golden values for a parameter of that name (relative to its unet, network or VAE):
/// 0.1 sin(0.7 i + k), k the sum of the name's bytes mod 97; gains lie about 1.
inline at::Tensor golden_weight(const std::string& name, at::IntArrayRef shape) {
  int sum = 0;
  for (const char letter : name) {
    sum += static_cast<unsigned char>(letter);
  }
  int64_t numel = 1, longest = 1;
  for (const int64_t extent : shape) {
    numel *= extent;
    longest = std::max(longest, extent);
  }
  const bool gain = numel == longest && !name.ends_with("bias");
  return wave(shape, 0.7, sum % 97, 0.1, gain ? 1.0 : 0.0);
}

/// Gives every parameter its golden_weight; rotary frequencies stay as they are.
inline void fill_parameters(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    if (!item.key().ends_with("rotary_emb.freqs")) {
      item.value().copy_(golden_weight(item.key(), item.value().sizes()));
    }
  }
}

/// An entry of the golden values: {n, mean, absmean, first: [<= 4], last}, or a list of indices.
inline nlohmann::json golden(const std::string& name) {
  const std::string path = std::string(DALLE2_SOURCE_DIR) + "/tests/parity/fixtures/golden.json";
  static const nlohmann::json values = nlohmann::json::parse(std::ifstream(path));
  if (!values.contains(name)) {
    throw DataError("{}: no golden value '{}'", path, name);
  }
  return values.at(name);
}

/// Compares size, mean, mean of |x|, the first elements and the last one; errors are relative to the
/// golden mean of |x| (single elements and the mean may be near zero).
inline void expect_golden(const at::Tensor& actual, const std::string& name, double relative) {
  const nlohmann::json expected = golden(name);
  const at::Tensor flat = actual.detach().to(at::kCPU, at::kDouble).flatten();
  INFO("golden value " << name);
  REQUIRE(flat.numel() == expected.at("n").get<int64_t>());
  const double margin = relative * expected.at("absmean").get<double>();
  CHECK(flat.mean().item<double>() ==
        Approx(expected.at("mean").get<double>()).epsilon(0).margin(margin));
  CHECK(flat.abs().mean().item<double>() ==
        Approx(expected.at("absmean").get<double>()).epsilon(0).margin(margin));
  const auto first = expected.at("first").get<std::vector<double>>();
  for (size_t i = 0; i < first.size(); ++i) {
    INFO("element " << i);
    CHECK(flat[static_cast<int64_t>(i)].item<double>() ==
          Approx(first[i]).epsilon(0).margin(margin));
  }
  CHECK(flat[-1].item<double>() ==
        Approx(expected.at("last").get<double>()).epsilon(0).margin(margin));
}

}  // namespace dalle2::test
