// SPDX-License-Identifier: MIT
// docs/config.md: an introduction, then the keys of each kind of run, which the structs describe.
#include "config/config_page.h"

#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/reading/json_text.h"
#include "config/reading/writer.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
namespace {

/// A text of the page that no struct has.
std::string page_text(const std::string& name) {
  const std::string path = DALLE2_SOURCE_DIR "/tests/config/data/page/" + name + ".md";
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string words_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "`" : ", `") + word + "`";
  return text;
}

std::string with_limits(const std::string& type, const Limits& limits) {
  if (std::isfinite(limits.low) && std::isfinite(limits.high) && !limits.low_open &&
      !limits.high_open) {
    return fmt::format("{} {}..{}", type, limits.low, limits.high);
  }
  const std::string text = limits_text(limits);
  return text.empty() ? type : type + " " + text;
}

template <class T>
std::string type_text(const Limits& limits) {
  if constexpr (OptionalTraits<T>::is_optional) {
    using Value = typename OptionalTraits<T>::Value;
    const std::string type = type_text<Value>(limits);
    if constexpr (is_of<Value, std::vector> &&
                  !std::is_same_v<Value, std::vector<TransformConfig>>) {
      using Item = typename Value::value_type;
      if (!limits.one_is_list_) return type + " or null";
      if constexpr (takes_null<Item>) {
        return type_text<typename OptionalTraits<Item>::Value>(limits) +
               ", null, or a list of these";
      }
    }
    return type + (limits.false_is_null_ ? ", false or null" : " or null");
  } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
    return "object";
  } else if constexpr (is_of<T, std::vector>) {
    const std::string item = type_text<typename T::value_type>(limits);
    if (limits.one_is_list_) return item + ", or a list";
    if (item == "object") return "list of objects";
    const std::string count = limits.least > 0 && limits.least == limits.most
                                  ? fmt::format("list of {}: ", limits.most)
                                  : "list of: ";
    return count + item;
  } else if constexpr (is_of<T, OneOrMany>) {
    // Null may stand for the whole and for each entry.
    return type_text<typename T::Value>(limits) +
           (T::is_optional ? ", null, or a list of these" : ", or a list");
  } else if constexpr (std::is_enum_v<T>) {
    std::vector<std::string> names(enum_names<T>.begin(), enum_names<T>.end());
    return words_text(names);
  } else if constexpr (std::is_same_v<T, bool>) {
    return "boolean";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return with_limits("integer", limits);
  } else if constexpr (std::is_same_v<T, double>) {
    return with_limits("number", limits);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return limits.words.empty() ? "string" : words_text(limits.words);
  } else if constexpr (std::is_same_v<T, Colour>) {
    return "`white`, `black`, list of 3 integers";
  } else {
    return "object";
  }
}

/// `text` without `end`, if it ends so.
std::string without_end(const std::string& text, std::string_view end) {
  return text.ends_with(end) ? text.substr(0, text.size() - end.size()) : text;
}

/// A key of a section.
struct Row {
  std::string key, type;
  std::string initial;  ///< its default, or that it is required; empty for an object of defaults
  std::string doc;

  bool operator==(const Row&) const = default;

  bool has_effect() const { return !doc.starts_with("No effect"); }
  /// Its type and default. The default tells that a key is a boolean.
  std::string value() const {
    if (type == "boolean" && (initial == "`true`" || initial == "`false`")) return initial;
    return initial.empty() ? type : type + "; " + initial;
  }
  /// Its type for a kind of run with one network.
  std::string type_of_one() const {
    return without_end(without_end(without_end(type, ", or a list"), ", null, or a list of these"),
                       " or null");
  }
  std::string line() const { return fmt::format("- `{}` ({}): {}\n", key, value(), doc); }
};

struct Section {
  std::string path;  ///< in a config
  std::string title, text = {};
  std::vector<Row> rows = {};

  const Row* row(const std::string& key) const {
    for (const Row& row : rows) {
      if (row.key == key) return &row;
    }
    return nullptr;
  }
  std::string body() const {
    std::string body = text;
    for (const Row& row : rows) body += row.line();
    return body;
  }
};

/// The keys of one struct, and the sections of the structs below it.
class Tables : public IgnoresRules {
 public:
  explicit Tables(std::string path) : path_(std::move(path)) {}

  template <class Member>
  void field(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if constexpr (Reflected<Member>) {
      row<Member>(key, "", doc, limits);
      // Not of Member(): a kind of run may have defaults of its own.
      add_below(sections_of(member, path, "`" + path + "`"));
    } else {
      row<Member>(key, "`" + to_json(member).dump() + "`", doc, limits);
      section<Member>(path);
    }
  }
  template <class Member>
  void required(const char* key, Member&, const char* doc, const Limits& limits = {}) {
    const std::string unless =
        limits.other_key == nullptr ? "" : fmt::format(" without `{}`", limits.other_key);
    row<Member>(key, "**required**" + unless, doc, limits);
    section<Member>(path_.empty() ? key : path_ + "." + key);
  }

