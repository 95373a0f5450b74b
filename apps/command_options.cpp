// SPDX-License-Identifier: MIT
#include "command_options.h"

#include <string>

namespace dalle2 {

CLI::Validator whole_number(int64_t most) {
  const auto check = [most](std::string& text) -> std::string {
    int64_t value = 0;
    const bool is_number = CLI::detail::lexical_cast(text, value);
    return is_number && value >= 1 && value <= most
               ? ""
               : "expected a whole number from 1 to " + std::to_string(most) + ", got " + text;
  };
  return CLI::Validator(check, "COUNT");
}

CLI::Validator non_empty(const std::string& what) {
  return CLI::Validator(
      [what](std::string& text) -> std::string {
        return text.empty() ? "expected " + what + ", got ''" : "";
      },
      "");
}

OptionFacts given_options(const CLI::App& app) {
  OptionFacts given;
  for (const CLI::Option* option : app.get_options())
    given[option->get_name()] = option->count() > 0;
  return given;
}

void add_rules(CLI::App& app) {
  const std::string command = app.get_name();
  for (const OptionRule& rule : option_rules(command)) {
    for (const std::string& name : rule.options) {
      if (!name.starts_with("--")) continue;
      CLI::Option* const option = app.get_option(name);
      option->description(option->get_description() + rule_help(rule));
    }
  }
  app.callback([&app, command] { check_options(command, given_options(app)); });
}

void add_overrides(CLI::App& app, std::vector<std::string>& overrides, const char* text) {
  app.add_option("--set", overrides, text)->type_name("/POINTER=VALUE")->allow_extra_args(false);
}

void add_device(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "cpu, cuda, or cuda:N for GPU number N")
      ->capture_default_str()
      ->type_name("DEVICE:{cpu,cuda}");
}

void add_folder(CLI::App& app, const char* name, std::string& path, const char* text) {
  app.add_option(name, path, text)->required()->type_name("DIR")->check(non_empty("a path"));
}

void add_digits(CLI::App& app, const char* name, int64_t& digits, const char* text) {
  constexpr int64_t kMost = 18;  // of a number of 64 bits
  app.add_option(name, digits, text)
      ->type_name("DIGITS")
      ->capture_default_str()
      ->check(whole_number(kMost));
}

void add_caption_encoding(CLI::App& app, std::string& encoding) {
  add_value(app, "--caption-encoding NAME", encoding)
      ->description("Encoding of captions that are not UTF-8 and have no byte order mark")
      ->capture_default_str();
}

void add_overwrite(CLI::App& app, bool& overwrite, const char* text) {
  app.add_flag("--overwrite", overwrite, text);
}

void add_processes(CLI::App& app, int64_t& processes, const std::string& what_they_do) {
  app.add_option("--nproc-per-node",
                 processes,
                 "Start N processes on this machine, which " + what_they_do +
                     " together; each takes a GPU, or a share of the cores")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
}

}  // namespace dalle2
