// SPDX-License-Identifier: MIT
#include "tracker/places/uploads.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tracker/outbox_folder.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using test::file_for;
using test::OutboxFolder;

TEST_CASE("what waits keeps its bytes whatever is saved later, and is there after a restart") {
  const OutboxFolder folder;
  {
    Outbox outbox(folder.outbox);
    outbox.add(file_for("a.pth", folder.save("first")));
    folder.save("second");
  }
  const Outbox again(folder.outbox);
  REQUIRE(again.waiting().size() == 1);
  const OutboxEntry found = again.waiting().front();
  CHECK(read_file(found.path) == "first");
  CHECK(found.target == "a.pth");
  CHECK(found.to == "there");
  CHECK(found.kind == "checkpoint");
  CHECK(found.bytes == 5);
}

TEST_CASE("a newer file for the same place replaces one that waits, not one that is being sent") {
  const OutboxFolder folder;
  Outbox outbox(folder.outbox);
  outbox.add(file_for("a.pth", folder.save("1")));
  outbox.add(file_for("a.pth", folder.save("2"), "elsewhere"));
  const OutboxEntry sending = outbox.waiting().front();
  outbox.begin(sending);
  outbox.add(file_for("a.pth", folder.save("3")));
  outbox.add(file_for("a.pth", folder.save("4")));
  std::vector<std::string> contents;
  for (const OutboxEntry& waiting : outbox.waiting()) contents.push_back(read_file(waiting.path));
  CHECK(contents == std::vector<std::string>{"1", "2", "4"});
  // It failed: the newer one counts.
  outbox.end(sending, Outbox::Outcome::kFailed);
  CHECK(outbox.waiting().size() == 2);
  CHECK(folder.names().size() == 4);
}

TEST_CASE("a file of which a part is at the service waits before the newer one, unless refused") {
  const OutboxFolder folder;
  Outbox outbox(folder.outbox);
  outbox.add(file_for("a.pth", folder.save("1")));
  const OutboxEntry begun = outbox.waiting().front();
  outbox.begin(begun);
  outbox.keep_notes(begun.number, "id of 1", /*on_disk=*/true);
  outbox.add(file_for("a.pth", folder.save("2")));
  outbox.end(begun, Outbox::Outcome::kFailed);
  outbox.add(file_for("a.pth", folder.save("3")));
  // As the next process finds it.
  const std::vector<OutboxEntry> found = Outbox(folder.outbox).waiting();
  REQUIRE(found.size() == 2);
  CHECK(read_file(found[0].path) == "1");
  CHECK(found[0].notes == "id of 1");
  CHECK(read_file(found[1].path) == "3");
  CHECK(found[1].notes.empty());
  outbox.end(begun, Outbox::Outcome::kRefused);
  REQUIRE(outbox.waiting().size() == 1);
  CHECK(folder.names() == std::vector<std::string>{"00000003.json", "00000003_checkpoint.pth"});
}

TEST_CASE("notes of an upload that must not be on the disk are kept by the process alone") {
  const OutboxFolder folder;
  Outbox outbox(folder.outbox);
  outbox.add(file_for("a.pth", folder.save("1")));
  outbox.keep_notes(1, "canary", /*on_disk=*/false);
  CHECK(outbox.waiting().front().notes == "canary");
  CHECK(folder.names().size() == 2);
  CHECK(Outbox(folder.outbox).waiting().front().notes.empty());
}

TEST_CASE("a kill while a file is sent does not bring an older one back after the newer") {
  const OutboxFolder folder;
  {
    Outbox outbox(folder.outbox);
    outbox.add(file_for("a.pth", folder.save("old")));
    outbox.begin(outbox.waiting().front());
    outbox.add(file_for("a.pth", folder.save("new")));
    outbox.add(file_for("b.pth", folder.save("other")));
    CHECK(outbox.waiting().size() == 3);
  }
  const Outbox again(folder.outbox);
  REQUIRE(again.waiting().size() == 2);
  CHECK(read_file(again.waiting().front().path) == "new");
  CHECK(folder.names().size() == 4);
}

TEST_CASE("what has another name in the folder is somebody else's, and stays") {
  const OutboxFolder folder;
  for (const char* name : {"letter.txt", "7.json", "notes.json", "1234567_x"}) {
    write_file_atomically(folder.outbox + "/" + name, "mine");
  }
  fs::create_directories(folder.outbox + "/00000003_folder");
  CHECK(Outbox(folder.outbox).waiting().empty());
  CHECK(folder.names() ==
        std::vector<std::string>{
            "00000003_folder", "1234567_x", "7.json", "letter.txt", "notes.json"});
}

