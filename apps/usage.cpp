// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <regex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_text.h"
#include "command_options.h"

namespace dalle2 {
namespace {

std::string without(std::string text, const std::string& part) {
  const size_t at = text.find(part);
  return at == std::string::npos ? text : text.erase(at, part.size());
}

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    // CLI11 marks a flag that sets false, and how many values an option takes at least.
    return two_columns(without(make_option_name(option, is_positional), "{false}") +
                           without(make_option_opts(option), " x 2"),
                       make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return two_columns(command->get_display_name(true), command->get_description());
  }
  std::string make_help(const CLI::App* app,
                        std::string name,
                        CLI::AppFormatMode mode) const override {
    return wrapped(without(Formatter::make_help(app, std::move(name), mode), "(2x)"), columns_);
  }

 private:
  static constexpr int kNameColumns = 34;
  static constexpr int kLeastColumns = 64;  // for two columns

  /// A name that is too long for its column has a line of its own.
  std::string two_columns(const std::string& name, const std::string& text) const {
    const std::string indent(kNameColumns, ' ');
    std::string out = wrapped("  " + name, columns_);
    if (out.size() >= indent.size()) {
      out += "\n" + indent;
    } else {
      out.resize(indent.size(), ' ');
    }
    for (const char c : wrapped(text, columns_ - kNameColumns)) {
      out += c;
      if (c == '\n') out += indent;
    }
    return out + "\n";
  }

  int columns_ = std::max(terminal_columns(STDOUT_FILENO), kLeastColumns);
};

constexpr auto kAll = [](const auto*) { return true; };

/// The innermost command that the command line names.
const CLI::App& command_of(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

/// "dalle2-train shards make"
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? full_name(*parent) + " " + command.get_name() : command.get_name();
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands(kAll)) {
    if (!each->get_group().empty()) names.push_back(each->get_name());
  }
  return names;
}

/// CLI11's reason; where its words say neither what was expected nor what to do, ours.
std::string reason(const CLI::App& root, const CLI::App& command, const CLI::Error& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const std::vector<std::string> extra = root.remaining(/*recurse=*/true);  // CLI11 reverses them
    return fmt::format("The following {} not expected: {}",
                       extra.size() == 1 ? "argument was" : "arguments were",
                       fmt::join(extra, " "));
  }
  if (std::string_view(error.what()) == "A subcommand is required") {
    return fmt::format("{}: expected one of its commands: {}",
                       command.get_name(),
                       fmt::join(commands_of(command), ", "));
  }
  return error.what();
}

/// Full names of the commands that have the option.
std::vector<std::string> commands_with_option(const CLI::App& app, const std::string& option) {
  std::vector<std::string> names;
  if (!option.starts_with("--")) return names;
  if (!app.get_group().empty() && app.get_option_no_throw(option) != nullptr) {
    names.push_back(full_name(app));
  }
  for (const CLI::App* each : app.get_subcommands(kAll)) {
    const std::vector<std::string> below = commands_with_option(*each, option);
    names.insert(names.end(), below.begin(), below.end());
  }
  return names;
}

/// The option of `command` that other programs call `word`; empty if it has none.
std::string option_for(const std::string& word, const CLI::App& command) {
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"--steps", "--timesteps"},
      {"--num-steps", "--timesteps"},
      {"--num-inference-steps", "--timesteps"},
      {"--sample-timesteps", "--timesteps"},
      {"--guidance-scale", "--cond-scale"},
      {"--cfg-scale", "--cond-scale"},
      {"--prompt", "--text"},
      {"--num-images", "--num"},
      {"--num-samples", "--num"},
      {"--model", "--checkpoint"},
      {"--ckpt", "--checkpoint"},
      {"--output", "--out"},
      {"--outdir", "--out"}};
  std::string dashed = word;
  std::ranges::replace(dashed, '_', '-');
  for (const auto& [other, own] : kOthers) {
    if (dashed == other && command.get_option_no_throw(own) != nullptr) return own;
  }
  return "";
}

