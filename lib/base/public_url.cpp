// SPDX-License-Identifier: MIT
#include "base/public_url.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "base/untrusted_json.h"

namespace dalle2 {
namespace {

constexpr std::string_view kCommand = "pipe:", kBetween = "::", kBlanks = " \t\r\n";

bool is_letter_or_digit(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

std::string_view without_leading_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kBlanks), text.size()));
}

/// Where the scheme begins that ends at `mark`.
size_t scheme_begin(std::string_view text, size_t mark) {
  while (mark > 0 && is_letter_or_digit(text[mark - 1])) --mark;
  return mark;
}

/// One address, which a list in braces may make several, without users, passwords, queries and
/// fragments. A user of digits alone before a slash is taken for a port.
std::string without_secrets(std::string url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos) return url;
  const size_t host = scheme + 3;
  const size_t end = std::min(url.find_first_of("/?#", host), url.size());
  const std::string_view authority = std::string_view(url).substr(host, end - host);
  size_t at = authority.rfind('@');
  if (at != std::string::npos) {
    at += host;
  } else {
    // What is not a port is the beginning of a password that was not encoded: u:a/b@host.
    const size_t bracket = authority.find(']');
    const size_t colon = authority.find(':', bracket == std::string::npos ? 0 : bracket);
    const bool is_port =
        colon == std::string::npos ||
        authority.find_first_not_of("0123456789,}", colon + 1) == std::string::npos;
    if (!is_port) at = url.rfind('@');
  }
  if (at != std::string::npos && at >= host) url.erase(host, at + 1 - host);
  url.resize(std::min(url.find_first_of("?#", host), url.size()));
  const size_t next = url.find("://", host);
  if (next == std::string::npos) return url;
  const size_t begin = scheme_begin(url, next);
  return url.substr(0, begin) + without_secrets(url.substr(begin));
}

/// A command by its first word.
std::string public_command(std::string_view command) {
  command = without_leading_blanks(command.substr(kCommand.size()));
  const size_t length = static_cast<size_t>(
      std::ranges::find_if_not(command,
                               [](char c) {
                                 return is_letter_or_digit(c) ||
                                        std::string_view("_./+-").find(c) != std::string_view::npos;
                               }) -
      command.begin());
  std::string shown(kCommand);
  if (length == command.size()) return shown.append(command);
  const bool is_word = length > 0 && command[length] != '=';  // a variable's value may follow
  if (is_word) shown.append(command.substr(0, length)) += ' ';
  return shown + "...";
}

/// True for "scheme://...", "pipe:..." and "file:...".
bool begins_url(std::string_view text) {
  text = without_leading_blanks(text);
  if (text.starts_with(kCommand) || text.starts_with("file:")) return true;
  const auto end = std::ranges::find_if_not(
      text, [](char c) { return is_letter_or_digit(c) || c == '+' || c == '-' || c == '.'; });
  const auto scheme = static_cast<size_t>(end - text.begin());
  return scheme > 0 && text.substr(scheme).starts_with("://");
}

/// Where the first address of a list ends. Behind a url or a command only another one is a new
/// address: a password, a query or a command may hold "::" too.
size_t end_of_first(std::string_view list) {
  const size_t first = list.find(kBetween);
  const bool is_path =
      !begins_url(list) && list.substr(0, first).find("://") == std::string_view::npos;
  for (size_t at = first; at != std::string_view::npos; at = list.find(kBetween, at + 1)) {
    if (is_path || begins_url(list.substr(at + kBetween.size()))) return at;
  }
  return list.size();
}

constexpr std::string_view kHidden = "...";

/// Letters and digits from `at` on, and what else a secret may hold.
size_t end_of_word(std::string_view text, size_t at, std::string_view others) {
  while (at < text.size() &&
         (is_letter_or_digit(text[at]) || others.find(text[at]) != std::string_view::npos)) {
    ++at;
  }
  return at;
}

bool has_only(std::string_view word, std::string_view letters) {
  return word.find_first_not_of(letters) == std::string_view::npos;
}

