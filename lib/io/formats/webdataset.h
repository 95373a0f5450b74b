// SPDX-License-Identifier: MIT
// Members of a tar to samples, by the naming rules of webdataset 1.0.2.
#pragma once

#include "io/formats/tar.h"

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace dalle2 {

/// `dir/000012.seg.png` -> ("dir/000012", "seg.png"): split at the first dot of the base name. The
/// key is opaque and never a path; the field is as stored, not yet lower-cased.
/// @return none for a name without a dot, with a slash after it, or that only has a dot in front
std::optional<std::pair<std::string, std::string>> split_member_name(const std::string& name);

/// True for `__x__` at top level and all that lies below a top folder of such a name.
bool is_meta_member(const std::string& name);

/// Members of a plain tar with the same key that follow each other.
struct ListedSample {
  std::string key;
  std::vector<std::pair<std::string, uint64_t>> members;  ///< field as stored, offset in the tar
};
/// Those that list_tar() found; what makes no sample is left out.
std::vector<ListedSample> group_places(const std::vector<TarPlace>& places);

/// Fields that are pictures; of several in a sample the first of these is used.
inline constexpr std::array kPictureFields = {"jpg", "jpeg", "png", "webp", "jfif"};

/// Members with the same key that follow each other.
struct GroupedSample {
  std::string key;
  std::map<std::string, std::string>
      fields;  ///< lower-cased field ("jpg", "img_emb.npy") -> content

  /// The content of the first of `names` that is there, or null.
  const std::string* find(std::initializer_list<const char*> names) const;
  /// The field that is the picture; null without one.
  const char* picture_field() const;
  const std::string* picture() const;  ///< its content, or null
  /// "has the pictures jpg and png: jpg is used"; empty for one or none.
  std::string several_pictures() const;
};

/// "no field jpg or png", and fields such as "v1.png" that a sample has instead: their name has an earlier
/// dot.
std::string no_field_text(const GroupedSample& sample,
                          std::span<const char* const> names = kPictureFields);

/// What a shard has to tell that is no reason to give it up: a repair note without the shard's
/// name.
using MemberWarning = std::function<void(const std::string& text)>;

/// The samples of one shard in order. A second member of the same key and field is left out with a
/// warning (webdataset's warn_and_continue); so is, once, the note that a key came back after another
/// one.
class SampleReader {
 public:
  /// @throws DataError (cannot be opened)
  explicit SampleReader(const std::string& path, MemberWarning warn = {});
  explicit SampleReader(std::unique_ptr<MemberSource> members, MemberWarning warn = {});
  /// @return the next sample, none at the end. @throws DataError where the shard is damaged:
  /// samples before the damage have been returned, the one cut by it is dropped, and the reader is
  /// done. Damage that only shows after the tar (a checksum of gzip, a command's exit status) is
  /// thrown after the last sample
  std::optional<GroupedSample> next();
  /// Where the sample after the last returned one begins: a byte of the tar, or as its source counts.
  /// @return none before the first sample, at the end, and if the tar is packed
  std::optional<uint64_t> next_offset() const { return next_offset_; }
  bool at_end() const { return done_; }
  /// False at the end of a shard that may have been cut between two members.
  bool has_end_marker() const { return members_->has_end_marker(); }
  /// At the end: MemberSource::unread().
  std::string unread() const { return members_->unread(); }
  /// Members so far that make no sample: their names have no extension, or they are no files.
  int64_t passed_over() const { return passed_over_ + members_->passed_over(); }

 private:
  std::optional<GroupedSample> add(TarMember member);
  std::optional<GroupedSample> close();
  void warn(const std::string& text) const;

  std::unique_ptr<MemberSource> members_;
  MemberWarning warn_;
  std::optional<GroupedSample> current_;
  std::unordered_set<std::string> closed_keys_;
  bool warned_of_return_ = false;
  int64_t passed_over_ = 0;
  std::optional<uint64_t> next_offset_;
  bool done_ = false;
  bool rest_is_checked_ = true;  // of what follows the tar, once it has ended
};

}  // namespace dalle2
