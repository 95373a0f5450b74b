// SPDX-License-Identifier: MIT
// Thousands of damaged files: each is read, or refused by a DataError, within seconds; nothing else
// may happen. scripts/fuzz.sh runs many more of them under the sanitizers.
#include "base/error.h"

#include "io/files/atomic_file.h"
#include "io/formats/webdataset.h"
#include "support/fixture_folder.h"
#include "support/survive.h"

using namespace dalle2;

namespace {

using test::Outcome;
using test::survive;

ByteSource source_of(const std::string& file) {
  return [&file, at = size_t{0}](char* buffer, size_t capacity) mutable {
    const size_t size = std::min(capacity, file.size() - at);
    std::copy_n(file.data() + at, size, buffer);
    at += size;
    return size;
  };
}

std::string unpacked(const std::string& file) {
  std::string content;
  const ByteSource source = gunzip_source(source_of(file), "x.tar");
  char buffer[4096];
  while (const size_t got = source(buffer, sizeof(buffer))) content.append(buffer, got);
  return content;
}

/// What a tar yields up to its end or its damage.
struct Yield {
  std::vector<GroupedSample> samples;
  int64_t warnings = 0;
  bool damaged = false;
  std::string error;
};

Yield yield_of(const std::string& file) {
  Yield yield;
  try {
    auto tar = std::make_unique<TarReader>(source_of(file), "x.tar");
    SampleReader reader(std::move(tar), [&](const std::string& text) {
      yield.warnings += text.find("second time") != std::string::npos ? 1 : 0;
    });
    while (auto sample = reader.next()) yield.samples.push_back(*std::move(sample));
    CHECK_FALSE(reader.next());
  } catch (const DataError& error) {
    yield.damaged = true;
    yield.error = error.what();
  }
  return yield;
}

/// The members by themselves, and what is to become of them.
struct MemberCounts {
  int64_t nameless = 0, fields = 0, cut = 0, marked_bad = 0;
  bool damaged = false;
};

MemberCounts members_of(const std::string& file) {
  MemberCounts members;
  std::string key;
  int64_t of_key = 0;
  bool bad = false;
  const auto close = [&] {
    members.fields += of_key;
    members.marked_bad += bad ? of_key : 0;
    of_key = 0;
    bad = false;
  };
  try {
    TarReader reader(source_of(file), "x.tar");
    TarMember member;
    while (reader.next(member)) {
      const auto name = split_member_name(member.name);
      if (is_meta_member(member.name) || !name) {
        ++members.nameless;
        continue;
      }
      if (of_key > 0 && name->first != key) close();
      key = name->first;
      ++of_key;
      bad = bad || (name->second == "__bad__" && !member.content.empty());
    }
    close();
    reader.check_rest();
  } catch (const DataError&) {
    members.damaged = true;
    members.cut = of_key;
  }
  return members;
}

/// Every member is in a sample, told to be there twice, or part of the sample that the damage cut.
void check_that_all_is_counted(const std::string& file, const Yield& yield) {
  const MemberCounts members = members_of(file);
  int64_t counted = yield.warnings;  // those of the cut sample, too
  for (const GroupedSample& sample : yield.samples)
    counted += static_cast<int64_t>(sample.fields.size());
  const bool all = counted + members.marked_bad >= members.fields &&
                   counted <= members.fields + members.cut && yield.damaged == members.damaged;
  if (!all) {
    FAIL(members.fields << " fields and " << members.cut << " of a cut sample: " << counted
                        << " counted. " << yield.error);
  }
}

/// No sample that lies whole before the damage is lost.
void check_what_is_before(const test::Mutation& mutation,
                          const std::string& whole,
                          const Yield& yield) {
  const bool plain = whole.size() > 512 && whole.compare(257, 5, "ustar") == 0;
  if (!plain) return;
  const Yield before = yield_of(whole.substr(0, mutation.intact / 512 * 512));
  // The last one may go on behind the damage.
  for (size_t i = 0; i + 1 < before.samples.size(); ++i) {
    const GroupedSample& wanted = before.samples[i];
    if (i >= yield.samples.size() || yield.samples[i].key != wanted.key ||
        yield.samples[i].fields != wanted.fields) {
      FAIL("sample " << i << ", key " << wanted.key << ", lies before the damage at byte "
                     << mutation.intact << " and did not come out: " << yield.error);
    }
  }
}

}  // namespace

TEST_CASE("damaged tars yield all samples before the damage, and what is lost is told",
          "[damage]") {
  std::vector<std::string> files;
  for (const std::string& file : test::files_in(test::fixture_folder("webdataset"), ".tar", 29)) {
    // Unpacked, for damage to a packed one is mostly caught by its checksum; some packed, too.
    files.push_back(files.size() % 4 == 3 ? file : unpacked(file));
  }
  const auto read = [](const test::Mutation& mutation, const std::string& whole) {
    const Yield yield = yield_of(mutation.file);
    check_that_all_is_counted(mutation.file, yield);
    check_what_is_before(mutation, whole, yield);
    if (yield.damaged) throw DataError("{}", yield.error);
  };
  const Outcome outcome = survive("tar", files, 2000, read);
  CHECK(outcome.refused > 0);
  CHECK(outcome.accepted > 0);
}
