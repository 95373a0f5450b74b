// SPDX-License-Identifier: MIT
#include "config/reading/reader.h"

#include <array>
#include <cctype>
#include <cmath>

#include "base/public_url.h"

namespace dalle2 {
namespace {

std::string guess(const std::string& word, const std::vector<std::string>& words) {
  const std::optional<std::string> near = nearest_word(word, words);
  return near ? fmt::format("; did you mean \"{}\"?", *near) : "";
}

/// "hf_token", "api-key": what a user would write who wants to give a secret.
bool names_secret(const std::string& key) {
  constexpr std::array kWords = {"token",
                                 "secret",
                                 "password",
                                 "passwd",
                                 "authorization",
                                 "credentials",
                                 "apikey",
                                 "api_key",
                                 "access_key",
                                 "key_id"};
  std::string words = "_" + lower_case(key) + "_";
  std::replace_if(
      words.begin(), words.end(), [](char c) { return c < 'a' || c > 'z'; }, '_');
  return std::ranges::any_of(kWords, [&](const char* word) {
    return words.find(fmt::format("_{}_", word)) != std::string::npos;
  });
}

/// In a section of services, where "key" is no key of a dictionary.
bool names_login(const std::string& key) {
  constexpr std::array kWords = {"key", "auth", "pwd", "login"};
  return std::ranges::find(kWords, lower_case(key)) != kWords.end();
}

/// A key of this program for one of others: "lr" for "learning_rate".
std::string word_for(const std::string& key, const std::vector<std::string>& known) {
  constexpr std::array<std::pair<const char*, const char*>, 7> kOthers = {
      {{"learning_rate", "lr"},
       {"num_epochs", "epochs"},
       {"n_epochs", "epochs"},
       {"max_epochs", "epochs"},
       {"weight_decay", "wd"},
       {"bs", "batch_size"},
       {"embeddings_url", "img_embeddings_url"}}};
  for (const auto& [other, own] : kOthers) {
    if (key == other && std::ranges::find(known, own) != known.end()) return own;
  }
  return key;
}

/// The argument that a transform cannot do without; null if there is none.
const char* required_argument(TransformKind kind) {
  const bool has_size = kind == TransformKind::RandomResizedCrop || kind == TransformKind::Resize ||
                        kind == TransformKind::CenterCrop;
  return has_size ? "size" : kind == TransformKind::RandomRotation ? "degrees" : nullptr;
}

/// Whether the loader reads nothing of this kind: "gs://bucket/x", "ftp:x".
bool has_other_scheme(const std::string& path) {
  for (const char* scheme : {"file:", "http://", "https://", "s3://", "hf://", "pipe:"}) {
    if (path.starts_with(scheme)) return false;
  }
  // A single letter in front of the colon is a drive.
  const size_t colon = path.find(':');
  if (colon == std::string::npos || colon < 2) return false;
  return std::isalpha(static_cast<unsigned char>(path[0])) != 0 &&
         std::all_of(path.begin(), path.begin() + static_cast<ptrdiff_t>(colon), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '+' || c == '.' || c == '-';
         });
}

/// The pointers of the keys called `key` in `config`, lists left out.
void find_key(const std::string& key,
              const Json& config,
              const std::string& pointer,
              std::vector<std::string>& found) {
  if (!config.is_object()) return;
  for (const auto& [name, value] : config.items()) {
    const std::string at = pointer + "/" + name;
    if (name == key) found.push_back(at);
    find_key(key, value, at, found);
  }
}

/// The pointer of the one key called `key` in `config`; "" if there is none, or several.
std::string only_place_of(const std::string& key, const Json& config) {
  std::vector<std::string> found;
  find_key(key, config, "", found);
  return found.size() == 1 ? found.front() : "";
}

}  // namespace

void Reader::wrong_type(const Json& json, const std::string& pointer, const std::string& expected) {
  faults_.error(pointer,
                json.is_null() ? fmt::format("must not be null; expected {}", expected)
                               : fmt::format("expected {}, got {}", expected, shown(json)));
}

void Reader::wrong_word(const ValueAt& at,
                        const std::string& expected,
                        const std::vector<std::string>& words) {
  if (!at.json.is_string()) return wrong_type(at.json, at.pointer, expected);
  const std::string near = guess(at.json.get<std::string>(), words);
  faults_.error(at.pointer, fmt::format("expected {}, got {}{}", expected, shown(at.json), near));
}