TEST_CASE("what a kill left half done in an outbox is removed, and nothing else is ever sent") {
  const OutboxFolder folder;
  {
    Outbox outbox(folder.outbox);
    outbox.add(file_for("whole.pth", folder.save("whole")));
  }
  write_file_atomically(folder.outbox + "/00000007_checkpoint.pth", "no note");
  write_file_atomically(folder.outbox + "/00000008_checkpoint.pth.part", "half");
  write_file_atomically(folder.outbox + "/00000001.parts.part", "half");
  write_file_atomically(folder.outbox + "/00000006.parts", "of nothing");
  write_file_atomically(folder.outbox + "/00000009.json", "{\"to\": \"there\", \"tar");
  write_file_atomically(
      folder.outbox + "/00000010.json",
      R"({"to": "there", "target": "t", "kind": "k", "file": "../checkpoint.pth"})");
  write_file_atomically(folder.outbox + "/00000011.json",
                        R"({"to": "there", "target": "t", "kind": "k", "file": "00000011_x"})");
  fs::create_symlink("/etc/hostname", folder.outbox + "/00000011_x");
  Outbox outbox(folder.outbox);
  REQUIRE(outbox.waiting().size() == 1);
  CHECK(outbox.waiting().front().target == "whole.pth");
  CHECK(folder.names() == std::vector<std::string>{"00000001.json", "00000001_checkpoint.pth"});
  CHECK(read_file(folder.file) == "whole");
  // Numbers go on behind all that were there.
  outbox.add(file_for("next.pth", folder.save("next")));
  CHECK(outbox.waiting().back().number == 12);
}

TEST_CASE("a file whose note cannot be read now stays where it is, and the others are sent") {
  const OutboxFolder folder;
  {
    Outbox outbox(folder.outbox);
    outbox.add(file_for("whole.pth", folder.save("whole")));
  }
  fs::create_directories(folder.outbox + "/00000004.json");  // no file system can read it as a file
  write_file_atomically(folder.outbox + "/00000004_checkpoint.pth", "of that note");
  Outbox outbox(folder.outbox);
  REQUIRE(outbox.waiting().size() == 1);
  CHECK(outbox.waiting().front().target == "whole.pth");
  CHECK(read_file(folder.outbox + "/00000004_checkpoint.pth") == "of that note");
  outbox.add(file_for("next.pth", folder.save("next")));
  CHECK(outbox.waiting().back().number == 5);
}

TEST_CASE("a part of a file is swept, and no folder is made for nothing") {
  const OutboxFolder folder;
  const Outbox absent(folder.outbox);
  CHECK_FALSE(fs::exists(folder.outbox));
  write_file_atomically(folder.outbox + "/00000001_checkpoint.pth.part", "half");
  const Outbox swept(folder.outbox);
  CHECK(folder.names().empty());
}

/// Of files that wait; what has a second name takes no space.
uint64_t bytes_in(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& item : fs::directory_iterator(folder)) {
    const bool takes_space = fs::hard_link_count(item.path()) == 1;
    if (takes_space && item.path().filename().string().find('_') == 8) bytes += item.file_size();
  }
  return bytes;
}

TEST_CASE("a disk that is nearly full gives up the oldest files that take space, and names them") {
  const OutboxFolder folder;
  uint64_t disk = 1000;
  Outbox outbox(folder.outbox, [&](const std::string& path) {
    return std::optional<uint64_t>(disk - std::min(disk, bytes_in(path)));
  });
  const std::string content(100, 'x');
  std::vector<std::string> removed;
  const auto add = [&](const std::string& target) {
    removed.clear();
    for (const OutboxEntry& gone : outbox.add(file_for(target, folder.save(content)))) {
      removed.push_back(gone.target);
    }
  };
  const auto targets = [&] {
    std::vector<std::string> names;
    for (const OutboxEntry& waiting : outbox.waiting()) names.push_back(waiting.target);
    return names;
  };
  for (const char* target : {"a", "b", "c", "d"}) add(target);
  CHECK(removed.empty());
  CHECK(bytes_in(folder.outbox) == 300);  // the newest is checkpoint.pth, too
  // The next checkpoint needs room twice: 200 of 430. The oldest is being sent, the next one goes.
  outbox.begin(outbox.waiting().front());
  disk = 430;
  add("e");
  CHECK(removed == std::vector<std::string>{"b", "c"});
  CHECK(targets() == std::vector<std::string>{"a", "d", "e"});
  CHECK(folder.names().size() == 6);
  // What has a second name would free nothing by going, and the newest never goes.
  disk = 50;
  fs::create_hard_link(outbox.waiting()[1].path, folder.dir / "d.pth");
  add("f");
  CHECK(removed == std::vector<std::string>{"e"});
  CHECK(targets() == std::vector<std::string>{"a", "d", "f"});
  // One that was begun may go.
  outbox.end(outbox.waiting().front(), Outbox::Outcome::kFailed);
  outbox.keep_notes(outbox.waiting().front().number, "id of a", /*on_disk=*/true);
  add("g");
  CHECK(removed == std::vector<std::string>{"a", "f"});
}

}  // namespace
}  // namespace dalle2
