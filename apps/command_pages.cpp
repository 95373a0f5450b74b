// SPDX-License-Identifier: MIT
#include "command_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <vector>

#include "base/this_process.h"

namespace dalle2 {
namespace {

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
    std::replace(choices.begin(), choices.end(), ',', ' ');
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
