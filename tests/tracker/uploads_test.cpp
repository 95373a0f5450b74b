// SPDX-License-Identifier: MIT
// What is on its way from an outbox to services.
#include "tracker/places/uploads.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

FileToSend file_for(const std::string& target,
                    const std::string& path,
                    const std::string& to = "there") {
  return {.path = path, .to = to, .target = target, .kind = "checkpoint"};
}

/// The whole end. @return how many files are left
size_t finish(Uploads& uploads, double seconds) {
  uploads.begin_end();
  wait_until_sent([&] { return uploads.is_done(); }, [] { return false; }, seconds);
  uploads.end();
  return uploads.waiting().size();
}

struct OutboxFolder {
  /// What an Uploads has said of it.
  struct Errors {
    std::mutex mutex;
    std::vector<std::string> all;

    std::vector<std::string> take() {
      const std::lock_guard lock(mutex);
      return std::exchange(all, {});
    }
  };
  std::shared_ptr<Errors> errors = std::make_shared<Errors>();
  Uploads::OnError on_error = [errors = errors](const std::string& error) {
    const std::lock_guard lock(errors->mutex);
    errors->all.push_back(error);
  };
  test::TempDir dir;
  std::string file = dir / "checkpoint.pth", outbox = dir / "outbox";
  test::CapturedLog log;

  const std::string& save(const std::string& content) const {
    write_file_atomically(file, content);
    return file;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& item : fs::directory_iterator(outbox)) {
      found.push_back(item.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

/// A service of which a test decides when and how it answers.
class Service : public Destination {
 public:
  explicit Service(std::string name = "there") : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void check_access(const HttpOptions& /*options*/) override {}
  bool stores_notes() const override { return is_on_disk; }
  bool is_on_disk = true;
  double asked_seconds = 0;  // to wait after a failure
  void send(const FileToSend& file, UploadNotes& notes, const HttpOptions& options) override {
    std::unique_lock lock(mutex_);
    ++calls_;
    began_with_.push_back(notes.text);
    if (in_parts_) notes.keep("id of " + file.target);
    changed_.notify_all();
    if (failures_ > 0 && options.on_fault) options.on_fault();
    while (held_ && !options.cancelled()) changed_.wait_for(lock, std::chrono::milliseconds(5));
    if (options.cancelled()) throw NetworkError("cancelled");
    if (failures_ > 0) {
      --failures_;
      if (refuses_) throw HttpStatusError(413, "the file is too large");
      if (asked_seconds > 0) throw HttpStatusError(429, "too many requests", asked_seconds);
      throw UnreachableError("the service is out of order");
    }
    sent_.push_back(file.target + "=" + read_file(file.path));
    changed_.notify_all();
  }
  void hold(bool on) {
    const std::lock_guard lock(mutex_);
    held_ = on;
    changed_.notify_all();
  }
  void fail(int times) {
    const std::lock_guard lock(mutex_);
    failures_ = times;
  }
  /// Each upload writes down what it has begun. @param refuses the failures last
  void send_in_parts(bool refuses = false) {
    const std::lock_guard lock(mutex_);
    in_parts_ = true;
    refuses_ = refuses;
  }
  /// The notes of each call.
  std::vector<std::string> began_with() const {
    const std::lock_guard lock(mutex_);
    return began_with_;
  }
  std::vector<std::string> wait_for_sent(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return sent_.size() >= count; });
    return sent_;
  }
  void wait_for_calls(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return calls_ >= count; });
    CHECK(calls_ >= count);
  }

 private:
  std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, in_parts_ = false, refuses_ = false;
  int failures_ = 0, calls_ = 0;
  std::vector<std::string> sent_, began_with_;
};

TEST_CASE("saves that come faster than they can be sent wait for nobody, and the newest is sent") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  service->hold(true);
  Uploads uploads(folder.outbox, {service}, folder.on_error);
  uploads.add(file_for("latest", folder.save("0")));
  service->wait_for_calls(1);  // on its way
  for (int i = 1; i < 10; ++i) {
    uploads.add(file_for("latest", folder.save(std::to_string(i))));
  }
  uploads.add(file_for("best", folder.save("best")));
  CHECK(uploads.waiting().size() == 3);
  service->hold(false);
  CHECK(service->wait_for_sent(3) == std::vector<std::string>{"latest=0", "latest=9", "best=best"});
  CHECK(finish(uploads, 20) == 0);
  CHECK(folder.names().empty());
  CHECK(folder.log.count("Saved checkpoint to there/latest") == 2);
}

