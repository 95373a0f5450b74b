// SPDX-License-Identifier: MIT
#include "io/formats/event_file.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/pictures/image.h"
#include "support/fixture_folder.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// The records of a file with their frames, by the lengths in them.
std::vector<std::string> framed_records(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<std::string> records;
  for (size_t begin = 0; begin < bytes.size();) {
    uint64_t length = 0;
    for (size_t i = 8; i-- > 0;)
      length = length * 256 + static_cast<unsigned char>(bytes[begin + i]);
    records.push_back(bytes.substr(begin, length + 16));
    begin += length + 16;
  }
  return records;
}

std::string small_png() {
  return encode_png({2, 1, {255, 0, 0, 0, 0, 255}});
}

TEST_CASE("CRC-32C gives the values of RFC 3720") {
  CHECK(crc32c("123456789") == 0xE3069283U);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43U);
  CHECK(crc32c("") == 0);
}

TEST_CASE("an event file has the bytes that the tensorboard package writes") {
  const nlohmann::json cases =
      nlohmann::json::parse(read_file(test::fixture_folder("events") + "/events.json"));
  REQUIRE(cases.size() >= 10);
  for (const nlohmann::json& wanted : cases) {
    EventSummary summary;
    for (const nlohmann::json& value : wanted["values"]) {
      const std::string tag = value["tag"], kind = value["kind"];
      if (kind == "scalar") {
        summary.add_scalar(tag, value["value"]);
      } else if (kind == "text") {
        summary.add_text(tag, value["value"]);
      } else {
        summary.add_image(tag, from_hex(value["value"]));
      }
    }
    test::TempDir folder;
    EventFile file(folder.path(), 1);
    file.write(summary, wanted["step"], wanted["wall_time"]);
    const std::vector<std::string> records = framed_records(file.path());
    REQUIRE(records.size() == 3);  // version, start of the session, ours
    CHECK(records[0].find("brain.Event:2") != std::string::npos);
    CHECK(records[2] == from_hex(wanted["record"]));
  }
}

TEST_CASE("each event file of a process has a name of its own, which TensorBoard looks for") {
  test::TempDir folder;
  const EventFile first(folder / "a/b", 1), second(folder / "a/b", 1);
  CHECK(first.path() != second.path());
  for (const EventFile* file : {&first, &second}) {
    CHECK(fs::path(file->path()).filename().string().rfind("events.out.tfevents.", 0) == 0);
    CHECK(fs::file_size(file->path()) > 0);  // the version is there from the start
  }
}

TEST_CASE("a new event file comes last by its name, even if the clock went back") {
  test::TempDir folder;
  std::ofstream(folder / "events.out.tfevents.4102444800.host.7.0") << "of a clock that was ahead";
  std::ofstream(folder / "events.out.tfevents.12345678901.host.7.0") << "of another program";
  const EventFile first(folder.path(), 1), second(folder.path(), 1);
  CHECK(fs::path(first.path()).filename().string().starts_with("events.out.tfevents.4102444801."));
  CHECK(fs::path(second.path()).filename().string().starts_with("events.out.tfevents.4102444802."));
}

TEST_CASE("an event is in the file as soon as it is written") {
  test::TempDir folder;
  EventFile file(folder.path(), 1);
  EventSummary summary;
  summary.add_scalar("loss", 0.5);
  for (int step = 1; step <= 5; ++step) {
    file.write(summary, step, 1e9);
    CHECK(framed_records(file.path()).size() == static_cast<size_t>(2 + step));
  }
}

TEST_CASE("a picture that is no PNG is refused by name") {
  EventSummary summary;
  CHECK_THROWS_WITH(
      summary.add_image("Train Samples/0", "GIF89a"),
      "picture 'Train Samples/0': expected a PNG file, got 6 bytes of something else");
  std::string cut = small_png().substr(0, 20);
  CHECK_THROWS_AS(summary.add_image("x", cut), DataError);
  CHECK(summary.empty());
}

// For check_events_with_python.py: two starts of one run, the second from step 30 on.
TEST_CASE("writes events for a reader in Python", "[.python]") {
  const char* folder = std::getenv("DALLE2_PYTHON_CHECK_DIR");
  REQUIRE(folder != nullptr);
  for (const auto& [begin, end, offset] : {std::tuple{0, 50, 0.0}, std::tuple{30, 60, 100.0}}) {
    EventFile file(folder, begin);
    for (int step = begin; step < end; step += 10) {
      EventSummary summary;
      summary.add_scalar("Unet 0 Training Loss", step + offset);
      file.write(summary, step, 1e9 + step + offset);
      EventSummary pictures;
      pictures.add_image("Train Samples/0", small_png());
      pictures.add_text("Train Samples/captions", "0. a café\n");
      file.write(pictures, step, 1e9 + step + offset);
    }
  }
}

}  // namespace
}  // namespace dalle2
