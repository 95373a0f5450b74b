// SPDX-License-Identifier: MIT
#include "tracker/log/log_file.h"

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"
#include "support/captured_log.h"
#include "support/full_disk.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

std::vector<nlohmann::ordered_json> records_of(const std::string& path) {
  std::vector<nlohmann::ordered_json> records;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    records.push_back(nlohmann::ordered_json::parse(line));
  }
  return records;
}

TEST_CASE("a step is one line of short values with their names and units") {
  const ShownRecord shown = {{.label = "loss", .values = {0.30651234}},
                             {.label = "lr", .values = {0.00198}},
                             {.label = "grad", .values = {0.42}},
                             {.values = {108.24}, .unit = "samples/s", .digits = 3}};
  CHECK(record_line(shown, 110) == "step 110  loss 0.3065  lr 1.98e-3  grad 0.42  108 samples/s");
}

TEST_CASE("values of several parts stand behind one name, one that is no number too") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(record_line({{.label = "loss", .values = {0.25, nan}},
                     {.values = {int64_t{1234}}, .unit = "skipped"}},
                    7) == "step 7  loss 0.25 nan  1,234 skipped");
}

TEST_CASE("a record that nobody chose from is shown in full, without quotes and brackets") {
  const LogRecord record = {
      {"Epoch", int64_t{3}}, {"Unet 0 Training Loss", 0.1234567890123}, {"note", "a \"b\""}};
  CHECK(record_line(shown_in_full(record), 40) ==
        "step 40  Epoch 3  Unet 0 Training Loss 0.1235  note a \"b\"");
  CHECK(record_line({}, 40) == "step 40");
}

TEST_CASE("a record is one JSON object with its names in order, then the step and the time") {
  const LogRecord record = {
      {"Epoch", int64_t{3}}, {"Unet 0 Training Loss", 0.5}, {"note", "a \"b\"\n"}};
  CHECK(format_record(record, 40, 1700000000.1256) ==
        "{\"Epoch\": 3, \"Unet 0 Training Loss\": 0.5, \"note\": \"a \\\"b\\\"\\n\", \"step\": "
        "40, \"time\": 1700000000.126}");
  const test::TempDir folder;
  const double before = wall_time_seconds();
  LogFile(folder / "log.jsonl").write(record, 40);
  const auto written = records_of(folder / "log.jsonl");
  REQUIRE(written.size() == 1);
  CHECK(written[0]["time"].get<double>() >= before - 0.001);
  CHECK(written[0]["time"].get<double>() <= wall_time_seconds() + 0.001);
}

TEST_CASE("numbers come back from a record bit for bit") {
  const test::TempDir folder;
  const std::vector<double> values = {0.1, 1e-300, 1e16, 123456789.125, -0.0, 5e-324};
  LogFile file(folder / "log.jsonl");
  for (const double value : values) file.write({{"x", value}}, 0);
  const auto records = records_of(folder / "log.jsonl");
  REQUIRE(records.size() == values.size());
  for (size_t i = 0; i < values.size(); ++i) CHECK(records[i]["x"].get<double>() == values[i]);
}

TEST_CASE("a loss that is not finite is null in the file") {
  const LogRecord record = {{"a", std::numeric_limits<double>::quiet_NaN()},
                            {"b", -std::numeric_limits<double>::infinity()}};
  CHECK(format_record(record, 1, 2) == R"({"a": null, "b": null, "step": 1, "time": 2.000})");
}

TEST_CASE("pictures are recorded under their section, an absent caption as null") {
  const test::TempDir folder;
  LogFile(folder / "log.jsonl")
      .write_images(
          {{"images/7_Test Samples_0.png", "Test: \xff cat"}, {"images/7_Test Samples_1.png", ""}},
          "Test Samples",
          7);
  const auto records = records_of(folder / "log.jsonl");
  REQUIRE(records.size() == 1);
  CHECK(records[0]["step"] == 7);
  CHECK(records[0]["Test Samples"][0]["path"] == "images/7_Test Samples_0.png");
  CHECK(records[0]["Test Samples"][0]["caption"] == "Test: \xEF\xBF\xBD cat");
  CHECK(records[0]["Test Samples"][1]["caption"].is_null());
}

TEST_CASE("a line that a kill tore is ended on a resume, at any byte, and no byte is taken back") {
  const std::string first = "{\"loss\": 0.5, \"step\": 1}\n";
  const std::string second = "{\"loss\": 0.25, \"step\": 2}\n";
  for (size_t size = 0; size <= second.size(); ++size) {
    CAPTURE(size);
    const test::TempDir folder;
    const std::string before = first + second.substr(0, size);
    test::put_file(folder / "log.jsonl", before);
    LogFile file(folder / "log.jsonl");
    CHECK(file.lines() == (size == 0 ? 1 : 2));
    file.write({{"loss", 0.125}}, 3);
    const bool torn = size > 0 && size < second.size();
    CHECK_THAT(read_file(folder / "log.jsonl"),
               Catch::StartsWith(before + (torn ? "\n" : "") + "{\"loss\": 0.125, \"step\": 3, "));
    const RunLog log = read_run_log(folder / "log.jsonl");
    const bool whole = size + 1 >= second.size();  // a record that lacked its newline alone
    CHECK(log.series.at(0).steps ==
          (whole ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{1, 3}));
  }
}

