// SPDX-License-Identifier: MIT
#include "net/url.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/public_url.h"

namespace dalle2 {
namespace {

/// A text that libcurl made, and its size if it may hold zeros.
std::string taken(char* text, int size = -1) {
  const std::unique_ptr<char, void (*)(void*)> owned(text, &curl_free);
  if (text == nullptr) return "";
  return size < 0 ? text : std::string(text, static_cast<size_t>(size));
}

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

}  // namespace

std::string uri_encode(std::string_view text, bool keep_slash) {
  if (text.empty()) return "";  // libcurl takes a size of 0 for one that it has to find
  const std::string encoded =
      taken(curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())));
  return keep_slash ? replaced(encoded, "%2F", "/") : encoded;
}

std::string uri_decode(const std::string& text) {
  int size = 0;
  char* const bytes =
      curl_easy_unescape(nullptr, text.data(), static_cast<int>(text.size()), &size);
  return taken(bytes, size);
}

std::string without_entities(std::string_view text) {
  std::string plain(text);
  for (const auto& [entity, character] : {std::pair("&lt;", "<"),
                                          std::pair("&gt;", ">"),
                                          std::pair("&quot;", "\""),
                                          std::pair("&apos;", "'"),
                                          std::pair("&amp;", "&")})  // last: it makes no entity
    plain = replaced(std::move(plain), entity, character);
  return plain;
}

bool ParsedUrl::is_signed() const {
  std::istringstream query(lower_case(part(CURLUPART_QUERY)));
  for (std::string entry; std::getline(query, entry, '&');) {
    const std::string name = entry.substr(0, entry.find('='));
    if (name == "sig" || name.ends_with("signature")) return true;
  }
  return false;
}

bool ParsedUrl::is_loopback() const {
  const std::string name = host();
  const bool is_number = name.find_first_not_of("0123456789.") == std::string::npos;
  return name == "localhost" || name == "[::1]" || (is_number && name.starts_with("127."));
}

std::string ParsedUrl::part(CURLUPart which, unsigned flags) const {
  char* text = nullptr;
  return curl_url_get(handle_.get(), which, &text, flags) == CURLUE_OK ? taken(text) : "";
}

void check_plain_http(const std::string& url, bool is_allowed, const std::string& what) {
  if (is_allowed || !url.starts_with("http://") || is_loopback_url(url)) return;
  throw ConfigError(
      "{}: plain http to another machine ({}) is refused, because others could read and change what is "
      "sent.\n  Give an https address, or set allow_plain_http where the config has that key.",
      what,
      public_url(url));
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string first_of(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts) {
    if (!text.empty()) return text;
  }
  return "";
}

std::string service_address(const std::string& given,
                            const std::string& source,
                            const std::string& usual,
                            const std::string& secret,
                            bool plain_http) {
  std::string url = without_slash(with_small_schemes(trimmed(given)));
  if (url.empty()) return usual;
  const std::string is = fmt::format("{} is \"{}\"", source, public_url(url));
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    throw ConfigError("{}: expected an address such as {}", is, usual);
  }
  if (public_url(url) != url) {
    throw ConfigError(
        "{} with a login or a query, which would be shown wherever the address is shown.\n  Give the "
        "address alone, and {}.",
        is,
        secret);
  }
  check_plain_http(url, plain_http, is);
  return url;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

IniFile read_ini(const std::string& path) {
  IniFile sections;
  std::ifstream file(path);
  std::map<std::string, std::string>* section = nullptr;
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

std::optional<NetrcLogin> netrc_login(const std::string& text,
                                      const std::string& host,
                                      const std::string& user) {
  const std::string nowhere = "\n", anywhere;  // before the first entry, and of the default
  std::vector<std::pair<std::string, NetrcLogin>> entries = {{nowhere, {}}};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "machine") {
      entries.emplace_back(lower_case(next_word(words)), NetrcLogin{});
    } else if (word == "default") {
      entries.emplace_back(anywhere, NetrcLogin{});
    } else if (word == "login") {
      entries.back().second.user = next_word(words);
    } else if (word == "password") {
      entries.back().second.password = next_word(words);
    } else if (word == "account") {
      next_word(words);
    } else if (word == "macdef") {  // up to an empty line
      while (std::getline(words, word) && !word.empty()) {
      }
    } else if (word.starts_with('#')) {
      std::getline(words, word);
    }
  }
  for (const std::string& wanted : {lower_case(host), anywhere}) {
    for (const auto& [of, login] : entries) {
      const bool fits = of == wanted && (user.empty() || login.user == user);
      if (fits && !login.password.empty()) return login;
    }
  }
  return std::nullopt;
}

std::string netrc_text() {
  std::stringstream text;
  text << std::ifstream(first_of({environment("NETRC"), environment("HOME") + "/.netrc"})).rdbuf();
  return text.str();
}

}  // namespace dalle2
