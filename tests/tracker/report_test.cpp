// SPDX-License-Identifier: MIT
#include "tracker/report/report.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/pictures/image.h"
#include "net/digest.h"
#include "support/broken_listing.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// A data_path with a log of these lines.
struct LoggedRun {
  test::TempDir folder;
  explicit LoggedRun(const std::string& log) { std::ofstream(folder / "log.jsonl") << log; }
  RunLog log() const { return read_run_log(folder / "log.jsonl"); }
  std::string page(ReportOptions options = {}) const { return make_report(folder.path(), options); }
};

TEST_CASE("a log is read back as curves, pictures and errors") {
  const LoggedRun run(
      R"({"Epoch": 0, "Unet 0 Training Loss": 0.5, "step": 1})"
      "\n"
      R"({"Unet 0 Training Loss": null, "step": 11})"
      "\n"
      R"({"Train Samples": [{"path": "images/a.png", "caption": "a cat"}, {"path": "images/b.png", "caption": null}], "step": 11})"
      "\n"
      R"({"error": "Error saving", "step": 11})"
      "\n");
  const RunLog log = run.log();
  CHECK(log.records == 4);
  CHECK(log.unreadable_lines == 0);
  const LogSeries* loss = find_series(log, "Unet 0 Training Loss");
  REQUIRE(loss != nullptr);
  CHECK(loss->steps == std::vector<int64_t>{1, 11});
  CHECK(loss->values[0] == 0.5);
  CHECK(std::isnan(loss->values[1]));
  REQUIRE(log.pictures.size() == 1);
  CHECK(log.pictures[0].pictures[0].caption == "a cat");
  CHECK(log.pictures[0].pictures[1].caption.empty());
  CHECK(log.errors == std::vector<std::pair<int64_t, std::string>>{{11, "Error saving"}});
}

TEST_CASE("a log that is cut anywhere still makes a report, and says what is not read") {
  const std::string whole =
      "{\"Unet 0 Training Loss\": 0.5, \"step\": 1}\n{\"Unet 0 Training Loss\": 0.25, \"step\": "
      "11}\n";
  for (size_t size = 0; size <= whole.size(); ++size) {
    const LoggedRun run(whole.substr(0, size));
    const RunLog log = run.log();
    const bool between =
        size == 0 || size + 1 >= whole.size() || whole[size - 1] == '\n' || whole[size] == '\n';
    CHECK(log.unreadable_lines == (between ? 0 : 1));
    const std::string page = run.page();
    CHECK((page.find("cannot be read") != std::string::npos) == !between);
    CHECK((page.find("Nothing has been logged yet") != std::string::npos) == (log.records == 0));
  }
}

TEST_CASE("lines that are no records are left out and counted") {
  const LoggedRun run("no json\n[1, 2]\n{\"loss\": 1}\n\xff\xfe\n{\"loss\": 1, \"step\": 2}\n");
  CHECK(run.log().unreadable_lines == 4);
  CHECK_THAT(run.page(), Contains("4 lines of log.jsonl cannot be read"));
}

TEST_CASE("records of strangers are read within bounds: depth, width, text and numbers") {
  const test::TempDir folder;
  std::string wide = "{\"step\": 1";
  for (int i = 0; i < 100'000; ++i) wide += ", \"series_" + std::to_string(i) + "\": 1";
  const std::string deep(1'000'000, '[');
  write_file_atomically(folder / "log.jsonl",
                        wide + "}\n{\"step\": 2, \"a\": " + deep + "}\n" +
                            "{\"step\": 3, \"a\xff\": 1}\n" + "{\"step\": 1e300, \"a\": 1}\n" +
                            "{\"step\": true, \"a\": 1}\n");
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const RunLog log = read_run_log(folder / "log.jsonl");
  // Looking each key up among all before it takes minutes.
  CHECK(Clock::now() - begin < std::chrono::seconds(10));
  CHECK(log.series.size() == 100'000);
  CHECK(log.records == 1);
  CHECK(log.unreadable_lines == 4);
}

TEST_CASE("control characters of a log are shown in the page, not sent by it") {
  const LoggedRun run(R"({"error": "a\u001b[2J\u007f\n  b", "step": 2})"
                      "\n");
  CHECK_THAT(run.page(), Contains("a\\x1b[2J\\x7f\n  b"));
}

TEST_CASE("a report holds no secret of a config") {
  const LoggedRun run("{\"loss\": 1, \"step\": 2}\n");
  std::ofstream(run.folder / "decoder_config.json")
      << R"({"data": {"webdataset_base_url": "pipe:curl -H 'Key: canary' h::)"
         R"(https://canary@h/a?canary", "img_embeddings_url": "s3://u:canary@b/c"}})";
  const std::string page = run.page();
  CHECK(page.find("canary") == std::string::npos);
  CHECK_THAT(page, Contains("&quot;pipe:curl ...::https://h/a&quot;"));
  CHECK_THAT(page, Contains("&quot;s3://b/c&quot;"));
}

