// SPDX-License-Identifier: MIT
#include "io/formats/webdataset.h"

#include "base/untrusted_text.h"
#include "io/files/folder_names.h"
#include "io/text/unicode.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace dalle2 {
namespace {

/// Python's str.lower(). Bytes that are not UTF-8 stay.
std::string unicode_lower_case(std::string_view text) {
  std::string lower;
  while (!text.empty()) {
    const size_t good = first_foreign_byte(text);
    lower += utf8(lower_case_of(code_points(text.substr(0, good))));
    lower += text.substr(good, 1);
    text.remove_prefix(std::min(good + 1, text.size()));
  }
  return lower;
}

}  // namespace

// The regular expression of webdataset, ^((?:.*/|)[^.]+)[.]([^/]*)$ : a folder part that is as long
// as possible (or none), a part without dots, a dot, the field. A folder part has no newline.
std::optional<std::pair<std::string, std::string>> split_member_name(const std::string& name) {
  const size_t last_slash = name.rfind('/');
  const size_t base = last_slash == std::string::npos ? 0 : last_slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == std::string::npos) return std::nullopt;
  const size_t newline = name.find('\n');
  // Where the part without dots may begin: behind a slash or at 0, the rightmost place first. It
  // grows leftward until a dot gets into it.
  for (size_t begin = base;;) {
    if (begin < dot && (begin <= newline || begin == 0)) {
      return std::make_pair(name.substr(0, dot), name.substr(dot + 1));
    }
    if (begin == 0) return std::nullopt;
    const size_t slash = begin >= 2 ? name.rfind('/', begin - 2) : std::string::npos;
    const size_t next = slash == std::string::npos ? 0 : slash + 1;
    if (std::string_view(name).substr(next, begin - next).find('.') != std::string_view::npos) {
      return std::nullopt;
    }
    begin = next;
  }
}

bool is_meta_member(const std::string& name) {
  const std::string_view view(name);
  const size_t slash = view.find('/');
  if (slash == std::string_view::npos && view.starts_with("__") && view.ends_with("__")) {
    return true;
  }
  std::string_view top = view.substr(0, slash);
  if (slash == std::string_view::npos && top.ends_with('\n')) {
    top.remove_suffix(1);  // `$` of Python also matches before a last newline
  }
  return top.size() >= 4 && top.starts_with("__") && top.ends_with("__");
}

std::vector<ListedSample> group_places(const std::vector<TarPlace>& places) {
  std::vector<ListedSample> samples;
  for (const TarPlace& place : places) {
    auto name = split_member_name(place.name);
    if (!name || is_meta_member(place.name)) continue;
    if (samples.empty() || samples.back().key != name->first)
      samples.push_back({std::move(name->first), {}});
    samples.back().members.emplace_back(std::move(name->second), place.offset);
  }
  return samples;
}

const std::string* GroupedSample::find(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    const auto found = fields.find(name);
    if (found != fields.end()) return &found->second;
  }
  return nullptr;
}

std::string no_field_text(const GroupedSample& sample, std::span<const char* const> names) {
  std::string text = std::string("no field ") + names.front();
  std::vector<std::string> dotted;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += (i + 1 < names.size() ? ", " : " or ") + std::string(names[i]);
    for (const auto& [field, content] : sample.fields) {
      if (field.ends_with("." + std::string(names[i]))) dotted.push_back(field);
    }
  }
  if (dotted.empty()) return text;
  std::ranges::sort(dotted);
  return fmt::format(
      "{}; it has the field{} {} (a key ends at the first dot of the name: replace the others)",
      text,
      dotted.size() == 1 ? "" : "s",
      short_list(dotted));
}

const char* GroupedSample::picture_field() const {
  for (const char* name : kPictureFields) {
    if (fields.contains(name)) return name;
  }
  return nullptr;
}

const std::string* GroupedSample::picture() const {
  const char* field = picture_field();
  return field != nullptr ? &fields.at(field) : nullptr;
}

std::string GroupedSample::several_pictures() const {
  std::vector<std::string> names;
  for (const char* name : kPictureFields) {
    if (fields.contains(name)) names.emplace_back(name);
  }
  if (names.size() < 2) return "";
  return fmt::format("has the pictures {}: {} is used", fmt::join(names, " and "), names.front());
}

SampleReader::SampleReader(const std::string& path, MemberWarning warn)
    : SampleReader(std::make_unique<TarReader>(path), std::move(warn)) {}

SampleReader::SampleReader(std::unique_ptr<MemberSource> members, MemberWarning warn)
    : members_(std::move(members)), warn_(std::move(warn)) {}

/// Takes the next member. @return the sample that it closed, if any
std::optional<GroupedSample> SampleReader::add(TarMember member) {
  if (is_meta_member(member.name)) return std::nullopt;
  auto split = split_member_name(member.name);
  if (!split) {
    ++passed_over_;
    return std::nullopt;
  }
  std::string& key = split->first;
  const std::string field = unicode_lower_case(split->second);
  std::optional<GroupedSample> closed;
  if (!current_ || current_->key != key) {
    closed = close();
    if (closed_keys_.contains(key) && !std::exchange(warned_of_return_, true)) {
      warn(fmt::format(
          "the key {} comes back after other keys, so its fields are in two samples; the members "
          "of a sample have to follow each other (tar --sort=name)",
          key));
    }
    current_ = GroupedSample{std::move(key), {}};
  }
  // __key__ and __url__ are fields that webdataset itself sets.
  if (field == "__key__" || field == "__url__" || current_->fields.contains(field)) {
    warn(fmt::format("the member {} has the field \"{}\" of its sample a second time; left out",
                     member.name,
                     field));
    return closed;
  }
  current_->fields.emplace(field, std::move(member.content));
  return closed;
}

/// @return the sample in progress, if any
std::optional<GroupedSample> SampleReader::close() {
  if (!current_) return std::nullopt;
  std::optional<GroupedSample> sample = std::exchange(current_, std::nullopt);
  closed_keys_.insert(sample->key);
  const auto bad = sample->fields.find("__bad__");  // a mark that webdataset knows
  return bad != sample->fields.end() && !bad->second.empty() ? std::nullopt : sample;
}

void SampleReader::warn(const std::string& text) const {
  if (warn_) warn_(text);
}

std::optional<GroupedSample> SampleReader::next() {
  while (!done_) {
    TarMember member;
    try {
      done_ = !members_->next(member);
    } catch (...) {
      done_ = true;
      next_offset_.reset();
      current_.reset();  // fields of it may be missing
      throw;
    }
    if (done_) {
      next_offset_.reset();
      rest_is_checked_ = false;
      if (auto last = close()) return last;
      break;
    }
    // A member that closes a sample is the first of the next one.
    if (std::optional<GroupedSample> sample = add(std::move(member))) {
      next_offset_ = members_->member_offset();
      return sample;
    }
  }
  if (!std::exchange(rest_is_checked_, true)) members_->check_rest();
  return std::nullopt;
}

}  // namespace dalle2