void Reader::check_count(size_t count, const std::string& pointer, const Limits& limits) {
  if (limits.not_empty_ && count == 0) {
    faults_.error(pointer, "must have at least one entry, got none");
  }
  if (count < limits.least || (limits.most > 0 && count > limits.most)) {
    const std::string expected = limits.least == limits.most
                                     ? std::to_string(limits.least)
                                     : fmt::format("{} to {}", limits.least, limits.most);
    faults_.error(pointer, fmt::format("must have {} entries, got {}", expected, count));
  }
}

void Reader::unknown_key(const std::string& key,
                         const std::string& pointer,
                         const std::vector<std::string>& known,
                         UnknownKeys policy,
                         std::span<const RefusedKey> refused) {
  const std::string at = pointer + "/" + pointer_part(key);
  const std::string near = guess(key, known);
  const auto refused_key =
      std::ranges::find_if(refused, [&](const RefusedKey& each) { return each.key == key; });
  const std::string place = only_place_of(key, findings_.defaults);
  const bool is_overridden = std::ranges::any_of(findings_.overridden, [&](const std::string& set) {
    return set == at || set.starts_with(at + "/") || at.starts_with(set + "/");
  });
  if (names_secret(key) || (names_login(key) && pointer.starts_with("/tracker"))) {
    faults_.error(
        at,
        "no such key, and no place for a secret: tokens, keys and passwords come from the "
        "environment or from files (docs/tracking.md lists them). Remove it, and withdraw "
        "it if others have seen this file");
  } else if (refused_key != refused.end()) {
    faults_.error(at, refused_key->text);
  } else if (!near.empty()) {
    faults_.error(at, "no such key" + near);
  } else if (!place.empty()) {
    const std::string other = fmt::format("; did you mean {}?", place);
    if (is_overridden || policy == UnknownKeys::fatal) {
      faults_.error(at, "no such key" + other);
    } else {
      faults_.warn(at, "no such key, it is ignored" + other);
    }
  } else if (policy == UnknownKeys::fatal || is_overridden) {
    std::string keys;
    for (const std::string& name : known) {
      const bool is_named = (" " + keys + " ").find(" " + name + " ") != std::string::npos;
      if (!is_named) keys += (keys.empty() ? "" : " ") + name;
    }
    faults_.error(at, "no such key; known are: " + keys);
  } else {
    // Of sections: "training" is no typo of "train", and yet no other word. Of keys: those of other programs.
    const std::string word = word_for(key, known);
    const auto similar = std::ranges::find_if(known, [&](const std::string& name) {
      return name == word || (pointer.empty() && key.starts_with(name));
    });
    faults_.warn(at,
                 similar == known.end()
                     ? "no such key, it is ignored"
                     : fmt::format("no such key, it is ignored; did you mean {}?", *similar));
  }
}

void Reader::unknown_tag(const Json& tag,
                         const std::string& pointer,
                         const std::string& noun,
                         const std::vector<std::string>& tags) {
  std::string list;
  for (const std::string& name : tags)
    list += fmt::format("{}'{}'", list.empty() ? "" : ", ", name);
  std::string got = shown(tag);
  if (tag.is_string()) got = got.substr(1, got.size() - (got.ends_with('"') ? 2 : 1));
  faults_.error(pointer,
                fmt::format("Unknown {} type: {}. Must be one of [{}]{}",
                            noun,
                            got,
                            list,
                            guess(tag.is_string() ? tag.get<std::string>() : got, tags)));
}

void Reader::read_scalar(const ValueAt& at, bool& out) {
  const std::optional<bool> value = as_boolean(at.json);
  if (!value) return wrong_type(at.json, at.pointer, "true or false");
  out = *value;
}

void Reader::read_scalar(const ValueAt& at, int64_t& out) {
  const std::optional<int64_t> value = as_integer(at.json);
  if (!value && at.json.is_number_float()) {
    const bool whole = std::floor(at.json.get<double>()) == at.json.get<double>();
    faults_.error(at.pointer,
                  fmt::format("expected an integer, got {} ({})",
                              shown(at.json),
                              whole ? "too large" : "a number with a fractional part"));
    return;
  }
  if (!value) return wrong_type(at.json, at.pointer, "an integer");
  out = *value;
  if (auto fault = limit_fault(at.limits, static_cast<double>(*value), std::to_string(*value))) {
    faults_.error(at.pointer, *fault);
  }
}

void Reader::read_scalar(const ValueAt& at, double& out) {
  const std::optional<double> value = as_number(at.json);
  if (!value) return wrong_type(at.json, at.pointer, "a number");
  out = *value;
  if (auto fault = limit_fault(at.limits, *value, fmt::format("{}", *value))) {
    faults_.error(at.pointer, *fault);
  }
}