TEST_CASE("a report shows losses of each unet, validation, rates, times and what was left out") {
  std::string lines;
  for (int step = 1; step <= 301; step += 10) {
    lines += R"({"Epoch": 0, "Samples per second": 50.5, "Unet 0 Learning Rate": 0.001, )"
             R"("Unet 0 Training Loss": 0.5, "Unet 1 Training Loss": 0.7, "Seconds data": 0.01, )"
             R"("Seconds save": 0.02, "Memory peak MiB": 900.5, "FID": 12.5, "step": )" +
             std::to_string(step) + "}\n";
  }
  lines +=
      "{\"Unet 0 Validation Loss\": 0.4, \"step\": 301}\n{\"Dropped train: broken picture\": 3, "
      "\"step\": 301}\n";
  const LoggedRun run(lines);
  std::ofstream(run.folder / "decoder_config.json")
      << "{\"train\": {\"lr\": 3e-4, \"betas\": [0.9, 0.99]}, \"note\": \"<b>\" /* a comment */}";
  const std::string page = run.page();
  for (const char* title : {"Training Loss",
                            "Validation Loss",
                            "Learning Rate",
                            "Samples per second",
                            "Time of a step",
                            "Memory",
                            "FID",
                            "Left out of the data"}) {
    CHECK(count(page, "<figcaption><b>" + std::string(title) + "</b>") == 1);
  }
  CHECK(count(page, "<figure") == 8);
  CHECK_THAT(page,
             Contains("<tr><td>Unet 1</td><td class=\"number\">0.7</td><td class=\"number\">step "
                      "301</td></tr>"));
  CHECK_THAT(page, Contains("train: broken picture"));
  CHECK_THAT(
      page, Contains("<summary>decoder_config.json</summary>") && Contains("&quot;betas&quot;: ["));
  CHECK_THAT(page, Contains("&quot;&lt;b&gt;&quot;") && !Contains("a comment"));
  CHECK(page.find("http://www.w3.org/2000/svg") != std::string::npos);
  CHECK(count(page, "://") == 1);  // that namespace is the only address
}

TEST_CASE("a report of a prior has the tiles and curves of a decoder's") {
  const LoggedRun run(
      R"({"tracking/epoch": 2, "tracking/samples-seen": 640, "tracking/samples-sec": 80, )"
      R"("tracking/training-l2": 0.25, "tracking/learning-rate": 0.001, "tracking/ema-decay": 0.9, )"
      R"("step": 10})"
      "\n"
      R"({"metrics/online-validation/l2-loss": 0.75, "metrics/ema-validation/l2-loss": 0.625, )"
      R"("step": 10})"
      "\n"
      R"({"metrics/ema-validation/l2-loss": 0.875, "metrics/ema-test/l2-loss": 0.5, "step": 20})"
      "\n"
      R"({"metrics/ema-validation/similarity with text [steps=4]": 0.5, "step": 20})"
      "\n");
  const std::string page = run.page();
  for (const auto& [name, value] : {std::pair("Epoch", "2"),
                                    std::pair("Samples Seen", "640"),
                                    std::pair("Training loss, l2", "0.25"),
                                    std::pair("Best validation, online", "0.75"),
                                    std::pair("Best validation, ema", "0.625"),
                                    std::pair("Samples/s, median", "80")}) {
    INFO(name);
    CHECK(count(page, fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, value)) == 1);
  }
  for (const char* title : {"Training Loss",
                            "Validation Loss",
                            "Test Loss",
                            "Learning Rate",
                            "EMA Decay",
                            "Samples per second",
                            "metrics/ema-validation/similarity with text [steps=4]"}) {
    INFO(title);
    CHECK(count(page, "<figcaption><b>" + std::string(title) + "</b>") == 1);
  }
  CHECK(count(page, "<figure") == 7);  // epoch and samples are no curves
}