TEST_CASE("a failed file is reported, waits, and is sent with the next one") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  service->fail(1);
  Uploads uploads(folder.outbox, {service}, folder.on_error);
  uploads.add(file_for("a", folder.save("a")));
  service->wait_for_calls(1);
  std::vector<std::string> errors;
  while (errors.empty()) errors = folder.errors->take();
  CHECK(errors ==
        std::vector<std::string>{
            "Error saving checkpoint to there/a: the service is out of order\n  It waits in " +
            folder.outbox + "."});
  CHECK(uploads.waiting().size() == 1);
  uploads.add(file_for("b", folder.save("b")));
  CHECK(service->wait_for_sent(2).size() == 2);
  CHECK(finish(uploads, 20) == 0);
  CHECK(folder.errors->take().empty());
}

TEST_CASE("a service that asks to wait is left alone for as long, whatever is saved meanwhile") {
  const OutboxFolder folder;
  const test::CapturedLog log;
  const auto service = std::make_shared<Service>();
  service->asked_seconds = 2;
  service->fail(1);
  Uploads uploads(folder.outbox, {service}, folder.on_error);
  uploads.add(file_for("a", folder.save("a")));
  while (folder.errors->take().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto began = std::chrono::steady_clock::now();
  uploads.add(file_for("b", folder.save("b")));
  CHECK(service->wait_for_sent(2) == std::vector<std::string>{"a=a", "b=b"});
  CHECK(std::chrono::steady_clock::now() - began > std::chrono::seconds(1));
  CHECK(finish(uploads, 20) == 0);
}

TEST_CASE("the end waits for its deadline, and leaves the rest on the disk") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  service->hold(true);
  {
    Uploads uploads(folder.outbox, {service}, folder.on_error);
    uploads.add(file_for("a", folder.save("a")));
    const auto begin = std::chrono::steady_clock::now();
    CHECK(finish(uploads, 0.3) == 1);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    CHECK(passed.count() >= 0.3);
    CHECK(passed.count() < 5);
    CHECK(folder.errors->take().empty());
  }
  // The next start sends it.
  service->hold(false);
  CHECK(Uploads(folder.outbox, {}, folder.on_error).unserved().size() == 1);
  Uploads again(folder.outbox, {service}, folder.on_error);
  CHECK(again.unserved().empty());
  CHECK(finish(again, 20) == 0);
  CHECK(service->wait_for_sent(1) == std::vector<std::string>{"a=a"});
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
  const auto left = [&](const std::string& path) {
    return std::optional<uint64_t>(disk - std::min(disk, bytes_in(path)));
  };
  const auto given_up = [&] {
    std::string targets;
    for (const std::string& error : folder.errors->take()) {
      CHECK_THAT(
          error,
          Contains(" of 100 B was not sent and is removed: the disk of the outbox is nearly full"));
      targets += error.substr(std::string("checkpoint ").size(), 1);
    }
    return targets;
  };
  const std::string content(100, 'x');
  const auto service = std::make_shared<Service>(), other = std::make_shared<Service>("other");
  service->send_in_parts();
  service->hold(true);
  {
    Uploads uploads(folder.outbox, {service}, folder.on_error, left);
    for (const char* target : {"a", "b", "c", "d"}) {
      uploads.add(file_for(target, folder.save(content)));
      service->wait_for_calls(1);  // of the first, which is on its way from now on
    }
    CHECK(given_up().empty());
    CHECK(bytes_in(folder.outbox) == 300);  // the newest is checkpoint.pth, too
    // The next checkpoint needs room twice: 200 of 430. The oldest is being sent, the next one goes.
    disk = 430;
    uploads.add(file_for("e", folder.save(content)));
    CHECK(given_up() == "bc");
    // What has a second name would free nothing by going, and the newest never goes.
    disk = 50;
    fs::create_hard_link(uploads.waiting()[1].path, folder.dir / "d.pth");
    uploads.add(file_for("f", folder.save(content)));
    CHECK(given_up() == "e");
    CHECK(uploads.waiting().size() == 3);
  }
  // One that was begun may go.
  other->hold(true);
  Uploads again(folder.outbox, {other}, folder.on_error, left);
  again.add(file_for("g", folder.save(content), "other"));
  CHECK(given_up() == "af");
}

TEST_CASE(
    "what has another name in the folder is somebody else's, and no folder is made for nothing") {
  const OutboxFolder folder;
  const Uploads absent(folder.outbox, {}, folder.on_error);
  CHECK_FALSE(fs::exists(folder.outbox));
  for (const char* name : {"letter.txt", "7.json", "notes.json", "1234567_x"}) {
    write_file_atomically(folder.outbox + "/" + name, "mine");
  }
  fs::create_directories(folder.outbox + "/00000003_folder");
  CHECK(Uploads(folder.outbox, {}, folder.on_error).waiting().empty());
  CHECK(folder.names() ==
        std::vector<std::string>{
            "00000003_folder", "1234567_x", "7.json", "letter.txt", "notes.json"});
}