void Reader::read_scalar(const ValueAt& at, std::string& out) {
  const auto& [json, pointer, limits] = at;
  const std::optional<int64_t> index = as_integer(json);
  if (json.is_number() && index && *index >= 0 &&
      *index < static_cast<int64_t>(limits.numbered_words)) {
    out = limits.words[static_cast<size_t>(*index)];
    return;
  }
  if (!json.is_string()) return wrong_type(json, pointer, expectation<std::string>(limits));
  out = with_small_schemes(json.get<std::string>());
  if (!limits.words.empty() && std::ranges::find(limits.words, out) == limits.words.end()) {
    return wrong_word(at, expectation<std::string>(limits), limits.words);
  }
  if (limits.not_empty_ && out.empty()) return faults_.error(pointer, "must not be empty");
  if (limits.text_fault_ != nullptr) {
    if (const auto fault = limits.text_fault_(out)) faults_.error(pointer, *fault);
  }
  if (limits.placeholders_ && !findings_.placeholders.empty()) {
    if (const auto fault = template_fault(out, findings_.placeholders)) {
      faults_.error(pointer, *fault);
    }
  }
  if (limits.fetched_ && has_other_scheme(out)) {
    findings_.unavailable.push_back(
        {pointer,
         fmt::format("data comes from files, http://, https://, s3://, hf:// and pipe:COMMAND; for "
                     "other places use \"pipe:\" and a command that writes the file, got {}",
                     shown(json))});
  }
}

void Reader::read_scalar(const ValueAt& at, RawJson& out) {
  if (!at.json.is_object()) return wrong_type(at.json, at.pointer, "an object");
  out.text = at.json.dump();
}

void Reader::read_scalar(const ValueAt& at, Colour& out) {
  const Json& json = at.json;
  if (json == "white") return void(out = {});
  if (json == "black") return void(out = {{0, 0, 0}});
  Colour read;
  bool is_right = json.is_array() && json.size() == read.rgb.size();
  for (size_t i = 0; is_right && i < read.rgb.size(); ++i) {
    const auto value = as_integer(json[i]);
    is_right = value && *value >= 0 && *value <= 255;
    if (is_right) read.rgb[i] = *value;
  }
  if (!is_right) return wrong_type(json, at.pointer, expectation<Colour>(at.limits));
  out = read;
}

void Reader::read_transforms(const Json& json,
                             const std::string& pointer,
                             std::vector<TransformConfig>& out) {
  out.clear();
  if (!json.is_object()) return wrong_type(json, pointer, "an object, name -> arguments");
  for (const auto& [name, arguments] : json.items()) {
    read_transform(name, arguments, pointer + "/" + pointer_part(name), out);
  }
  if (faults_.has_error_under(pointer)) return;
  for (const TransformConfig& transform : out) {
    if (transform.kind == TransformKind::ToTensor) return;
  }
  faults_.error(pointer,
                "ToTensor is missing: pictures cannot be made into a batch without it; add "
                "\"ToTensor\": true as the last transform");
}

void Reader::read_transform(const std::string& name,
                            const Json& json,
                            const std::string& pointer,
                            std::vector<TransformConfig>& out) {
  const auto& names = enum_names<TransformKind>;
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    faults_.error(pointer,
                  fmt::format("no such transform; known are {}{}",
                              enum_list<TransformKind>(),
                              guess(name, {names.begin(), names.end()})));
    return;
  }
  if (json.is_boolean() && !json.get<bool>()) {
    faults_.warn(pointer,
                 "false switches the transform off (the reference applies it all the same)");
    // A disabled ToTensor is reported as missing by the caller.
    return;
  }
  TransformConfig transform;
  transform.kind = static_cast<TransformKind>(found - names.begin());
  if (const char* argument = required_argument(transform.kind);
      argument != nullptr && !json.is_object() && !json.is_boolean() && !json.is_null()) {
    const std::string value = json.is_number() || json.is_array() ? shown(json) : "32";
    return wrong_type(json, pointer, fmt::format("an object like {{\"{}\": {}}}", argument, value));
  }
  // torchvision has it, but for pictures (not tensors) it changes nothing there either.
  if (json.is_object() && json.contains("antialias")) {
    faults_.warn(pointer + "/antialias", "has no effect: pictures are always smoothed when shrunk");
  }
  // Like the reference, anything else but an object means: no arguments.
  read_struct(json.is_object() ? json : Json::object(), pointer, transform, {"antialias"});
  out.push_back(std::move(transform));
}

}  // namespace dalle2
