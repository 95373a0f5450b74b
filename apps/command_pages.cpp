// SPDX-License-Identifier: MIT
#include "command_pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/this_process.h"

namespace dalle2 {
namespace {

constexpr const char* kExitCodes =
    "0\tsuccess\n"
    "1\tany other error\n"
    "2\twrong usage or config\n"
    "3\tmissing or damaged data\n"
    "4\ttoo many non-finite losses in a row\n"
    "5\tout of memory or disk space\n"
    "6\tlost process or network\n"
    "75\tstopped by a signal after saving (run it again to continue); commands that cannot be continued are killed by the signal\n";

/// What the value of an option is, for completions.
enum class Value { none, other, choice, file, folder };

struct OptionPage {
  std::vector<std::string> names;  ///< with their dashes; none of a positional
  std::string value_name, description, default_text;
  Value value = Value::none;
  std::vector<std::string> choices;
  bool required = false;
};

struct CommandPage {
  std::string path;  ///< "shards check"; empty for the program itself
  std::string description;
  std::vector<OptionPage> options, positionals;
  std::vector<std::pair<std::string, std::string>> subcommands;  ///< name, description
};

/// "TEXT:{a,b}" of an option that knows its values.
std::vector<std::string> choices_of(const std::string& type) {
  const size_t begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::vector<std::string> choices;
  std::istringstream list(type.substr(begin + 1, end - begin - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

Value kind_of(const std::string& type) {
  const std::string name = type.substr(0, type.find(':'));
  if (name == "DIR") return Value::folder;
  for (const char* file : {"FILE", "NPY", "PATH", "HTML", "SHARDS", "JSON"}) {
    if (name.starts_with(file)) return Value::file;
  }
  return Value::other;
}

OptionPage page_of(const CLI::Option& option) {
  OptionPage page;
  for (const std::string& name : option.get_snames()) page.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) page.names.push_back("--" + name);
  page.description = option.get_description();
  page.default_text = option.get_default_str();
  if (page.default_text.starts_with('[')) {  // of a list
    page.default_text = page.default_text.substr(1, page.default_text.size() - 2);
  }
  page.required = option.get_required();
  const bool is_flag = option.get_items_expected_max() == 0;
  if (is_flag) return page;
  const std::string type = option.get_type_name();
  page.choices = choices_of(type);
  page.value = !page.choices.empty() ? Value::choice : kind_of(type);
  page.value_name = page.choices.empty() ? type.substr(0, type.find(':')) : "NAME";
  if (page.names.empty()) {
    page.value_name = option.get_name(true);
    // Positional arguments of all commands but `schema` are paths.
    if (page.value == Value::other) page.value = Value::file;
  }
  return page;
}

void add_pages(const CLI::App& app, const std::string& path, std::vector<CommandPage>& pages) {
  CommandPage page{path, app.get_description(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    OptionPage one = page_of(*option);
    (one.names.empty() ? page.positionals : page.options).push_back(std::move(one));
  }
  std::vector<const CLI::App*> below;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_group().empty()) continue;
    page.subcommands.emplace_back(sub->get_name(), sub->get_description());
    below.push_back(sub);
  }
  pages.push_back(std::move(page));
  for (const CLI::App* sub : below)
    add_pages(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), pages);
}

std::vector<CommandPage> pages_of(const CLI::App& app) {
  std::vector<CommandPage> pages;
  add_pages(app, "", pages);
  return pages;
}

// ---- the manual page

/// Text in which roff finds no commands: backslashes and hyphens escaped, no line begins with a dot.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string roff_synopsis(const CommandPage& page) {
  std::string out = ".B dalle2\\-train" + (page.path.empty() ? "" : " " + roff(page.path)) + "\n";
  for (const OptionPage& option : page.options) {
    if (!option.required) continue;
    out +=
        fmt::format("\\fB{}\\fR \\fI{}\\fR\n", roff(option.names.back()), roff(option.value_name));
  }
  const bool optional = std::any_of(page.options.begin(), page.options.end(), [](const auto& one) {
    return !one.required && one.names.front() != "-h";
  });
  if (optional) out += "[\\fIoptions\\fR]\n";
  for (const OptionPage& one : page.positionals)
    out += fmt::format("\\fI{}\\fR\n", roff(one.value_name));
  return out;
}

std::string roff_options(const CommandPage& page) {
  std::string out;
  const auto add = [&](const OptionPage& option) {
    std::string head = fmt::format("{}", fmt::join(option.names, ", "));
    out += ".TP\n\\fB" + roff(head) + "\\fR";
    if (!option.value_name.empty())
      out += fmt::format("{}\\fI{}\\fR", head.empty() ? "" : " ", roff(option.value_name));
    out += "\n" + roff(option.description);
    const bool named = !option.choices.empty() &&
                       option.description.find(option.choices.back()) != std::string::npos;
    if (!option.choices.empty() && !named)
      out += roff(fmt::format(" (one of {})", fmt::join(option.choices, ", ")));
    if (!option.default_text.empty())
      out += roff(fmt::format(" [default: {}]", option.default_text));
    out += "\n";
  };
  for (const OptionPage& one : page.positionals) add(one);
  for (const OptionPage& one : page.options) {
    if (page.path.empty() || one.names.front() != "-h") add(one);
  }
  return out;
}

// ---- completions

/// Inside single quotes of a shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string first_sentence(const std::string& text) {
  const size_t end = text.find_first_of(";(\n");
  std::string head = text.substr(0, end);
  while (!head.empty() && head.back() == ' ') head.pop_back();
  return head;
}