/// A word of letters, digits and '_'. @param is_name of a file or folder, as commits are in caches
bool is_token(std::string_view word, bool is_name) {
  constexpr size_t kLeast = 16, kKeyOfWandb = 40, kIdOfAws = 20;
  for (const std::string_view prefix : {"hf_", "wandb_v1_"}) {
    if (word.starts_with(prefix) && word.size() >= prefix.size() + kLeast) return true;
  }
  if (word.size() == kKeyOfWandb && has_only(word, "0123456789abcdefABCDEF")) return !is_name;
  return word.size() == kIdOfAws && (word.starts_with("AKIA") || word.starts_with("ASIA")) &&
         has_only(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
}

constexpr std::string_view kDigits = "0123456789", kSmall = "abcdefghijklmnopqrstuvwxyz",
                           kLarge = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Base64 of 30 bytes; a path is not taken for it.
bool is_secret_of_aws(std::string_view word) {
  constexpr size_t kSize = 40;
  return word.size() == kSize && word[0] != '/' &&
         word.find_first_of("_.-~") == std::string_view::npos &&
         word.find_first_of(kDigits) != std::string_view::npos &&
         word.find_first_of(kSmall) != std::string_view::npos &&
         word.find_first_of(kLarge) != std::string_view::npos;
}

}  // namespace

std::string public_url(const std::string& url) {
  std::string shown;
  bool behind_command = false;
  for (std::string_view rest = url;;) {
    const size_t end = end_of_first(rest);
    const std::string_view address = rest.substr(0, end);
    const std::string_view begin = without_leading_blanks(address);
    if (begin.starts_with(kCommand)) {
      shown += public_command(begin);
      behind_command = true;
    } else if (behind_command) {  // it may be of the command
      shown += without_secrets(std::string(begin.substr(0, begin.find_first_of(" \t\r\n\"'`"))));
    } else {
      shown += without_secrets(std::string(address));
    }
    if (end == rest.size()) return shown;
    shown += kBetween;
    rest.remove_prefix(end + kBetween.size());
  }
}

std::string public_text(const std::string& text) {
  std::string shown;
  for (size_t at = 0;;) {
    const size_t mark = text.find("://", at);
    if (mark == std::string::npos) return shown.append(text, at);
    const size_t begin = std::max(at, scheme_begin(text, mark));
    if (begin == mark) {  // no scheme
      shown.append(text, at, mark + 3 - at);
      at = mark + 3;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \t\r\n\"", mark), text.size());
    // What is behind a url in a sentence is not part of it.
    const size_t last = text.find_last_not_of(":,.;)'", end - 1);
    const size_t url_end = last < mark + 3 ? end : last + 1;
    shown.append(text, at, begin - at);
    shown += public_url(text.substr(begin, url_end - begin));
    at = url_end;
  }
}

bool is_hub_repo(std::string_view repo) {
  const size_t slash = repo.find('/');
  const auto is_name = [](std::string_view name) {
    return !name.empty() && end_of_word(name, 0, "-._") == name.size();
  };
  return slash != std::string_view::npos && is_name(repo.substr(0, slash)) &&
         is_name(repo.substr(slash + 1)) && repo.find("..") == std::string_view::npos;
}

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

std::string with_small_schemes(std::string url) {
  for (size_t begin = 0;;) {
    for (const std::string_view scheme : {"http://", "https://", "s3://", "hf://", "file:"}) {
      if (lower_case(std::string_view(url).substr(begin, scheme.size())) == scheme) {
        url.replace(begin, scheme.size(), scheme);
      }
    }
    begin = url.find(kBetween, begin);
    if (begin == std::string::npos) return url;
    begin += kBetween.size();
  }
}

std::string without_tokens(const std::string& text) {
  std::string shown;
  const std::string_view all = text;
  for (size_t at = 0, whole = 0; at < all.size();) {
    if (at >= whole) {
      whole = end_of_word(all, at, "_/+.-~");
      while (whole > at && all[whole - 1] == '.') --whole;  // of the sentence
      if (is_secret_of_aws(all.substr(at, whole - at))) {
        shown += kHidden;
        at = whole;
        continue;
      }
    }
    const size_t end = std::max(end_of_word(all, at, "_"), at + 1);
    const std::string_view word = all.substr(at, end - at);
    const bool is_name = (at > 0 && all[at - 1] == '/') || (end < all.size() && all[end] == '/');
    shown += is_token(word, is_name) ? kHidden : word;
    at = end;
  }
  return shown;
}

std::string public_config(const std::string& json) {
  constexpr int kIndent = 4;
  ParsedJson parsed = parse_untrusted_json(json, {.comments = true});
  if (!parsed.is_right()) return json;
  take_out_secrets(parsed.value);
  return parsed.value.dump(kIndent);
}

}  // namespace dalle2