TEST_CASE("readers pass over the lines between a checkpoint and the mark of its resume") {
  const test::TempDir folder;
  LogFile file(folder / "log.jsonl");
  for (int64_t step = 1; step <= 5; ++step) file.write({{"loss", 0.5}}, step);
  file.pass_over(5);  // nothing came after the checkpoint
  CHECK(file.lines() == 5);
  file.pass_over(2);
  CHECK(file.lines() == 6);
  CHECK_THAT(read_file(folder / "log.jsonl"), Catch::EndsWith("{\"resumed_from_line\":2}\n"));
  file.write({{"loss", 0.25}}, 3);
  CHECK(read_run_log(folder / "log.jsonl").series.at(0).values ==
        std::vector<double>{0.5, 0.5, 0.25});
  // A resume from before a mark passes over the mark too; lines keep their numbers.
  file.pass_over(1);
  file.write({{"loss", 0.125}}, 2);
  CHECK(read_run_log(folder / "log.jsonl").series.at(0).values == std::vector<double>{0.5, 0.125});
  test::put_file(folder / "odd.jsonl", "{\"a\": 1, \"step\": 1}\n{\"resumed_from_line\": 99}\n");
  CHECK(read_run_log(folder / "odd.jsonl").records == 1);
}

TEST_CASE("a log that cannot be written is refused at the start") {
  const test::TempDir folder;
  std::filesystem::create_directory(folder / "log.jsonl");
  CHECK_THROWS_AS(LogFile(folder / "log.jsonl"), ConfigError);
  CHECK_THROWS_WITH(LogFile(folder / "absent/log.jsonl"),
                    Catch::Contains("No such file or directory"));
}

TEST_CASE(
    "lines that do not fit on a full disk are kept, reported once, and written first when there is room") {
  test::CapturedLog log;
  const test::TempDir folder;
  LogFile file(folder / "log.jsonl");
  file.write({}, 1);
  {
    const test::FullDisk full(40);  // has room for a part of a line
    file.write({{"loss", 0.5}}, 2);
    file.write({{"loss", 0.5}}, 3);
    CHECK(read_run_log(folder / "log.jsonl").records == 1);
    CHECK(file.written() == 1);
    CHECK(file.lines() == 3);  // a resume from now on passes over none of them
  }
  file.write({}, 4);
  CHECK(file.written() == 4);
  const auto records = records_of(folder / "log.jsonl");
  REQUIRE(records.size() == 4);
  for (int64_t step = 1; step <= 4; ++step)
    CHECK(records[static_cast<size_t>(step) - 1]["step"] == step);
  CHECK(log.count(LogLevel::kWarning) == 1);
}

TEST_CASE("of the lines that wait for room the newest thousand are kept") {
  const test::CapturedLog log;
  const test::TempDir folder;
  LogFile file(folder / "log.jsonl");
  {
    const test::FullDisk full(0);
    for (int64_t step = 0; step < 1200; ++step) file.write({}, step);
  }
  file.write({}, 1200);
  const auto records = records_of(folder / "log.jsonl");
  REQUIRE(records.size() == 1001);
  CHECK(records.front()["step"] == 200);
}

TEST_CASE("lines are read in order, in pieces, while others come") {
  const test::TempDir folder;
  const std::string path = folder / "log.jsonl";
  LogFile file(path);
  LogLines lines(path);
  CHECK(lines.read(file.written(), 10).empty());
  for (int64_t step = 0; step < 5; ++step) file.write({{"loss", 0.5}}, step);
  std::vector<JournalLine> read = lines.read(/*end=*/4, /*most=*/3);
  REQUIRE(read.size() == 3);
  CHECK(read[2].number == 2);
  CHECK(read[2].step() == 2);
  CHECK(lines.read(/*end=*/4, /*most=*/3).size() == 1);
  file.pass_over(2);
  read = lines.read(file.written(), 10);
  REQUIRE(read.size() == 2);
  CHECK(read[1].resumed_from() == 2);
  CHECK_FALSE(read[1].step());
  lines.go_to(1);
  CHECK(lines.read(/*end=*/2, 10).at(0).step() == 1);
}

TEST_CASE("a picture of a log is a file below data_path, and no link leads elsewhere") {
  const test::TempDir folder;
  const std::string data_path = folder / "run";
  for (const char* name : {"run/images/a.png", "secret.png", "other/b.png"}) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    test::put_file(folder / name, "png");
  }
  std::filesystem::create_symlink("../../secret.png", folder / "run/images/link.png");
  std::filesystem::create_symlink("a.png", folder / "run/images/near.png");
  std::filesystem::create_symlink("../other", folder / "run/linked");
  CHECK(read_stored_picture(data_path, "images/a.png") == "png");
  CHECK(read_stored_picture(data_path, "images/../images/a.png") == "png");
  for (const std::string& path : {std::string("../secret.png"),
                                  std::string("images/../../secret.png"),
                                  folder / "secret.png",
                                  std::string(),
                                  std::string("images/absent.png"),
                                  std::string("images/link.png"),
                                  std::string("images/near.png"),
                                  std::string("linked/b.png")}) {
    CAPTURE(path);
    CHECK_FALSE(read_stored_picture(data_path, path));
  }
  // data_path itself may be a link.
  std::filesystem::create_symlink("run", folder / "run_link");
  CHECK(read_stored_picture(folder / "run_link", "images/a.png"));
}

}  // namespace
}  // namespace dalle2
