// SPDX-License-Identifier: MIT
#include "data/embeddings/prior_dataset.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <numeric>
#include <tuple>

#include "io/files/atomic_file.h"
#include "support/broken_listing.h"
#include "support/captured_log.h"
#include "support/loopback_server.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;

/// Row i of a table has the values 10 i, 10 i + 1, ...
void write_rows(const std::string& path, int64_t first, int64_t rows, std::vector<int64_t> row) {
  int64_t numel = 1;
  for (const int64_t size : row) numel *= size;
  std::vector<float> values;
  for (int64_t i = first; i < first + rows; ++i) {
    for (int64_t k = 0; k < numel; ++k) values.push_back(static_cast<float>(10 * i + k));
  }
  row.insert(row.begin(), rows);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_npy_float32(path, row, values.data());
}

/// 20 rows of two values a folder; the images in three files, one of them below another folder.
struct Folders {
  Folders() {
    write_rows(dir / "images/a.npy", 0, 7, {2});
    write_rows(dir / "images/b/a.npy", 7, 1, {2});
    write_rows(dir / "images/c.npy", 8, 12, {2});
    write_rows(dir / "texts/0.npy", 0, 20, {2});
    write_rows(dir / "encodings/0.npy", 0, 20, {3, 2});
    prior.image_embed_dim = 2;
    data.image_url = dir / "images";
    data.text_url = dir / "texts";
    data.batch_size = 4;
  }
  std::string fault() const {
    return message_of<DataError>([&] { PriorDataset(data, prior, 1); });
  }
  TempDir dir;
  PriorConfig prior;
  PriorDataConfig data;
};

TEST_CASE("a table puts the rows of a folder's files behind each other") {
  const Folders f;
  const EmbeddingTable table(f.data.image_url.value(), "/data/image_url", {2});
  CHECK(table.rows() == 20);
  const at::Tensor all = table.read(0, 20);
  CHECK(at::equal(all.select(1, 0), at::arange(20, at::kFloat) * 10));
  for (int64_t first = 0; first < 20; ++first) {
    for (int64_t count = 0; first + count <= 20; ++count)
      CHECK(at::equal(table.read(first, count), all.narrow(0, first, count)));
  }
}

TEST_CASE("a prior's rows are divided in their order, by whole numbers of rows") {
  Folders f;
  f.data.text_encodings_url = f.dir / "encodings";
  f.data.splits = {.train = 0.77, .val = 0.12, .test = 0.11};  // 15.4, 2.4 and the rest
  const PriorDataset data(f.data, f.prior, 1);
  CHECK(data.rows("train") == 15);
  CHECK(data.rows("val") == 2);
  CHECK(data.rows("test") == 3);
  std::vector<int64_t> sizes;
  for (int64_t row = 0;;) {
    const auto batch = data.batch("train", 0, row, 4);
    if (!batch) break;
    CHECK(batch->image_embeds[0][0].item<float>() == static_cast<float>(10 * row));
    CHECK(at::equal(batch->image_embeds, batch->text_embeds));
    CHECK(batch->text_encodings.sizes() == at::IntArrayRef({batch->rows, 3, 2}));
    sizes.push_back(batch->size());
    row += batch->rows;
  }
  CHECK(sizes == std::vector<int64_t>{4, 4, 4, 3});
  CHECK(data.batch("val", 0, 0, 4)->image_embeds[0][0].item<float>() == 150);
  CHECK(data.batch("test", 0, 0, 4)->size() == 3);
  f.data.num_data_points = 10;
  CHECK(PriorDataset(f.data, f.prior, 1).rows("train") == 7);
}