/// "  Did you mean `sample`?\n", if the first word that no command took is near one it knows, or is a config; else "".
std::string suggestion(const CLI::App& app, const CLI::App& command) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (unknown.empty()) return "";
  std::vector<std::string> known = commands_of(command);
  for (const CLI::Option* each : command.get_options(kAll)) known.push_back(each->get_name());
  const CLI::Option* const set_option = command.get_option_no_throw("--set");
  const auto set = set_option != nullptr ? set_option->results() : std::vector<std::string>{};
  if (!unknown.front().starts_with('-') && !set.empty() &&
      set.back().find('=') == set.back().npos) {
    const std::string value = printable(without_tokens(public_text(unknown.front())));
    const char* const quote = value.find_first_of(" \t") == value.npos ? "" : "'";
    return fmt::format(
        "  Did you mean `--set {}{}={}{}`?\n", quote, printable(set.back()), value, quote);
  }
  const std::string word = unknown.front().substr(0, unknown.front().find('='));
  if (&app == &command && word.ends_with(".json") && !word.starts_with('-') &&
      app.count("--config") == 0) {
    return fmt::format("  Did you mean `--config {}`?\n",
                       printable(without_tokens(public_text(word))));
  }
  if (&app == &command && word == "train") {
    return "  Training has no command name: `dalle2-train --config my.json`.\n";
  }
  if (const std::string own = option_for(word, command); !own.empty()) {
    return fmt::format("  Did you mean `{}`?\n", own);
  }
  if (const std::optional<std::string> near = nearest_word(word, known)) {
    return fmt::format("  Did you mean `{}`?\n", *near);
  }
  const std::vector<std::string> takers = commands_with_option(app, word);
  std::string text;
  if (!takers.empty()) {
    text = fmt::format("  {} is an option of: {}.\n", word, fmt::join(takers, ", "));
  }
  if (&app == &command && word.starts_with("--")) {
    text +=
        "  The settings of a run are keys of its config. --set /data/batch_size=8 changes one.\n";
  }
  return text;
}

/// What may follow a command: an option, a command below it, or its positional argument.
struct Word {
  std::vector<std::string> names;  ///< of an option with their dashes; none of a positional
  std::string text;
  std::string values;  ///< for compgen, e.g. "-f"; empty for a flag and a command
};

struct Command {
  const CLI::App* app;
  std::string path;  ///< "shards make"; empty for the program itself
  std::vector<Word> words;
};

/// By the name of the type, which is "TEXT:{a,b}" where the choices are known.
std::string values_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  if (const size_t begin = type.find('{'); begin != std::string::npos) {
    std::string choices = type.substr(begin + 1, type.rfind('}') - begin - 1);
    std::ranges::replace(choices, ',', ' ');
    return "-W '" + choices + "'";
  }
  if (type.starts_with("DIR")) return "-d";
  const bool is_file = std::regex_search(type, std::regex("^(FILE|NPY|PATH|HTML)"));
  return is_file || option.get_positional() ? "-f" : "-W ''";
}

void add_commands(const CLI::App& app, const std::string& path, std::vector<Command>& all) {
  Command command{&app, path, {}};
  for (const CLI::Option* option : app.get_options()) {
    Word word{{}, option->get_description(), values_of(*option)};
    for (const std::string& name : option->get_lnames()) word.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) word.names.push_back("-" + name);
    command.words.push_back(std::move(word));
  }
  const std::vector<const CLI::App*> below =
      app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); });
  for (const CLI::App* each : below)
    command.words.push_back({{each->get_name()}, each->get_description(), ""});
  all.push_back(std::move(command));
  for (const CLI::App* each : below)
    add_commands(*each, path + (path.empty() ? "" : " ") + each->get_name(), all);
}

std::vector<Command> all_commands(const CLI::App& app) {
  std::vector<Command> all;
  add_commands(app, "", all);
  return all;
}

