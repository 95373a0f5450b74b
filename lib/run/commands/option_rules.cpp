// SPDX-License-Identifier: MIT
#include "run/commands.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace dalle2 {
namespace {

/// "a, b or c"
std::string any_of_names(const std::vector<std::string>& names) {
  const auto last = names.end() - 1;
  const std::string before = fmt::format("{}", fmt::join(names.begin(), last, ", "));
  return before.empty() ? *last : before + " or " + *last;
}

}  // namespace

const std::vector<OptionRule>& option_rules(const std::string& command) {
  static std::map<std::string, std::vector<OptionRule>> tables = {
      {"sample",
       {{{"--checkpoint", "--config", "--upsampler"}, {}, {"--pipeline"}},
        {{"--upsampler-config"}, {"--upsampler"}},
        {{"--upsampler-written-by"}, {"--upsampler", "--pipeline"}},
        {{"--image-embeds", "--text", "--num", "--image", "--init-noise", "--inpaint-image"},
         {kOnDecoder}},
        {{"--sampler", "--cfg-rescale", "--start-unet", "--stop-unet", "--upsampler", "--dry-run"},
         {kOnDecoder}},
        {{"--text-embeds"}, {kOnPrior}, {}, "A decoder takes what a prior makes of them."},
        {{"--text-encodings"}, {kTakesEncodings}},
        {{"--image-embeds", "--text-encodings"}, {}, {"--text", kVariesPicture}},
        {{"--image-embeds", "--text", "--clip", "--cond-scale"},
         {},
         {kUnconditional},
         "--num says how many pictures to draw."},
        {{"--text"}, {"--clip"}},
        {{"--text"}, {"--prior", kVariesPicture}},
        {{"--text"}, {"--prior", "--from-text", kTakesEncodings}},
        {{"--image"}, {"--clip", kEnlarges}},
        {{kVariesPicture}, {"--text", kTakesNoEncodings}},
        {{"--clip"}, {"--text", kVariesPicture}},
        {{"--clip-config"}, {"--clip"}},
        {{"--prior", "--prior-config", "--prior-written-by", "--prior-no-ema", "--prior-lora"},
         {"--text"},
         {kVariesPicture}},
        {{"--prior-cond-scale", "--prior-timesteps"}, {"--text"}, {kVariesPicture}},
        {{"--candidates"}, {kOnPrior, "--text"}, {kVariesPicture}},
        {{"--to"}, {"--text", kVariesPicture}, {"--from-text"}},
        {{"--to"}, {kVariesPicture, kTakesNoEncodings}},
        {{"--from-text"}, {kVariesPicture}},
        {{"--from-text"}, {"--text"}},
        {{"--theta"}, {"--from-text"}},
        {{"--inpaint-image"}, {"--inpaint-mask"}},
        {{"--inpaint-mask", "--inpaint-resample-times"}, {"--inpaint-image"}},
        {{"--cfg-rescale"}, {kGuided}}}},
      {"convert",
       {{{"--written-by", "--to", "--lora", "--merge-lora", "--open-clip"}, {}, {"--merge"}},
        {{"--config", "--written-by", "--to"},
         {},
         {"--lora", "--merge-lora", "--open-clip"},
         "Convert twice."},
        {{"--open-clip"}, {}, {"--ema", "--lora", "--merge-lora"}},
        {{"--lora"}, {}, {"--merge-lora"}},
        {{"--lora-scale"}, {"--lora", "--merge-lora"}}}},
      {"make", {{{"--together"}, {}, {"--in-order"}}}},
      {"order", {{{"--from"}, {}, {"--epoch"}}, {{"--overwrite"}, {"--save"}}}},
      {"embed", {{{"--text-encodings"}, {}, {"--no-captions"}}}}};
  return tables[command];
}

void check_options(const std::string& command, const OptionFacts& facts, const std::string& where) {
  const auto is_so = [&](const std::string& name) {
    const auto found = facts.find(name);
    return found != facts.end() && found->second;
  };
  const auto may_be = [&](const std::string& name) {
    return is_so(name) || (!name.starts_with("--") && !facts.contains(name));
  };
  for (const OptionRule& rule : option_rules(command)) {
    const auto& [options, needs, excludes, instead] = rule;
    const bool has_one = needs.empty() || std::ranges::any_of(needs, may_be);
    const auto other = std::ranges::find_if(excludes, is_so);
    const auto option = std::ranges::find_if(options, is_so);
    if (option == options.end() || (has_one && other == excludes.end())) continue;
    throw ConfigError("{}{}: {}\n  {} {} out.{}",
                      *option,
                      where,
                      has_one ? "not with " + *other : "needs " + any_of_names(needs),
                      has_one ? "Leave" : "Give what it needs, or leave",
                      *option,
                      instead.empty() ? "" : " " + instead);
  }
}

std::string rule_help(const OptionRule& rule) {
  return (rule.needs.empty() ? "" : "; needs " + any_of_names(rule.needs)) +
         (rule.excludes.empty() ? "" : "; not with " + any_of_names(rule.excludes));
}

}  // namespace dalle2