TEST_CASE("rows that are no numbers are left out of all tables") {
  Folders f;
  std::filesystem::create_directories(f.dir / "some");
  const std::vector<float> bad = {1, 2, 3, NAN, 5, 6, INFINITY, 8};
  write_npy_float32(f.dir / "some/images.npy", {4, 2}, bad.data());
  f.data.image_url = f.dir / "some";
  write_rows(f.dir / "few/0.npy", 0, 4, {2});
  f.data.text_url = f.dir / "few";
  f.data.splits = {.train = 0.99, .val = 0, .test = 0.01};
  const auto batch = PriorDataset(f.data, f.prior, 1).batch("train", 0, 0, 3);
  REQUIRE(batch);
  CHECK(batch->rows == 3);
  CHECK(batch->size() == 2);
  CHECK(batch->drops.total() == 1);
  const CapturedLog log;
  DropCounts total, epoch;
  batch->drops.report("train", total, epoch);
  CHECK(epoch == DropCounts{{drop::kEmbeddingNotFinite, 1}});
  CHECK(log.count("row 1 (1 so far)") == 1);
  CHECK(at::equal(batch->text_embeds.select(1, 0), torch::tensor({0.0F, 20.0F})));
  CHECK(batch->image_embeds[1][0].item<float>() == 5);
}

TEST_CASE("folders that are no table, or not the same one, are refused") {
  Folders f;
  const auto texts_are = [&](const std::string& folder) {
    f.data.text_url = f.dir / folder;
    return f.fault();
  };
  CHECK_THAT(texts_are("absent"),
             Contains("/data/text_url: expected a folder of .npy files") &&
                 Contains("which is not there"));
  CHECK_THAT(texts_are("texts/0.npy"), Contains("which is a file"));
  std::filesystem::create_directories(f.dir / "empty");
  CHECK_THAT(texts_are("empty"), Contains("found none"));
  write_rows(f.dir / "short/0.npy", 0, 3, {2});
  CHECK_THAT(texts_are("short"), Contains("has 3 rows and /data/image_url 20"));
  write_rows(f.dir / "wide/0.npy", 0, 20, {5});
  CHECK_THAT(texts_are("wide"), Contains("expected [rows, 2]") && Contains("got [20, 5]"));
  std::ofstream(f.dir / "wide/0.npy") << "no array";
  CHECK_THAT(texts_are("wide"), Contains("not a NumPy .npy file"));
  {
    const BrokenListing broken;
    CHECK_THAT(f.fault(), Contains("or one below it, cannot be read: Input/output error"));
  }
  f.data.text_url = f.dir / "texts";
  f.data.text_encodings_url = f.dir / "texts";
  CHECK_THAT(f.fault(), Contains("/data/text_encodings_url: expected [rows, length, 2]"));
  f.data.text_encodings_url.reset();
  f.data.splits.train = 0.04;
  CHECK_THAT(f.fault(), Contains("leaves nothing to train on"));
}