std::string long_name(const OptionPage& option) {
  const auto found = std::find_if(option.names.begin(), option.names.end(), [](const auto& name) {
    return name.starts_with("--");
  });
  return found == option.names.end() ? option.names.front() : *found;
}

/// What follows an option that takes a value.
std::string bash_reply(const OptionPage& option) {
  const char* files =
      "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen {} -- \"$cur\")); return";
  if (option.value == Value::file) return fmt::format(fmt::runtime(files), "-f");
  if (option.value == Value::folder) return fmt::format(fmt::runtime(files), "-d");
  if (option.value != Value::choice) return "return";
  return fmt::format("COMPREPLY=($(compgen -W {} -- \"$cur\")); return",
                     shell_quoted(fmt::format("{}", fmt::join(option.choices, " "))));
}

std::string bash_completion(const std::vector<CommandPage>& pages) {
  std::string cases, values;
  for (const CommandPage& page : pages) {
    std::string words, options;
    bool takes_files = false;
    for (const auto& [name, text] : page.subcommands) words += name + " ";
    for (const OptionPage& one : page.positionals) {
      words += fmt::format("{} ", fmt::join(one.choices, " "));
      takes_files = takes_files || one.choices.empty();
    }
    for (const OptionPage& option : page.options) {
      options += long_name(option) + " ";
      if (option.value == Value::none) continue;
      for (const std::string& name : option.names)
        values += fmt::format(
            "    {}) {} ;;\n", shell_quoted(page.path + ":" + name), bash_reply(option));
    }
    cases += fmt::format("    {}) words={}; options={}; files={} ;;\n",
                         shell_quoted(page.path),
                         shell_quoted(words),
                         shell_quoted(options),
                         takes_files ? 1 : 0);
  }
  std::string known;
  for (const CommandPage& page : pages) {
    if (!page.path.empty()) known += (known.empty() ? "" : "|") + shell_quoted(page.path);
  }
  return "# bash completion of dalle2-train. Made by `dalle2-train completion bash`.\n"
         "_dalle2_train() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path= word words= "
         "files=0 i\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    word=${path:+$path }${COMP_WORDS[i]}\n"
         "    case $word in " +
         known +
         ") path=$word ;; esac\n"
         "  done\n"
         "  case \"$path:$prev\" in\n" +
         values +
         "  esac\n"
         "  case $path in\n" +
         cases +
         "  esac\n"
         "  if [[ $files = 1 && $cur != -* ]]; then\n"
         "    compopt -o filenames 2>/dev/null\n"
         "    COMPREPLY=($(compgen -f -- \"$cur\"))\n"
         "  fi\n"
         "  [[ $cur = -* || ( -z $words && $files = 0 ) ]] && words+=\" $options\"\n"
         "  COMPREPLY+=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "}\n"
         "complete -F _dalle2_train dalle2-train\n";
}