TEST_CASE("what a kill left half done is removed, nothing else is sent, and numbers go on") {
  const OutboxFolder folder;
  const auto note = [&](int number, const std::string& file) {
    write_file_atomically(
        fmt::format("{}/{:08}.json", folder.outbox, number),
        fmt::format(
            R"({{"to": "there", "target": "t{}", "kind": "k", "file": "{}"}})", number, file));
  };
  note(1, "00000001_checkpoint.pth");
  write_file_atomically(folder.outbox + "/00000001_checkpoint.pth", "whole");
  write_file_atomically(folder.outbox + "/00000001.parts.part", "half");
  write_file_atomically(folder.outbox + "/00000006.parts", "of nothing");
  write_file_atomically(folder.outbox + "/00000007_checkpoint.pth", "no note");
  write_file_atomically(folder.outbox + "/00000008_checkpoint.pth.part", "half");
  write_file_atomically(folder.outbox + "/00000009.json", "{\"to\": \"there\", \"tar");
  note(10, "../checkpoint.pth");
  note(11, "00000011_x");
  fs::create_symlink("/etc/hostname", folder.outbox + "/00000011_x");
  // A note that cannot be read now, as no file system reads a folder as a file: it stays, with its file.
  fs::create_directories(folder.outbox + "/00000012.json");
  write_file_atomically(folder.outbox + "/00000012_checkpoint.pth", "of that note");
  const auto service = std::make_shared<Service>();
  service->hold(true);
  Uploads uploads(folder.outbox, {service}, folder.on_error);
  REQUIRE(uploads.waiting().size() == 1);
  CHECK(uploads.waiting().front().target == "t1");
  uploads.add(file_for("next.pth", folder.save("next")));
  CHECK(folder.names() == std::vector<std::string>{"00000001.json",
                                                   "00000001_checkpoint.pth",
                                                   "00000012.json",
                                                   "00000012_checkpoint.pth",
                                                   "00000013.json",
                                                   "00000013_checkpoint.pth"});
}

TEST_CASE("a kill while a file is sent whole does not bring it back after the newer one") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  service->is_on_disk = GENERATE(true, false);
  if (!service->is_on_disk) service->send_in_parts();  // of which the next process may know nothing
  service->hold(true);
  {
    Uploads uploads(folder.outbox, {service}, folder.on_error);
    uploads.add(file_for("a", folder.save("old")));
    service->wait_for_calls(1);
    uploads.add(file_for("a", folder.save("new")));
    uploads.add(file_for("b", folder.save("other")));
    CHECK(uploads.waiting().size() == 3);
    CHECK(folder.names().size() == 6);  // no notes of the upload
  }
  service->hold(false);
  Uploads again(folder.outbox, {service}, folder.on_error);
  CHECK(finish(again, 20) == 0);
  CHECK(service->wait_for_sent(2) == std::vector<std::string>{"a=new", "b=other"});
  CHECK(service->began_with().back().empty());
}

TEST_CASE("a slow service holds up no other one, whose fault does not end the wait for it") {
  const OutboxFolder folder;
  const auto dead = std::make_shared<Service>("dead"), slow = std::make_shared<Service>("slow");
  dead->fail(2);
  slow->hold(true);
  Uploads uploads(folder.outbox, {dead, slow}, folder.on_error);
  uploads.add(file_for("a", folder.save("1"), "slow"));
  slow->wait_for_calls(1);
  uploads.add(file_for("a", folder.save("2"), "dead"));
  while (folder.errors->take().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  uploads.begin_end();
  dead->wait_for_calls(2);  // after the first has failed
  CHECK_FALSE(uploads.last_answer_was_fault());
  slow->hold(false);
  while (!uploads.is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(slow->wait_for_sent(1) == std::vector<std::string>{"a=1"});
  CHECK(uploads.waiting().size() == 1);
  uploads.end();
}

TEST_CASE(
    "a kill amid an upload in parts: the next process continues with that file, then sends the newer") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  service->send_in_parts();
  service->hold(true);
  {
    Uploads uploads(folder.outbox, {service}, folder.on_error);
    uploads.add(file_for("a", folder.save("old")));
    service->wait_for_calls(1);
    uploads.add(file_for("b", folder.save("other")));
    uploads.add(file_for("a", folder.save("new")));
  }  // as a kill: the transfer ends amid it
  service->hold(false);
  Uploads again(folder.outbox, {service}, folder.on_error);
  CHECK(service->wait_for_sent(3) == std::vector<std::string>{"a=old", "b=other", "a=new"});
  CHECK(service->began_with() == std::vector<std::string>{"", "id of a", "", ""});
  CHECK(finish(again, 20) == 0);
  CHECK(folder.names().empty());
}

TEST_CASE("a begun file that is refused, and one that fails as a whole, give way to a newer one") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  const bool is_begun = GENERATE(true, false);
  if (is_begun) service->send_in_parts(/*refuses=*/true);
  service->hold(true);
  service->fail(1);
  Uploads uploads(folder.outbox, {service}, folder.on_error);
  uploads.add(file_for("a", folder.save("old")));
  service->wait_for_calls(1);
  uploads.add(file_for("a", folder.save("new")));
  service->hold(false);
  CHECK(service->wait_for_sent(1) == std::vector<std::string>{"a=new"});
  CHECK(finish(uploads, 20) == 0);
  CHECK(folder.errors->take() ==
        std::vector<std::string>{
            fmt::format("Error saving checkpoint to there/a: {}\n  A newer one takes its place.",
                        is_begun ? "the file is too large" : "the service is out of order")});
  CHECK(service->began_with() == std::vector<std::string>{"", ""});
}