TEST_CASE("files that pair by number hold as many rows, though the totals agree") {
  Folders f;
  for (const int number : {0, 1}) {
    write_rows(f.dir / fmt::format("paired/img_emb_{}.npy", number), 0, 10, {2});
    write_rows(f.dir / fmt::format("uneven/text_emb_{}.npy", number), 0, 9 + 2 * number, {2});
    write_rows(f.dir / fmt::format("other/text_emb_{}.npy", 5 + number), 0, 9 + 2 * number, {2});
  }
  f.data.image_url = f.dir / "paired";
  f.data.text_url = f.dir / "uneven";
  const std::string fault = f.fault();
  CHECK_THAT(fault,
             Contains("/data/text_url: '" + (f.dir / "uneven/text_emb_0.npy") + "' has 9 rows"));
  CHECK_THAT(fault, Contains("img_emb_0.npy' (/data/image_url) has 10"));
  for (const int number : {9, 10}) {
    write_rows(f.dir / fmt::format("plain/img_emb_{}.npy", number), 0, 10, {2});
    write_rows(f.dir / fmt::format("padded/text_emb_{:02}.npy", number), 0, 10, {2});
  }
  f.data.image_url = f.dir / "plain";
  f.data.text_url = f.dir / "padded";
  CHECK_THAT(f.fault(),
             Contains("in another order than those of /data/image_url") &&
                 Contains("text_emb_09.npy' here and") && Contains("img_emb_10.npy' there"));
  f.data.image_url = f.dir / "paired";
  f.data.text_url = f.dir / "other";  // other numbers: only the totals can be compared
  CHECK(PriorDataset(f.data, f.prior, 1).rows("train") > 0);
  // Some of the numbers: a file is missing.
  for (const int number : {0, 7})
    write_rows(f.dir / fmt::format("lost/text_emb_{}.npy", number), 0, 10, {2});
  f.data.text_url = f.dir / "lost";
  CHECK_THAT(f.fault(),
             Contains("/data/text_url: '" + (f.dir / "lost/text_emb_7.npy") +
                      "' has a number that no file of /data/image_url has"));
  write_rows(f.dir / "paired/img_emb_2.npy", 0, 10, {2});
  for (const int number : {0, 1}) {
    write_rows(f.dir / fmt::format("fewer/text_emb_{}.npy", number), 0, 10, {2});
    write_rows(f.dir / fmt::format("longer/text_emb_{}.npy", number), 0, 15, {2});
    write_rows(f.dir / fmt::format("twice/a/text_emb_{}.npy", number), 0, 10, {2});
  }
  f.data.text_url = f.dir / "fewer";
  CHECK_THAT(f.fault(),
             Contains("/data/image_url: '" + (f.dir / "paired/img_emb_2.npy") +
                      "' has a number that no file of /data/text_url has"));
  f.data.text_url = f.dir / "longer";  // divided otherwise, with the same total
  CHECK(PriorDataset(f.data, f.prior, 1).rows("train") > 0);
  write_rows(
      f.dir / "twice/b/text_emb_0.npy", 0, 10, {2});  // a number that comes twice pairs nothing
  f.data.text_url = f.dir / "twice";
  CHECK(PriorDataset(f.data, f.prior, 1).rows("train") > 0);
}

TEST_CASE("a file that shrinks under a run is told of by name") {
  Folders f;
  const EmbeddingTable table(f.data.image_url.value(), "/data/image_url", {2});
  std::filesystem::resize_file(f.dir / "images/c.npy",
                               std::filesystem::file_size(f.dir / "images/c.npy") - 8);
  CHECK_THAT(message_of([&] { table.read(10, 10); }),
             Contains("images/c.npy: the file is shorter than when the run began"));
}

/// A folder behind a server: its page, and its files by Range, whose ends it keeps.
struct RemoteFolder {
  explicit RemoteFolder(const std::string& folder, bool knows_ranges = true)
      : server([this, folder, knows_ranges](const HttpRequest& request) {
          if (request.path == "/e/") return http_reply(200, page_of(folder));
          const std::string name = request.path.substr(request.path.rfind('/') + 1);
          const std::string body = grown + read_file(folder + "/" + name);
          ++parts;
          if (!knows_ranges) return http_reply(200, body);
          const std::string range = request.headers.at("range");
          const size_t from = request.range_start();
          const size_t last =
              std::min(std::stoul(range.substr(range.find('-') + 1)), body.size() - 1);
          return http_reply(
              206,
              body.substr(from, last - from + 1),
              fmt::format("{}Content-Range: bytes {}-{}/{}\r\n", state, from, last, body.size()));
        }) {}
  static std::string page_of(const std::string& folder) {
    std::string page = "<a href=\"readme.txt\">about</a>";
    for (const char* name : {"c.npy", "a.npy", "b.npy"}) {
      if (std::filesystem::exists(folder + "/" + name))
        page += fmt::format("<a href=\"{}\">{}</a>", name, name);
    }
    return page;
  }
  std::string url() const { return server.url("/e/"); }
  std::string grown, state;  // a header
  std::atomic<int> parts = 0;
  LoopbackServer server;
};