/// Text of a zsh specification, in which brackets and colons have a meaning.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_value(const OptionPage& option) {
  switch (option.value) {
    case Value::none:
      return "";
    case Value::file:
      return ":" + zsh_text(option.value_name) + ":_files";
    case Value::folder:
      return ":" + zsh_text(option.value_name) + ":_files -/";
    case Value::choice:
      return fmt::format(":{}:({})", option.value_name, fmt::join(option.choices, " "));
    case Value::other:
      break;
  }
  return ":" + zsh_text(option.value_name) + ": ";
}

std::string zsh_completion(const std::vector<CommandPage>& pages) {
  std::string functions;
  for (const CommandPage& page : pages) {
    std::string name = "_dalle2_train" + (page.path.empty() ? "" : "_" + page.path);
    std::replace(name.begin(), name.end(), ' ', '_');
    functions +=
        name +
        "() {\n  local context state state_descr line\n  typeset -A opt_args\n  _arguments -C";
    for (const OptionPage& option : page.options) {
      for (const std::string& one : option.names)
        functions +=
            " \\\n    " + shell_quoted(fmt::format(
                              "*{}[{}]{}", one, zsh_text(option.description), zsh_value(option)));
    }
    for (const OptionPage& one : page.positionals) {
      const std::string value = zsh_value(one);
      functions += " \\\n    " + shell_quoted("*" + (value.empty() ? ":file:_files" : value));
    }
    if (page.subcommands.empty()) {
      functions += "\n}\n";
      continue;
    }
    functions +=
        " \\\n    '1: :->command' '*:: :->rest'\n  case $state in\n    command)\n      local -a "
        "commands=(";
    for (const auto& [sub, text] : page.subcommands)
      functions += "\n        " + shell_quoted(sub + ":" + zsh_text(text));
    functions += ")\n      _describe command commands ;;\n    rest) case $words[1] in\n";
    for (const auto& [sub, text] : page.subcommands)
      functions += fmt::format("        {}) {}_{} ;;\n", sub, name, sub);
    functions += "      esac ;;\n  esac\n}\n";
  }
  return "#compdef dalle2-train\n# zsh completion of dalle2-train. Made by `dalle2-train "
         "completion zsh`.\n" +
         functions + "_dalle2_train \"$@\"\n";
}

std::string fish_completion(const std::vector<CommandPage>& pages) {
  std::string out =
      "# fish completion of dalle2-train. Made by `dalle2-train completion fish`.\ncomplete -c "
      "dalle2-train -f\n";
  for (const CommandPage& page : pages) {
    std::string condition = "__fish_use_subcommand";
    if (!page.path.empty()) {
      condition.clear();
      std::istringstream words(page.path);
      for (std::string word; words >> word;)
        condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    }
    const std::string head = fmt::format("complete -c dalle2-train -n {}", shell_quoted(condition));
    for (const auto& [name, text] : page.subcommands)
      out += fmt::format("{} -a {} -d {}\n", head, name, shell_quoted(first_sentence(text)));
    for (const OptionPage& option : page.options) {
      out += head;
      for (const std::string& name : option.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (option.value == Value::file) out += " -r -F";
      if (option.value == Value::folder) out += " -x -a '(__fish_complete_directories)'";
      if (option.value == Value::choice)
        out += " -x -a " + shell_quoted(fmt::format("{}", fmt::join(option.choices, " ")));
      if (option.value == Value::other) out += " -x";
      out += " -d " + shell_quoted(first_sentence(option.description)) + "\n";
    }
    for (const OptionPage& one : page.positionals) {
      out +=
          head + (one.choices.empty()
                      ? " -F\n"
                      : fmt::format(" -a {}\n",
                                    shell_quoted(fmt::format("{}", fmt::join(one.choices, " ")))));
    }
  }
  return out;
}

}  // namespace

