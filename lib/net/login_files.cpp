// SPDX-License-Identifier: MIT
#include "net/login_files.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "net/parsed_url.h"

namespace dalle2 {
namespace {

/// Words with special characters may stand in quotes, as the client of Weights & Biases writes them.
std::string next_word(std::istream& words) {
  std::string word;
  words >> std::ws;
  const int quote = words.peek();
  if (quote != '\'' && quote != '"') {
    words >> word;
    return word;
  }
  words.get();
  for (int next = words.get(); words && next != quote; next = words.get()) {
    if (next == '\\') next = words.get();
    if (words) word += static_cast<char>(next);
  }
  return word;
}

/// Of a "machine" or the "default".
struct Entry {
  bool is_host = false, is_default = false;
  NetrcLogin login;
};

/// The next entry, from behind its first word to before that of the one after it.
/// @param word the first word; afterwards that of the next entry, empty at the end
Entry next_entry(std::istream& words, std::string& word, const std::string& host) {
  Entry entry;
  if (word == "machine") entry.is_host = lower_case(next_word(words)) == lower_case(host);
  if (word == "default") entry.is_default = true;
  for (word.clear(); words >> word; word.clear()) {
    if (word == "machine" || word == "default") break;
    if (word == "login") {
      entry.login.user = next_word(words);
    } else if (word == "password") {
      entry.login.password = next_word(words);
    } else if (word == "account") {
      next_word(words);
    } else if (word == "macdef") {  // up to an empty line
      for (std::string line; std::getline(words, line) && !line.empty();) {
      }
    } else if (word.starts_with('#')) {
      std::getline(words, word);
    }
  }
  return entry;
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string service_address(const std::string& given,
                            const std::string& source,
                            const std::string& usual,
                            const std::string& secret,
                            bool plain_http) {
  std::string url = with_small_schemes(trimmed(given));
  while (url.ends_with('/')) url.pop_back();
  if (url.empty()) return usual;
  const std::string is = fmt::format("{} is \"{}\"", source, public_url(url));
  const bool is_plain = url.starts_with("http://");
  if (!is_plain && !url.starts_with("https://")) {
    throw ConfigError("{}: expected an address such as {}", is, usual);
  }
  if (public_url(url) != url) {
    throw ConfigError(
        "{} with a login or a query, which would be shown wherever the address is shown.\n  Give the "
        "address alone, and {}.",
        is,
        secret);
  }
  if (is_plain && !plain_http && !ParsedUrl(url).is_loopback()) {
    throw ConfigError(
        "{}: plain http to another machine is refused, because others could read what is secret.\n  "
        "Give an https address, or set allow_plain_http where the config has that key.",
        is);
  }
  return url;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::map<std::string, IniSection> read_ini(const std::string& path) {
  std::map<std::string, IniSection> sections;
  std::ifstream file(path);
  IniSection* section = nullptr;
  std::string outer;
  for (std::string line; std::getline(file, line);) {
    const bool nested = line.starts_with(' ') || line.starts_with('\t');
    const std::string text = trimmed(line);
    if (text.empty() || text[0] == '#' || text[0] == ';') continue;
    if (text[0] == '[') {
      section = &sections[trimmed(text.substr(1, text.find(']') - 1))];
      outer.clear();
      continue;
    }
    const size_t equals = text.find('=');
    if (section == nullptr || equals == std::string::npos) continue;
    const std::string key = trimmed(text.substr(0, equals));
    const std::string value = trimmed(text.substr(equals + 1));
    if (!nested) outer = key;
    (*section)[nested ? outer + "." + key : key] = value;
  }
  return sections;
}

std::string value_of(const IniSection& section, const std::string& key) {
  const auto found = section.find(key);
  return found == section.end() ? "" : found->second;
}

std::optional<NetrcLogin> netrc_login(const std::string& text,
                                      const std::string& host,
                                      const std::string& user) {
  std::istringstream words(text);
  std::optional<NetrcLogin> of_default;
  std::string word;
  do {
    const Entry entry = next_entry(words, word, host);
    if (entry.login.password.empty() || (!user.empty() && entry.login.user != user)) continue;
    if (entry.is_host) return entry.login;
    if (entry.is_default) of_default = entry.login;
  } while (!word.empty());
  return of_default;
}

NetrcFile read_netrc() {
  NetrcFile file{.path = environment("NETRC"), .text = {}};
  if (file.path.empty()) file.path = environment("HOME") + "/.netrc";
  std::ifstream stream(file.path);
  std::stringstream text;
  text << stream.rdbuf();
  file.text = text.str();
  return file;
}

}  // namespace dalle2