TEST_CASE("a table behind a server has the rows of its files, and fetches parts of them") {
  const TempDir dir;
  write_rows(dir / "e/a.npy", 0, 7, {2});
  write_rows(dir / "e/b.npy", 7, 1, {2});
  write_rows(dir / "e/c.npy", 8, 700'000, {2});  // 5.6 MB
  const EmbeddingTable local(dir / "e", "/data/image_url", {2});
  for (const bool knows_ranges : {true, false}) {
    RemoteFolder remote(dir / "e", knows_ranges);
    const EmbeddingTable table(remote.url(), "/data/image_url", {2});
    REQUIRE(table.rows() == local.rows());
    CHECK(remote.parts == 3);  // the headers
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 20}, {5, 3}, {100, 50'000}, {520'000, 9'000}, {690'000, 10'008}}) {
      CHECK(at::equal(table.read(first, count), local.read(first, count)));
    }
    CHECK(remote.parts <= 3 + 3 + 2 + 3);
    remote.parts = 0;
    for (int64_t row = 1'000; row < 9'000; row += 64) table.read(row, 64);
    CHECK(remote.parts <= 1);
  }
}

TEST_CASE("a remote table that changes, is no table or has none of its rows is told of") {
  const TempDir dir;
  write_rows(dir / "e/a.npy", 0, 7, {2});
  RemoteFolder remote(dir / "e");
  const EmbeddingTable table(remote.url(), "/data/image_url", {2});
  remote.grown = "x";
  CHECK_THAT(message_of([&] { table.read(0, 3); }),
             Contains("a.npy: has 185 bytes now, and had 184 when the run began"));
  remote.grown.clear();
  const auto fault = [&](const std::string& url, int64_t width) {
    return message_of([&] { EmbeddingTable(url, "/data/text_url", {width}); });
  };
  CHECK_THAT(fault(remote.url(), 3), Contains("a.npy: /data/text_url: expected [rows, 3]"));
  std::filesystem::remove(dir / "e/a.npy");
  CHECK_THAT(
      fault(remote.url(), 2),
      Contains("/data/text_url: expected .npy files with rows in ") && Contains("found none"));
  std::ofstream(dir / "e/a.npy") << "no array";
  CHECK_THAT(fault(remote.url(), 2), Contains("a.npy: not a NumPy .npy file"));
}

TEST_CASE("rows of a file that was replaced at the server are never mixed") {
  const TempDir dir;
  write_rows(dir / "e/a.npy", 0, 7, {2});
  for (const std::string name : {"ETag: ", "Last-Modified: "}) {
    RemoteFolder remote(dir / "e");
    remote.state = name + "\"one\"\r\n";
    const EmbeddingTable table(remote.url(), "/data/image_url", {2});
    remote.state = name + "\"two\"\r\n";
    const std::string message = message_of([&] { table.read(0, 3); });
    CHECK_THAT(message,
               Contains("a.npy: the server has another file there than when the run began"));
    CHECK_THAT(message, Contains("\"two\", and was \"one\""));
    remote.state = name + "\"one\"\r\n";
    CHECK(table.read(2, 1)[0][1].item<float>() == 21);
  }
}

/// Row numbers of an epoch, from the values of its images.
std::vector<int64_t> order_of(const PriorDataset& data,
                              const std::string& split,
                              int64_t epoch,
                              int64_t size,
                              int64_t from = 0) {
  std::vector<int64_t> rows;
  for (int64_t row = from;;) {
    const auto batch = data.batch(split, epoch, row, size);
    if (!batch) return rows;
    CHECK(at::equal(batch->image_embeds, batch->text_embeds));
    for (int64_t i = 0; i < batch->size(); ++i)
      rows.push_back(static_cast<int64_t>(batch->image_embeds[i][0].item<float>()) / 10);
    row += batch->rows;
  }
}