std::string exit_code_lines() {
  std::string out = "Exit codes:";
  size_t width = out.size();
  std::istringstream rows(kExitCodes);
  for (std::string row; std::getline(rows, row);) {
    row.replace(row.find('\t'), 1, " ");
    if (rows.peek() != EOF) row += ",";
    if (width + 1 + row.size() > 98) {
      out += "\n" + row;
      width = row.size();
    } else {
      out += " " + row;
      width += 1 + row.size();
    }
  }
  return out + ".";
}

std::string man_page(const CLI::App& app) {
  const std::vector<CommandPage> pages = pages_of(app);
  std::string out =
      fmt::format(".TH DALLE2\\-TRAIN 1 \"\" \"dalle2\\-train {}\" \"User Commands\"\n",
                  roff(program_version()));
  out += ".SH NAME\ndalle2\\-train \\- train DALLE2\\-style image generators\n.SH SYNOPSIS\n";
  out += ".B dalle2\\-train\n\\fB\\-\\-config\\fR \\fIFILE\\fR [\\fIoptions\\fR]\n.br\n";
  out += ".B dalle2\\-train\n\\fIcommand\\fR [\\fIoptions\\fR]\n";
  out += ".SH DESCRIPTION\n" + roff(pages.front().description) +
         "\n.PP\nWith \\fB\\-\\-config\\fR it trains what the JSON file describes, and continues a "
         "run that was "
         "stopped. Weights, logs and pictures go into the folder \\fItracker.data_path\\fR of the "
         "file. "
         "The commands make, check and look at data, checkpoints and runs.\n";
  out += ".SH OPTIONS\n" + roff_options(pages.front());
  out += ".SH COMMANDS\n";
  for (const CommandPage& page : pages) {
    if (page.path.empty() || !page.subcommands.empty()) continue;
    out += ".SS " + roff(page.path) + "\n" + roff_synopsis(page) + ".PP\n" +
           roff(page.description) + ".\n" + roff_options(page);
  }
  out += ".SH EXIT STATUS\n";
  std::istringstream rows(kExitCodes);
  for (std::string row; std::getline(rows, row);) {
    const size_t tab = row.find('\t');
    out += ".TP\n.B " + row.substr(0, tab) + "\n" + roff(row.substr(tab + 1)) + "\n";
  }
  out +=
      ".SH ENVIRONMENT\n"
      ".TP\n.B AWS_ACCESS_KEY_ID\\fR, \\fBAWS_SECRET_ACCESS_KEY\\fR, \\fBAWS_SESSION_TOKEN\\fR, "
      "\\fBAWS_PROFILE\n"
      "Credentials for s3:// urls; files below ~/.aws are read too.\n"
      ".TP\n.B OMP_NUM_THREADS\nThreads of the arithmetic on the CPU. By default, their "
      "number follows from the config and the cores that the process may use.\n"
      ".TP\n.B DALLE2_NET_TIMEOUT\nSeconds without progress after which a transfer is tried "
      "again.\n";
  out +=
      ".SH EXAMPLES\n"
      "Draw a small data set, and look at what a run would read and take:\n.PP\n.nf\n"
      "dalle2\\-train shards demo \\-\\-out demo\ndalle2\\-train \\-\\-config my.json "
      "\\-\\-dry\\-run\n.fi\n.PP\n"
      "Train, override a value, stop with Ctrl\\-C, and resume with the same command:\n.PP\n.nf\n"
      "dalle2\\-train \\-\\-config my.json \\-\\-set /train/lr=3e\\-4\n.fi\n.PP\n"
      "Draw pictures, and look at the curves:\n.PP\n.nf\n"
      "dalle2\\-train sample \\-\\-checkpoint runs/first/model.pth \\-\\-num 16 \\-\\-out drawn\n"
      "dalle2\\-train report runs/first \\-\\-out report.html\n.fi\n";
  return out;
}

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const std::vector<CommandPage> pages = pages_of(app);
  if (shell == "zsh") return zsh_completion(pages);
  if (shell == "fish") return fish_completion(pages);
  return bash_completion(pages);
}

}  // namespace dalle2