TEST_CASE("a begun file that fails for a time holds up the newer one for its target alone") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  service->send_in_parts();
  service->hold(true);
  service->fail(1);
  Uploads uploads(folder.outbox, {service}, folder.on_error);
  uploads.add(file_for("a", folder.save("old")));
  service->wait_for_calls(1);
  uploads.add(file_for("a", folder.save("new")));
  uploads.add(file_for("b", folder.save("b")));
  service->hold(false);
  CHECK(service->wait_for_sent(1) == std::vector<std::string>{"b=b"});
  CHECK(finish(uploads, 20) == 0);
  CHECK(service->wait_for_sent(3) == std::vector<std::string>{"b=b", "a=old", "a=new"});
}

TEST_CASE("the end tells whether it moves: what was sent, refused again, or is on its way") {
  const OutboxFolder folder;
  const auto service = std::make_shared<Service>();
  service->hold(true);
  service->fail(2);
  Uploads uploads(folder.outbox, {service}, folder.on_error);
  uploads.add(file_for("a", folder.save("a")));
  service->wait_for_calls(1);
  CHECK(uploads.last_answer_was_fault());  // by its first attempt
  service->hold(false);
  while (folder.errors->take().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK_FALSE(uploads.is_done());
  uploads.begin_end();
  service->wait_for_calls(2);  // at once, and not a third time
  while (!uploads.is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(uploads.waiting().size() == 1);
  uploads.end();
  CHECK(service->began_with().size() == 2);
}

TEST_CASE(
    "a file waits for the saver that leads where it was to go, whatever stands first in the config") {
  const OutboxFolder folder;
  {
    const auto service = std::make_shared<Service>("s3://bucket");
    service->hold(true);
    Uploads uploads(folder.outbox, {service}, folder.on_error);
    uploads.add(file_for("a", folder.save("a"), "s3://bucket"));
  }
  const auto first = std::make_shared<Service>("s3://new"),
             renamed = std::make_shared<Service>("s3://bucket2");
  {
    Uploads uploads(folder.outbox, {first, renamed}, folder.on_error);
    REQUIRE(uploads.unserved().size() == 1);
    CHECK(finish(uploads, 20) == 1);
    CHECK(first->began_with().empty());
    CHECK(renamed->began_with().empty());
  }
  const auto back = std::make_shared<Service>("s3://bucket");
  Uploads uploads(folder.outbox, {first, back}, folder.on_error);
  CHECK(finish(uploads, 20) == 0);
  CHECK(back->wait_for_sent(1) == std::vector<std::string>{"a=a"});
  CHECK(first->began_with().empty());
}

TEST_CASE("a bucket of another store has another name") {
  const test::CleanEnvironment environment(
      {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE"});
  test::CleanEnvironment::set("AWS_ENDPOINT_URL_S3", "https://me:secret@minio.example/");
  S3SaveConfig config;
  config.url = "s3://b/x/";
  CHECK(make_destination(config)->name() == "s3://b/x (at https://minio.example)");
  CHECK(make_destination(config)->place_of("f") == "s3://b/x/f");
}

TEST_CASE("a place with a login has another name than the same without, and shows no secret") {
  const auto name_of = [](const char* url) {
    UrlSaveConfig config;
    config.url = url;
    return make_destination(config)->name();
  };
  // The run's own copy of its config has no secret: nothing goes to what is left of the address.
  CHECK(name_of("https://h/dav") == "https://h/dav");
  CHECK(name_of("https://u:canary@h/dav/") == "https://h/dav (with a login)");
  CHECK(name_of("https://h/dav/?sig=canary") == "https://h/dav (with a query)");
}

}  // namespace
}  // namespace dalle2
