// SPDX-License-Identifier: MIT
#include "run/vae/vae_log.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "trainer/trained_part.h"

namespace dalle2 {
namespace {

constexpr std::array kNames = {
    "reconstruction_loss", "perceptual_loss", "generator_loss", "gan_weight", "quantizer_loss"};
constexpr auto kLosses = static_cast<int64_t>(kNames.size());
constexpr const char* kRecent = "recent_diagnostics";
constexpr const char* kUses = "code_uses";

/// [losses] in the order of kNames; NaN where the VAE has no such loss.
at::Tensor listed(const VaeLosses& losses) {
  const at::Tensor none =
      at::full({}, std::nan(""), losses.reconstruction.options().dtype(at::kFloat));
  std::vector<at::Tensor> all;
  for (const at::Tensor& loss : {losses.reconstruction,
                                 losses.perceptual,
                                 losses.generator,
                                 losses.gan_weight,
                                 losses.quantizer}) {
    all.push_back(loss.defined() ? loss.to(at::kFloat) : none);
  }
  return at::stack(all);
}

/// [codes] int64: how often each index occurs. Reads nothing back from the device.
at::Tensor counts_of(const at::Tensor& indices, int64_t codes) {
  const at::Tensor flat = indices.flatten();
  return at::zeros({codes}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
}

void check_form(const char* key, const at::Tensor& found, bool fits, const char* expected) {
  if (!found.defined() || fits) return;
  throw DataError("/{}/{}: expected {}, got {} of {}",
                  kOwnState,
                  key,
                  expected,
                  c10::toString(found.scalar_type()),
                  c10::str(found.sizes()));
}

}  // namespace

void VaeDiagnostics::add(const VaeLosses& losses, int64_t codes) {
  add_to(of_update_, listed(losses));
  add_to(uses_of_update_, counts_of(losses.indices, codes));
}

void VaeDiagnostics::end_update(ProcessGroup& group,
                                const at::Device& device,
                                int64_t codes,
                                int64_t length) {
  if (!of_update_.defined()) {  // this rank had no samples
    of_update_ = at::zeros({kLosses}, at::dtype(at::kFloat).device(device));
    uses_of_update_ = at::zeros({codes}, at::dtype(at::kLong).device(device));
  }
  group.all_reduce(of_update_, Reduction::kSum, "losses that are logged");
  // Codes of what is not finite say nothing.
  add_to(own_uses_, uses_of_update_ * of_update_[0].isfinite());
  const at::Tensor row = of_update_.unsqueeze(0);
  recent_ = recent_.defined() ? at::cat({recent_.to(device), row}) : row;
  const int64_t kept = std::min(recent_.size(0), length);
  recent_ = recent_.narrow(0, recent_.size(0) - kept, kept).clone();
  of_update_.reset();
  uses_of_update_.reset();
}

void VaeDiagnostics::gather(ProcessGroup& group) {
  if (!own_uses_.defined()) return;  // on no rank then
  group.all_reduce(own_uses_, Reduction::kSum, "uses of the codes");
  const bool goes_on = uses_.defined() && uses_.numel() == own_uses_.numel();
  uses_ = goes_on ? uses_.to(own_uses_.device()) + own_uses_ : own_uses_;
  own_uses_.reset();
}

LogRecord VaeDiagnostics::take(ProcessGroup& group) {
  gather(group);
  LogRecord record;
  const at::Tensor recent =
      recent_.defined() ? recent_.to(at::kCPU, at::kDouble) : at::empty({0, kLosses}, at::kDouble);
  for (int64_t i = 0; i < kLosses; ++i) {
    const at::Tensor losses = recent.select(1, i);
    const at::Tensor finite = losses.masked_select(losses.isfinite());
    if (finite.numel() > 0)
      record.emplace_back(kNames[static_cast<size_t>(i)], finite.mean().item<double>());
  }
  const at::Tensor uses = uses_.defined() ? uses_.to(at::kCPU, at::kDouble) : at::Tensor();
  uses_.reset();
  if (!uses.defined() || uses.sum().item<double>() == 0) return record;
  const at::Tensor shares = uses / uses.sum();
  record.emplace_back("codebook_usage", uses.gt(0).to(at::kDouble).mean().item<double>());
  record.emplace_back("codebook_perplexity",
                      std::exp(-at::xlogy(shares, shares).sum().item<double>()));
  return record;
}

void VaeDiagnostics::fields(PositionVisitor& visitor) {
  visitor.own(kRecent, recent_);
  visitor.own(kUses, uses_);
  check_form(kRecent,
             recent_,
             recent_.defined() && recent_.dim() == 2 && recent_.size(1) == kLosses &&
                 recent_.is_floating_point(),
             "[updates, 5] float32");
  check_form(kUses,
             uses_,
             uses_.defined() && uses_.dim() == 1 && uses_.scalar_type() == at::kLong,
             "[codes] int64");
}

}  // namespace dalle2
