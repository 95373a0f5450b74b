// SPDX-License-Identifier: MIT
// docs/config.md: an introduction, then the tables of each kind of run.
#include <fmt/format.h>

#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "config/kinds.h"

namespace dalle2 {
namespace {

constexpr const char* kIntroduction = R"(# The config of a training run

<!-- Generated from lib/config; `DALLE2_UPDATE_GENERATED=1 ctest -R config` writes it again. -->

One JSON file describes a run. The file of a decoder has the keys and defaults of dalle2-pytorch's
`train_decoder.py`. Configs for that script work unchanged, except that `pipe:` URLs need
`data.allow_pipe`, and metrics need the [files of their networks](evaluation.md#networks). Further
down are the keys for [priors](#files-that-train-a-prior), [VAEs](#files-that-train-a-vae) and
[CLIPs](#files-that-train-a-clip). The smallest config that trains a decoder:

```json
{
  "decoder": {
    "unets": [{"dim": 32, "dim_mults": [1, 2, 4], "image_embed_dim": 512}],
    "image_sizes": [64]
  },
  "data": {
    "webdataset_base_url": "shards/{}.tar",
    "img_embeddings_url": "embeddings",
    "end_shard": 99,
    "splits": {}
  },
  "train": {},
  "evaluate": {},
  "tracker": {"log": {}, "save": {"save_latest_to": "latest.pth"}}
}
```

## How a config is read

- **All mistakes at once.** The program reports all mistakes together. Each message has the location
  as a JSON pointer (`/decoder/unets/0/dim`), the expected value and the value found, or, for a
  misspelled key, the key that you may have meant. The program then ends with exit code 2, before it reads data or builds a model.
- **Unambiguous forms are accepted.** `"3"`, `8.0`, `1e6` and `true` are read as integers,
  `"1e-4"` as a number, and `0`, `1`, `"yes"`, `"off"` and similar values as booleans. `8.5` is not
  an integer.
- **One value or a list.** If the type is "X, or a list", give one value for all unets (or
  resolutions), or a list with one value for each. For a few keys, the list means something else,
  such as a range, or one value does not apply to all; the table then says so.
- **Unknown keys** give a warning and are ignored. An unknown key is an error if it resembles a known
  key of the same section. For a key of another section, the warning names that section. An unknown
  key is always an error directly in `decoder`, `prior` and `clip`, in `decoder.vae[i]`, `prior.net`
  and `clip.tokenizer`, below keys that end in `_kwargs`, and in the arguments of transforms and
  metrics. A key for a token or a password is an error everywhere. With `--strict`, every warning
  about the file is an error.
- **Editors** check a config while you write it if the key `$schema` names one of the schemas
  `decoder.json`, `prior.json`, `vae.json` and `clip.json` in `configs/schema`.
- **Comments** (`//` and `/* */`) are allowed. A duplicate key in an object is an error.
- **Paths** are relative to the working directory.
- `--set /train/lr=3e-4` changes one value from the command line and overrides the file. The part
  after `=` is read as JSON. If it is not valid JSON, it is read as a string, but it is an error if
  it begins with `[` or `{"`. An unknown key is an error too.
  `--dump-config` prints the resulting config with all defaults.
- **The reference** in these tables is dalle2-pytorch. "Extension" marks a key that the reference
  does not have. In `train`, `evaluate` and `tracker`, not all such keys are marked.
)";

struct Section {
  std::string title, body;
};

constexpr std::string_view kHeading = "\n## ";

std::vector<Section> sections_of(const std::string& text) {
  std::vector<Section> sections;
  for (size_t begin = text.find(kHeading); begin != std::string::npos;) {
    const size_t title = begin + kHeading.size(), body = text.find('\n', title);
    const size_t end = text.find(kHeading, body);
    sections.push_back({text.substr(title, body - title),
                        text.substr(body, end == std::string::npos ? end : end - body)});
    begin = end;
  }
  return sections;
}

/// The paragraphs of a section wrapped; rows of tables, and lists, which their authors wrapped, stay.
std::string with_wrapped_text(const std::string& body) {
  constexpr size_t kColumns = 140;
  std::string text;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    while (!line.starts_with("|") && line.size() > kColumns) {
      const size_t space = line.rfind(' ', kColumns);
      if (space == line.npos) break;
      text += line.substr(0, space) + "\n";
      line.erase(0, space + 1);
    }
    text += line + "\n";
  }
  return text;
}

/// A link to a heading of this page, as GitHub and MkDocs name them.
std::string link_to(const std::string& title) {
  std::string anchor;
  for (const char c : title) {
    if (c == ' ') anchor += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return fmt::format("[{}](#{})", title, anchor);
}

/// Prints each table once, and names where an equal one stands.
class Page {
 public:
  void add(const Section& section, const std::string& kind) {
    const bool is_table = section.title.starts_with("`");
    std::string title = section.title;
    if (is_table) {
      if (titles_.contains(title)) title += " of " + kind;
      const auto [known, is_new] = title_of_.emplace(section.body, title);
      if (!is_new) {
        // The tables below a repeated one are repeated with it.
        const auto below = [](const std::string& name, const std::string& above) {
          return !above.empty() && name.starts_with(above + ".") ? name.substr(above.size()) : "";
        };
        const std::string path = below(section.title, repeated_);
        if (!path.empty() && path == below(known->second, equal_to_)) return;
        repeated_ = section.title.substr(0, section.title.find('`', 1));
        equal_to_ = known->second.substr(0, known->second.find('`', 1));
        if (!std::exchange(repeats_, true)) {
          text_ += "\nThese sections, with those below them, have the same keys as above:\n\n";
        }
        const bool is_same = section.title == known->second;
        text_ += fmt::format("- {}{}\n",
                             is_same ? "" : fmt::format("{}: see ", section.title),
                             link_to(known->second));
        return;
      }
    }
    repeats_ = false;
    repeated_.clear();
    equal_to_.clear();
    titles_.insert(section.title);
    text_ += fmt::format("{}{}{}", kHeading, title, with_wrapped_text(section.body));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_ = kIntroduction;
  std::map<std::string, std::string> title_of_;  // by the body
  std::set<std::string> titles_;
  bool repeats_ = false;
  std::string repeated_,
      equal_to_;  // of the list's last line, without the end: "`prior.clip", "`decoder.clip"
};

}  // namespace

std::string config_docs() {
  Page page;
  for (const ConfigKind& kind : config_kinds()) {
    for (const Section& section : sections_of(kind.docs())) page.add(section, kind.name);
  }
  return page.text();
}

}  // namespace dalle2