TEST_CASE("pictures are put into the page, captions escaped") {
  std::string lines;
  LoggedRun run("");
  fs::create_directory(run.folder / "images");
  for (const int step : {10, 20, 30, 40, 50}) {
    const std::string name = "images/" + std::to_string(step) + ".png";
    write_file_atomically(run.folder / name, encode_png({1, 1, {1, 2, 3}}));
    lines += "{\"Train Samples\": [{\"path\": \"" + name +
             "\", \"caption\": \"a <cat>\"}], \"step\": " + std::to_string(step) +
             "}\n{\"Train Samples Grid\": [{\"path\": \"" + name +
             "\", \"caption\": \"sheet\"}], \"step\": " + std::to_string(step) + "}\n";
  }
  std::ofstream(run.folder / "log.jsonl") << lines;
  const std::string page = run.page();
  CHECK(count(page, "<img src=\"data:image/png;base64,") == 5);
  CHECK_THAT(page, Contains("a &lt;cat&gt;") && !Contains("a <cat>") && !Contains("sheet"));
  const std::string some = run.page({.most_picture_steps = 3});
  CHECK(count(some, "<img src=\"data:image/png;base64,") == 3);
  CHECK_THAT(some,
             Contains("3 of 5 steps") && Contains("step 10<") && Contains("step 30<") &&
                 Contains("step 50<") && !Contains("step 20<"));
  CHECK(count(run.page({.most_picture_steps = 1}), "<th scope=\"col\">step 50</th>") == 1);
}

TEST_CASE("a large picture is shrunk for the page") {
  LoggedRun run("{\"Samples\": [{\"path\": \"a.png\", \"caption\": null}], \"step\": 1}\n");
  Image image = {600, 400, {}};
  image.pixels.assign(600 * 400 * 3, 128);
  write_png(run.folder / "a.png", image);
  const std::string page = run.page();
  const size_t at = page.find("data:image/jpeg;base64,");
  REQUIRE(at != std::string::npos);
  CHECK(page.find("data:image/png") == std::string::npos);
}

TEST_CASE("pictures that are gone, damaged or outside of the folder are named, not shown") {
  const LoggedRun run(
      "{\"S\": [{\"path\": \"gone.png\"}, {\"path\": \"../secret.png\"}, {\"path\": "
      "\"/secret.png\"}, {\"path\": \"a/../../secret.png\"}, {\"path\": \"bad.png\"}], \"step\": "
      "1}\n");
  std::ofstream(run.folder / "bad.png") << "no picture";
  write_file_atomically(fs::path(run.folder.path()).parent_path() / "secret.png",
                        encode_png({1, 1, {1, 2, 3}}));
  const std::string page = run.page();
  CHECK(count(page, "is missing or damaged") == 5);
  CHECK(page.find("<img src") == std::string::npos);
  fs::remove(fs::path(run.folder.path()).parent_path() / "secret.png");
}

TEST_CASE("a folder that is none, or of no run, is refused with what is expected") {
  test::TempDir folder;
  CHECK_THROWS_WITH(make_report(folder / "absent", {}),
                    Catch::EndsWith("absent: no such folder; give the folder of a run, "
                                    "/tracker/data_path of its config"));
  CHECK_THROWS_WITH(make_report(folder.path(), {}),
                    Contains(": holds no log.jsonl, which every run writes from its start"));
  CHECK_THROWS_WITH(read_run_log(folder / "absent"),
                    Catch::EndsWith("absent: cannot be read: No such file or directory"));
  std::ofstream(folder / "file") << "x";
  CHECK_THROWS_WITH(make_report(folder / "file", {}), Contains("file: is not a folder;"));
  // Names that no file system takes, and a folder whose listing breaks off.
  CHECK_THROWS_WITH(make_report(std::string(300, 'x'), {}), Contains("xxx: no such folder; give"));
  std::ofstream(folder / "log.jsonl") << "{}\n";
  const test::BrokenListing broken;
  CHECK_THROWS_WITH(make_report(folder.path(), {}),
                    Catch::StartsWith("the folder \"" + folder.path() + "\" cannot be read: "));
}

