// SPDX-License-Identifier: MIT
#include "model/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/torch.h>

#include <cstdlib>

#include "base/hash.h"
#include "kernels/dropout_mask.h"

namespace dalle2 {

/// at::mt19937 keeps only 32 bits of a seed, of which two addresses soon have the same. So the
/// numbers that SplitMix64 makes of all 64 are mixed into its state.
at::Generator cpu_generator(uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  auto* const owner = at::check_generator<at::CPUGeneratorImpl>(generator);
  at::mt19937 engine = owner->engine();
  at::mt19937_data_pod data = engine.data();
  uint64_t counter = seed;
  for (uint32_t& word : data.state_) {
    counter += kGoldenGamma;
    word ^= static_cast<uint32_t>(split_mix(counter));
  }
  engine.set_data(data);
  owner->set_engine(engine);
  return generator;
}

uint64_t hash_address(const RandomAddress& address) {
  uint64_t hash = Fnv1a<uint64_t>(address.purpose).value();
  for (const int64_t part : {address.seed, address.epoch, address.step, address.rank}) {
    hash = split_mix((hash ^ static_cast<uint64_t>(part)) + kGoldenGamma);
  }
  return hash;
}

at::Generator make_generator(const RandomAddress& address, const at::Device& device) {
  const uint64_t hash = hash_address(address);
  if (device.is_cpu()) return cpu_generator(hash);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(hash);
  return generator;
}

at::Generator host_generator(const at::Generator& generator) {
  if (generator.device().is_cpu()) return generator;
  at::Generator device = generator;
  // The factor spreads neighbouring positions apart.
  return cpu_generator(device.current_seed() ^ ((device.get_offset() + 1) * kGoldenGamma));
}

bool draw_self_condition(const at::Generator& host) {
  return at::rand({1}, host, at::kDouble).item<double>() < 0.5;
}

void use_deterministic_algorithms() {
  // NCCL chooses by what it measures: one order of the sums whatever that says. Read when the ranks
  // connect; what the user has set stays.
  ::setenv("NCCL_ALGO", "Ring", /*overwrite=*/0);
  ::setenv("NCCL_PROTO", "Simple", /*overwrite=*/0);
  // cuBLAS gives the same bits only with workspaces of a fixed size, which it reads from here.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  // Memory that is written before it is read needs no NaNs first.
  context.setDeterministicFillUninitializedMemory(false);
}

void search_for_algorithms() {
  at::globalContext().setBenchmarkCuDNN(true);
}

at::Tensor dropout_mask(const at::Tensor& x, double drop, const DropoutSeed& seed, int64_t number) {
  const torch::NoGradGuard no_grad;
  const at::Tensor mask = at::empty(x.sizes(), x.options());
  const int64_t place = number + 1;
  if (seed.on_device.defined()) {
    fill_dropout_mask_from_(mask, seed.on_device, place, 1.0 - drop);
  } else {
    fill_dropout_mask_(mask, dropout_address(seed.seed, place), seed.first_sample, 1.0 - drop);
  }
  return mask;
}

}  // namespace dalle2