  template <class T>
  static std::vector<Section> sections_of(T value,
                                          const std::string& path,
                                          const std::string& title) {
    Tables tables(path);
    value.fields(tables);
    Section section = {.path = path, .title = title, .rows = tables.rows_};
    if constexpr (requires { T::kDoc; }) section.text = fmt::format("\n{}\n", T::kDoc);
    std::vector<Section> sections = {section};
    sections.insert(sections.end(), tables.below_.begin(), tables.below_.end());
    return sections;
  }

 private:
  /// Null is named as the default, or in the type.
  template <class Member>
  void row(const char* key, const std::string& initial, const char* doc, const Limits& limits) {
    std::string type = type_text<Member>(limits);
    if (initial == "`null`") {
      type = type.ends_with(", false or null") ? without_end(type, ", false or null") + " or false"
                                               : without_end(type, " or null");
    }
    rows_.push_back({key, type, initial, doc});
  }

  void add_below(const std::vector<Section>& sections) {
    below_.insert(below_.end(), sections.begin(), sections.end());
  }

  template <class Member>
  void section(const std::string& path) {
    if constexpr (OptionalTraits<Member>::is_optional) {
      section<typename OptionalTraits<Member>::Value>(path);
    } else if constexpr (std::is_same_v<Member, std::vector<TransformConfig>>) {
      below_.push_back(transforms(path));
    } else if constexpr (is_of<Member, std::vector>) {
      section<typename Member::value_type>(path + "[i]");
    } else if constexpr (is_of<Member, OneOrMany>) {
      section<typename Member::value_type>(path);
    } else if constexpr (is_of<Member, std::variant>) {
      alternatives(static_cast<Member*>(nullptr), path);
    } else if constexpr (Reflected<Member>) {
      add_below(sections_of(Member(), path, "`" + path + "`"));
    }
  }

  /// A section with the keys that all alternatives have, then one for each with its own keys.
  template <class... Alternatives>
  void alternatives(std::variant<Alternatives...>*, const std::string& path) {
    using Traits = TagTraits<std::variant<Alternatives...>>;
    std::vector<Section> sections;
    std::vector<std::string> tags;
    const auto add = [&](auto alternative) {
      tags.push_back(fmt::format("\"{}\"", alternative.kTag));
      const std::string tag = fmt::format("`\"{}\": {}`", Traits::key, tags.back());
      sections.push_back(
          sections_of(alternative, path + " with " + tag, "`" + path + "` with " + tag).front());
    };
    (add(Alternatives{}), ...);
    const bool none_is_default = Traits::key == std::string("load_from");
    Section shared = {.path = path, .title = "`" + path + "`"};
    shared.rows.push_back({Traits::key,
                           words_text(tags),
                           none_is_default ? "`null`" : "`" + tags.front() + "`",
                           Traits::doc});
    for (const Row& row : std::vector<Row>(sections.front().rows)) {
      const auto has_row = [&](const Section& section) {
        return std::find(section.rows.begin(), section.rows.end(), row) != section.rows.end();
      };
      if (!std::all_of(sections.begin(), sections.end(), has_row)) continue;
      shared.rows.push_back(row);
      for (Section& section : sections) std::erase(section.rows, row);
    }
    below_.push_back(shared);
    add_below(sections);
  }

  static Section transforms(const std::string& path) {
    Section section = {.path = path, .title = "`" + path + "`"};
    section.text =
        "\nAn object with one key for each transform. The value is an object with the arguments, "
        "`true` for the defaults, or `false` to leave the transform out. The transforms are "
        "applied in the order of their keys. `ToTensor` is needed.\n\n";
    for (size_t i = 0; i < enum_names<TransformKind>.size(); ++i) {
      TransformConfig transform;
      transform.kind = static_cast<TransformKind>(i);
      Tables arguments("");
      transform.fields(arguments);
      section.text += fmt::format("- `{}`{}\n",
                                  enum_names<TransformKind>[i],
                                  arguments.rows_.empty() ? ": no arguments" : "");
      // MkDocs needs four spaces.
      for (const Row& row : arguments.rows_) section.text += "    " + row.line();
    }
    return section;
  }

  std::string path_;
  std::vector<Row> rows_;
  std::vector<Section> below_;
};