TEST_CASE("a chart takes a logarithmic scale for values of several sizes, and leaves NaN out") {
  const double nan = std::nan("");
  const LogSeries small{"", {1, 2, 3}, {1, 2, nan}}, wide{"", {1, 2, 3}, {1, 1000, nan}};
  CHECK(draw_chart({small}, {.title = "t"}).find("log scale") == std::string::npos);
  CHECK_THAT(draw_chart({wide}, {.title = "t"}), Contains("log scale"));
  CHECK_THAT(draw_chart({wide}, {.title = "t"}), !Contains("nan"));
  CHECK_THAT(draw_chart({wide}, {.title = "t", .linear = true}), !Contains("log scale"));
  CHECK(draw_chart({{"", {1}, {nan}}}, {.title = "t"}).empty());
  CHECK_THAT(draw_chart({{"", {1}, {0.0}}}, {.title = "t"}),
             Contains(R"("steps":[1],"values":[0]})"));
}

TEST_CASE("a chart of very many values stays small and keeps their extremes") {
  LogSeries series{"", {}, {}};
  for (int i = 0; i < 200'000; ++i) {
    series.steps.push_back(i);
    series.values.push_back(i == 77'777 ? 5.0 : 1.0 + 0.001 * (i % 7));
  }
  const std::string chart = draw_chart({series}, {.title = "t"});
  CHECK(chart.size() < 60'000);
  CHECK_THAT(chart, Contains(",77777,") && Contains(",5,"));  // the greatest
  CHECK_THAT(chart, Contains("step 199,999"));
}

TEST_CASE(
    "a series without a value is left out of a chart, and so are values that are not finite") {
  const double nan = std::nan("");
  const std::string chart = draw_chart(
      {{"data", {1, 2, 3}, {1, nan, 3}}, {"none", {1, 2, 3}, {nan, nan, nan}}}, {.title = "t"});
  CHECK_THAT(chart, Contains("\"steps\":[1,3]") && Contains("\"values\":[1,3]"));
  CHECK_THAT(chart, !Contains("none"));
}

TEST_CASE("a mean is over all values around, and does not lag") {
  LogSeries line{"", {}, {}};
  for (int i = 0; i < 20; ++i) {
    line.steps.push_back(i);
    line.values.push_back(i);
  }
  const std::string chart = draw_chart({line}, {.title = "t", .smoothed = true});
  CHECK_THAT(chart, Contains("\"means\":[0,1,2,3,4,"));
  line.values[10] = 15;
  CHECK_THAT(draw_chart({line}, {.title = "t", .smoothed = true}),
             Contains(",7,9,10,11,12,13,13,"));
}

TEST_CASE("names of strangers end no script and are no markup of the page") {
  const LoggedRun run(
      R"({"</script><script>alert(1)</script>": 1, "<!--<b>\"\\\u2028": 2, "step": 1})"
      "\n");
  const std::string page = run.page();
  CHECK(count(page, "</script>") == 3);  // of two charts, and the page's own
  CHECK(page.find("alert(1)</script") == std::string::npos);
  CHECK_THAT(page, !Contains("<!--") && !Contains("<b>\""));
  CHECK_THAT(page, Contains("&lt;/script&gt;&lt;script&gt;alert(1)"));
}

TEST_CASE("curves of one name of several runs share a chart") {
  const LoggedRun one("{\"Unet 0 Training Loss\": 0.5, \"FID\": 3, \"step\": 1}\n"),
      other("{\"Unet 0 Training Loss\": 0.25, \"step\": 1}\n");
  std::ofstream(other.folder / "decoder_config.json") << R"({"train": {"lr": 0.125}})";
  const std::string name = other.folder.path();
  const std::string page = one.page({.compare = {name}});
  CHECK(count(page, "<figure") == 2);
  CHECK_THAT(page, Contains("<td>" + name + ": Unet 0</td><td class=\"number\">0.25</td>"));
  CHECK_THAT(page, Contains("<td>" + one.folder.path() + ": Unet 0</td>"));
  CHECK_THAT(page, !Contains("0.125"));  // all but the curves is of the first
  CHECK_THROWS_WITH(one.page({.compare = {"absent"}}), Catch::StartsWith("absent: no such folder"));
}

TEST_CASE("text is escaped and numbers are for people") {
  CHECK(html_escape("<a href=\"x\">&'\xff") ==
        "&lt;a href=&quot;x&quot;&gt;&amp;&#39;\xef\xbf\xbd");
  CHECK(base64("f") == "Zg==");
  CHECK(base64("foobar\xff") == "Zm9vYmFy/w==");
  CHECK(number_text(0.012345) == "0.01235");
  CHECK(number_text(-12345.6) == "-12,346");
  CHECK(number_text(std::nan("")) == "not finite");
}

}  // namespace
}  // namespace dalle2