/// A function for bash, and for zsh by its bashcompinit.
std::string bash_function(const CLI::App& app) {
  std::string known, cases, last_cases;
  for (const auto& [unused, path, words] : all_commands(app)) {
    if (!path.empty()) known += (known.empty() ? "'" : "|'") + path + "'";
    std::string options, commands, positional;
    for (const Word& word : words) {
      if (word.names.empty()) positional = word.values;
      for (const std::string& name : word.names) {
        if (!word.values.empty())
          cases += fmt::format("    '{}:{}:'*) set -- {} ;;\n", path, name, word.values);
        if (&name == &word.names.front())
          (name.starts_with('-') ? options : commands) += name + " ";
      }
    }
    if (positional.empty()) positional = "-W '" + (commands.empty() ? options : commands) + "'";
    last_cases += fmt::format("    '{}:'*:-*) set -- -W '{}' ;;\n    '{}:'*) set -- {} ;;\n",
                              path,
                              options,
                              path,
                              positional);
  }
  return "_dalle2_train() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} command= word\n"
         "  for word in \"${COMP_WORDS[@]:1:$((COMP_CWORD-1))}\"; do\n"
         "    case \"${command:+$command }$word\" in\n"
         "      " +
         known +
         ") command+=${command:+ }$word ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$command:${COMP_WORDS[COMP_CWORD-1]}:$cur\" in\n" +
         cases + last_cases +
         "  esac\n"
         "  [[ $1 = -W ]] || { local IFS=$'\\n'; compopt -o filenames 2>/dev/null; }\n"
         "  COMPREPLY=($(compgen \"$@\" -- \"$cur\"))\n"
         "}\n";
}

std::string fish_completion(const CLI::App& app) {
  std::string out = "complete -c dalle2-train -f\n";
  const std::string seen = "__fish_seen_subcommand_from ";
  for (const auto& [unused, path, words] : all_commands(app)) {
    const std::string when = path.empty() ? "__fish_use_subcommand" : seen + path;
    for (const Word& word : words) {
      out += "complete -c dalle2-train -n '" +
             std::regex_replace(when, std::regex("(from \\S+) "), "$1; and " + seen) + "'";
      for (const std::string& name : word.names) {
        const bool is_long = name.starts_with("--"), is_short = !is_long && name.starts_with('-');
        out += is_long ? " -l " + name.substr(2)
                       : (is_short ? " -s " + name.substr(1) : " -a " + name);
      }
      if (word.values == "-f") out += " -r -F";
      if (word.values == "-d") out += " -x -a '(__fish_complete_directories)'";
      if (word.values.starts_with("-W")) out += " -x -a" + word.values.substr(2);
      out += " -d '" + std::regex_replace(word.text, std::regex("'"), "'\\''") + "'\n";
    }
  }
  return out;
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  return std::make_shared<HelpFormatter>();
}

std::string usage_error_text(const CLI::App* root, const CLI::Error& error) {
  const CLI::App& command = command_of(*root);
  return fmt::format("error: {}\n{}  `{} --help` lists the options.\n",
                     printable(without_tokens(public_text(reason(*root, command, error)))),
                     suggestion(*root, command),
                     full_name(command));
}

std::string man_page(const CLI::App& app) {
  std::string out =
      ".TH DALLE2\\-TRAIN 1 \"\" \"dalle2\\-train " + program_version() +
      "\" \"User Commands\"\n.SH NAME\ndalle2\\-train \\- train DALLE2\\-style image generators\n";
  for (const Command& command : all_commands(app)) {
    const std::string name = app.get_name() + (command.path.empty() ? "" : " " + command.path);
    std::string help =
        command.app->get_formatter()->make_help(command.app, name, CLI::AppFormatMode::Normal);
    help = std::regex_replace(help, std::regex("\\\\"), "\\e");
    help = std::regex_replace(help, std::regex("-"), "\\-");
    help = std::regex_replace(help, std::regex("\n"), "\n\\&");  // no line is a request of roff
    out += (command.path.empty() ? ".SH DESCRIPTION\n" : ".SH " + name + "\n") + ".nf\n\\&" + help +
           "\n.fi\n";
  }
  return out;
}

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "fish") return fish_completion(app);
  if (shell == "bash") return bash_function(app) + "complete -F _dalle2_train dalle2-train\n";
  return "#compdef dalle2-train\nautoload -Uz bashcompinit && bashcompinit\n" + bash_function(app) +
         "_bash_complete -o filenames -F _dalle2_train\n";
}

}  // namespace dalle2