/// The paragraphs of a section wrapped; the items of lists stay.
std::string with_wrapped_text(const std::string& body) {
  constexpr size_t kColumns = 140;
  std::string text;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    const bool is_item = line.starts_with("- ") || line.starts_with("    - ");
    while (!is_item && line.size() > kColumns) {
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
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return fmt::format("[{}](#{})", title, anchor);
}

/// Prints each section and key once, and names where an equal one stands.
class Page {
 public:
  void add_text(const std::string& text) {
    end_repeats();
    text_ += text;
  }
  void add(const Section& section, const std::string& kind) {
    const auto first = first_of_path_.find(section.path);
    const bool is_known_path = first != first_of_path_.end();
    const std::string title = is_known_path && !section.path.empty()
                                  ? fmt::format("{} of {}", section.title, kind)
                                  : section.title;
    const auto [known, is_new] = title_of_.emplace(section.body(), title);
    if (!is_new) return repeat(section.title, known->second);
    end_repeats();
    text_ += fmt::format("\n## {}\n{}", title, with_wrapped_text(section.text));
    text_ += keys(section, is_known_path ? &first->second : nullptr);
    first_of_path_.emplace(section.path, section);
  }
  std::string text() const {
    return text_ +
           "\n## Keys without effect\n\nThese keys of the references are accepted, but "
           "change nothing here:\n\n" +
           without_effect_;
  }

 private:
  /// The sections below a repeated one are repeated with it.
  void repeat(const std::string& title, const std::string& known) {
    const auto below = [](const std::string& name, const std::string& above) {
      return !above.empty() && name.starts_with(above + ".") ? name.substr(above.size()) : "";
    };
    const std::string path = below(title, repeated_);
    if (!path.empty() && path == below(known, equal_to_)) return;
    repeated_ = title.substr(0, title.find('`', 1));
    equal_to_ = known.substr(0, known.find('`', 1));
    if (!std::exchange(repeats_, true))
      text_ += "\nThese sections, with those below them, have the same keys as above:\n\n";
    const std::string name = title == known ? "" : fmt::format("{}: see ", title);
    text_ += fmt::format("- {}{}\n", name, link_to(known));
  }
  void end_repeats() {
    repeats_ = false;
    repeated_.clear();
    equal_to_.clear();
  }

  /// @param first section with this path, of another kind of run; null for none
  std::string keys(const Section& section, const Section* first) {
    std::string own, same, other, without_effect;
    for (const Row& row : section.rows) {
      const Row* const known = first == nullptr ? nullptr : first->row(row.key);
      const auto name = [&](const std::string& text) { return text.empty() ? "`" : ", `"; };
      if (!row.has_effect()) {
        without_effect += name(without_effect) + row.key + "`";
      } else if (known == nullptr || known->doc != row.doc) {
        own += row.line();
      } else if (known->type_of_one() != row.type_of_one()) {
        other += fmt::format("{}{}` ({})", name(other), row.key, row.value());
      } else if (known->initial != row.initial) {
        other += fmt::format("{}{}` ({})", name(other), row.key, row.initial);
      } else {
        same += name(same) + row.key + "`";
      }
    }
    if (!without_effect.empty())
      without_effect_ += fmt::format("- `{}`: {}\n", section.path, without_effect);
    std::string text;
    if (!same.empty()) text += fmt::format("\nAs in {}: {}.\n", link_to(first->title), same);
    if (!other.empty())
      text += fmt::format("\nAs in {}, with another default: {}.\n", link_to(first->title), other);
    return with_wrapped_text(text) + (own.empty() ? "" : "\n" + own);
  }

  std::string text_ = page_text("introduction"), without_effect_;
  std::map<std::string, std::string> title_of_;   // by the body
  std::map<std::string, Section> first_of_path_;  // the first that was printed
  bool repeats_ = false;
  std::string repeated_,
      equal_to_;  // of the list's last line, without the end: "`prior.clip", "`decoder.clip"
};

/// @param before, after the keys of a kind
template <class Config>
void add_kind(Page& page, const std::string& before, const std::string& after = "") {
  const std::string& kind = config_kind_of(Config::kKind).name;
  page.add_text(before);
  const std::string title = fmt::format("The sections of {}'s file", kind);
  for (const Section& section : Tables::sections_of(Config(), "", title)) page.add(section, kind);
  page.add_text(after);
}

}  // namespace

std::string config_page() {
  Page page;
  add_kind<TrainDecoderConfig>(page, "", page_text("decoder"));
  add_kind<TrainPriorConfig>(page, page_text("prior"));
  add_kind<TrainVaeConfig>(page, page_text("vae"));
  add_kind<TrainClipConfig>(page, page_text("clip"));
  return page.text();
}

}  // namespace dalle2
