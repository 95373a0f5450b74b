// SPDX-License-Identifier: MIT
#include "run/decoder/memory_budget.h"

#include <exception>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "metrics/script/script_archive.h"
#include "model/unet/unet.h"

namespace dalle2 {
namespace {

uint64_t budget_bytes(const DecoderTrainConfig& train) {
  return static_cast<uint64_t>(*train.memory_budget_gib * static_cast<double>(1 << 30));
}

[[noreturn]] void throw_too_small(const DecoderTrainConfig& train,
                                  const DryRunPlan::Network& network,
                                  uint64_t needed) {
  throw ConfigError(
      "/train/memory_budget_gib is {}, but a step of {} takes about {}, even if the backward pass computes "
      "all activations again\n  Give {:.1f} or more, lower /data/batch_size, set /train/max_batch_size to "
      "pass a batch in parts, or make the network smaller.",
      *train.memory_budget_gib,
      network.label,
      human_bytes(needed),
      // Rounded up, so that the number given here fits.
      static_cast<double>(needed / (1 << 30) * 10 + needed % (1 << 30) * 10 / (1 << 30) + 1) / 10);
}

}  // namespace

MemoryChoice fit_memory_budget(const DryRunPlan& plan,
                               const DecoderTrainConfig& train,
                               const PeakMemory& memory) {
  MemoryChoice choice{.levels = {}, .before = memory, .after = memory};
  for (size_t i = 0; i < plan.networks.size(); ++i) {
    const DryRunPlan::Network& network = plan.networks[i];
    choice.levels.push_back(0);
    if (!network.module || !train.memory_budget_gib) continue;
    auto& unet = dynamic_cast<UnetImpl&>(*network.module);
    int64_t& levels = choice.levels.back();
    levels = unet.recomputed_levels();
    uint64_t& activations = choice.after.activation_bytes[i];
    while (memory.kept_bytes + activations > budget_bytes(train)) {
      if (levels == unet.recomputable_levels()) {
        throw_too_small(train, network, memory.kept_bytes + activations);
      }
      unet.recompute_levels(++levels);
      activations = activation_bytes(network, plan, train);
    }
  }
  return choice;
}

std::vector<std::string> describe(const MemoryChoice& choice, const DryRunPlan& plan) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < choice.levels.size(); ++i) {
    const uint64_t before = choice.before.activation_bytes[i];
    const uint64_t after = choice.after.activation_bytes[i];
    if (choice.levels[i] == 0 || before == after) continue;
    lines.push_back(fmt::format(
        "{}: to fit /train/memory_budget_gib, the backward pass recomputes {} of {} levels (about {} "
        "instead of {})",
        plan.networks[i].label,
        choice.levels[i],
        dynamic_cast<const UnetImpl&>(*plan.networks[i].module).recomputable_levels(),
        human_bytes(choice.before.kept_bytes + after),
        human_bytes(choice.before.kept_bytes + before)));
  }
  return lines;
}

std::vector<int64_t> levels_to_recompute(const LoadedDecoderConfig& loaded,
                                         const ClipEmbedder* clip,
                                         const at::Device& device,
                                         ProcessGroup* group) {
  std::vector<int64_t> levels(loaded.plan.stages.size(), 0);
  if (!loaded.config.train.memory_budget_gib) return levels;
  std::string problem;
  std::exception_ptr fault;
  if (group == nullptr || group->is_main()) {
    // The others wait. Steps of a large network take long.
    std::optional<ProcessGroup::BusyScope> busy;
    if (group != nullptr) busy.emplace(*group, "fitting the memory budget");
    try {
      const DryRunPlan plan = decoder_dry_run_plan(loaded, clip);
      const PeakMemory memory = peak_memory(plan, loaded.config.train, device.is_cpu());
      const MemoryChoice choice = fit_memory_budget(plan, loaded.config.train, memory);
      for (const std::string& line : describe(choice, plan)) log_info("model", "{}", line);
      levels = choice.levels;
    } catch (const std::exception& error) {
      fault = std::current_exception();
      problem = last_message(error);
    }
  }
  if (group != nullptr) {
    problem = group->text_of_main(problem, "whether the memory budget fits");
    levels = group->exchange(levels, "levels to compute again").front();
  }
  if (fault) std::rethrow_exception(fault);
  if (!problem.empty()) throw ConfigError("rank 0: {}", problem);
  return levels;
}

}  // namespace dalle2