TEST_CASE("shuffled rows come once an epoch, in an order of its own that batches do not change") {
  Folders f;
  f.data.shuffle_rows = true;
  f.data.splits = {.train = 0.8, .val = 0.1, .test = 0.1};
  const PriorDataset data(f.data, f.prior, 7);
  const std::vector<int64_t> first = order_of(data, "train", 0, 4);
  std::vector<int64_t> sorted = first, all(16);
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  CHECK(sorted == all);
  CHECK(first != all);
  CHECK(order_of(data, "train", 1, 4) != first);
  CHECK(order_of(PriorDataset(f.data, f.prior, 8), "train", 0, 4) != first);
  CHECK(order_of(PriorDataset(f.data, f.prior, 7), "train", 0, 3) == first);
  CHECK(order_of(data, "train", 0, 5, 11) == std::vector<int64_t>(first.begin() + 11, first.end()));
  CHECK(order_of(data, "val", 5, 4) == std::vector<int64_t>{16, 17});
  f.data.shuffle_rows = false;
  CHECK(order_of(PriorDataset(f.data, f.prior, 7), "train", 3, 4) == all);
}

TEST_CASE("shuffled rows of a server come in blocks, each fetched once an epoch") {
  const TempDir dir;
  constexpr int64_t kWidth = 1024;  // of 25,000 rows: 100 MB, 25 blocks
  for (const auto& [name, first, rows] : std::vector<std::tuple<std::string, int64_t, int64_t>>{
           {"a", 0, 8'000}, {"b", 8'000, 8'000}, {"c", 16'000, 9'000}}) {
    write_rows(dir / ("e/" + name + ".npy"), first, rows, {kWidth});
  }
  RemoteFolder remote(dir / "e");
  Folders f;
  f.prior.image_embed_dim = kWidth;
  f.data.image_url = f.data.text_url = remote.url();
  f.data.shuffle_rows = true;
  f.data.splits = {.train = 0.999, .val = 0, .test = 0.001};
  const PriorDataset data(f.data, f.prior, 7);
  CHECK(data.block_rows() == 1024);
  const int headers = remote.parts;
  std::vector<int64_t> rows = order_of(data, "train", 0, 500);
  // Two tables of 25 blocks, two of which lie in two files each.
  CHECK(remote.parts - headers == 2 * (25 + 2));
  std::set<int64_t> blocks;
  for (size_t i = 0; i < 500; ++i) blocks.insert(rows[i] / data.block_rows());
  CHECK(blocks.size() == static_cast<size_t>(RowOrder::kMixedBlocks));
  std::sort(rows.begin(), rows.end());
  std::vector<int64_t> all(static_cast<size_t>(data.rows("train")));
  std::iota(all.begin(), all.end(), 0);
  CHECK(rows == all);
}

TEST_CASE("an order of blocks holds each row once, and has no favourite places") {
  for (const int64_t rows : {1, 2, 3, 5, 17, 64, 100, 333}) {
    for (const int64_t block : {1, 2, 3, 7, 16, 100, 1000}) {
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        const RowOrder order(rows, block, 5, epoch);
        std::vector<int64_t> all = order.rows_at(0, rows), part = order.rows_at(rows / 3, rows / 2);
        CHECK(std::equal(part.begin(), part.end(), all.begin() + rows / 3));
        std::sort(all.begin(), all.end());
        for (int64_t i = 0; i < rows; ++i) REQUIRE(all[static_cast<size_t>(i)] == i);
      }
    }
  }
  // How often each of 20 rows comes first in 8,000 epochs; 400 expected, chi-square with 19 degrees of
  // freedom is below 50 but for one case in 8,000.
  std::vector<double> counts(20);
  for (int64_t epoch = 0; epoch < 8'000; ++epoch)
    ++counts[static_cast<size_t>(RowOrder(20, 20, 5, epoch).rows_at(0, 1)[0])];
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 400) * (count - 400) / 400;
  CHECK(chi_square < 50);
}

}  // namespace
}  // namespace dalle2::test
