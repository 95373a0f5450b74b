// SPDX-License-Identifier: MIT
#include "io/streams/url_source.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/listing.h"
#include "net/s3/s3.h"
#include "support/captured_log.h"
#include "support/loopback_server.h"
#include "support/temp_dir.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

const SourceOptions kCommands{.allow_pipe = true};

std::string read_all(const ByteSource& source) {
  std::string text, buffer(1000, '\0');
  while (const size_t size = source(buffer.data(), buffer.size())) text.append(buffer, 0, size);
  return text;
}

}  // namespace

TEST_CASE("paths, file urls, http urls and commands give the same bytes, from any on") {
  const TempDir folder;
  const std::string path = folder / "a.bin";
  std::string content(5000, 'x');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 / 3);
  write_file_atomically(path, content);
  LoopbackServer server([&](const HttpRequest& request) {
    if (request.path == "/plain.bin") return http_reply(200, content);
    return ranged_reply(request, content);
  });
  for (const std::string& url : {path,
                                 "file:" + path,
                                 "file://" + path,
                                 server.url("/a.bin"),
                                 server.url("/plain.bin"),
                                 "pipe:cat " + path}) {
    for (const size_t offset : {0, 1, 1234, 4999, 5000}) {
      INFO(url << " from " << offset);
      CHECK(read_all(open_source(url, {.offset = offset, .allow_pipe = true})) ==
            content.substr(offset));
    }
    INFO(url);
    CHECK_THROWS_WITH(read_all(open_source(url, {.offset = 5001, .allow_pipe = true})),
                      Contains("ends") && Contains("before"));
  }
}

TEST_CASE("a stream that begins late is taken up again where it was cut") {
  const std::string content(100'000, 'y');
  LoopbackServer server([&](const HttpRequest& request) {
    const HttpReply reply = ranged_reply(request, content);
    return request.number == 1 ? cut_after(reply, 3000) : reply;
  });
  CapturedLog log;
  CHECK(read_all(open_source(server.url("/a"), {.offset = 60'000})) == content.substr(60'000));
  CHECK(log.count("at byte 63000; attempt 2") == 1);
}

TEST_CASE("a command is not run unless that is allowed") {
  const TempDir folder;
  CHECK_THROWS_WITH(open_source("pipe:touch " + folder / "made"),
                    Contains("pipe:touch ...: this is a command") && !Contains("made") &&
                        Contains("\"allow_pipe\": true") && Contains("--allow-pipe"));
  CHECK_THROWS_AS(open_source("pipe:true"), ConfigError);
  CHECK_FALSE(std::filesystem::exists(folder / "made"));
  CHECK(read_all(open_source("pipe:touch " + folder / "made", kCommands)).empty());
  CHECK(std::filesystem::exists(folder / "made"));
}

TEST_CASE("a command that fails is an error at its end, a closed pipe is none") {
  CHECK_THROWS_WITH(read_all(open_source("pipe:echo text; exit 7", kCommands)),
                    Contains("pipe:echo ...: the command failed with status 7"));
  CHECK_THROWS_WITH(
      read_all(open_source("pipe:exit 7 # canary", {.offset = 1, .allow_pipe = true})),
      Contains("pipe:exit ...") && !Contains("canary"));
  CHECK(read_all(open_source("pipe:echo text; exit 141", kCommands)) == "text\n");
}

TEST_CASE("a command that is not read to its end is ended, with what it has started") {
  const auto start = std::chrono::steady_clock::now();
  {
    const ByteSource source =
        open_source("pipe:echo text; sleep 60 & sleep 60; echo more", kCommands);
    char byte = 0;
    CHECK(source(&byte, 1) == 1);
  }
  bool cancelled = false;
  SourceOptions options = kCommands;
  options.http.cancelled = [&] { return cancelled; };
  const ByteSource silent = open_source("pipe:sleep 60", options);
  cancelled = true;
  char byte = 0;
  CHECK_THROWS_WITH(silent(&byte, 1), Contains("pipe:sleep ...: cancelled"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("the files of a folder come by name, without its folders") {
  const TempDir folder;
  write_file_atomically(folder / "b", "");
  write_file_atomically(folder / "a", "");
  std::filesystem::create_directories(folder / "c");
  std::filesystem::create_symlink("absent", folder / "d");
  CHECK(files_in_folder(folder.path()) ==
        std::vector<std::string>{folder / "a", folder / "b", folder / "d"});
  CHECK_THROWS_WITH(files_in_folder(folder / "absent"),
                    Catch::Matchers::Equals("the folder \"" + folder / "absent" +
                                            "\" cannot be read: No such file or directory"));
  CHECK_THROWS_AS(files_in_folder(folder / "a"), DataError);
}

TEST_CASE("a listing that breaks off is an error, not the end of the folder") {
  const TempDir folder;
  for (const char* name : {"1.npy", "2.npy", "3.npy"}) write_file_atomically(folder / name, "x");
  CHECK(list_folder(folder.path()).size() == 3);
  setenv("DALLE2_FAIL_AT", "readdir:2:eio", 1);
  CHECK_THROWS_WITH(
      list_folder(folder.path()),
      Contains(folder.path()) && Contains("cannot be read") && Contains("Input/output error"));
  unsetenv("DALLE2_FAIL_AT");
}

TEST_CASE("folders are listed: files, and the links of a page") {
  const TempDir folder;
  write_file_atomically(folder / "img_1.npy", "x");
  const std::vector<ListedFile> files = list_folder("file:" + folder.path());
  REQUIRE(files.size() == 1);
  CHECK(files[0].name == "img_1.npy");
  CHECK(files[0].url == folder / "img_1.npy");
  CHECK_THROWS_WITH(list_folder(folder / "absent"), Contains("cannot be read"));
  CHECK_THROWS_WITH(list_folder("pipe:ls"), Contains("give one file's url with {}"));

  const std::string page =
      "<a href=\"../\">up</a><a href='a%20b_1.npy'>x</a> <A HREF= \"/emb/c_2.npy?C=N&amp;O=D\"><a "
      "href=\"?C=M\"><a href=\"sub/\"><a href=\"https://other/d_3.npy\"><a href=a%20b_1.npy><a "
      "href=\"./e_4.npy\"><a href=\"a%20b_1.npy\">";
  LoopbackServer server([&](const HttpRequest& request) {
    return request.path == "/emb/?sig=x" ? http_reply(200, page) : http_reply(404, "");
  });
  std::vector<std::string> names, urls;
  for (const ListedFile& file : list_folder(server.url("/emb?sig=x"))) {
    names.push_back(file.name);
    urls.push_back(file.url);
  }
  CHECK(names == std::vector<std::string>{"a b_1.npy", "c_2.npy", "e_4.npy"});
  CHECK(urls[0] == server.url("/emb/a%20b_1.npy?sig=x"));
  CHECK_THROWS_AS(list_folder(server.url("/gone")), HttpStatusError);
}

TEST_CASE("what is taken of a server's page of links is limited") {
  const std::string base = "http://h/emb/";
  std::string links;
  for (size_t i = 0; i < kMostListedFiles; ++i) links += "<a href=\"" + std::to_string(i) + "\">";
  CHECK(links_of_page(links, base).size() == kMostListedFiles);
  CHECK_THROWS_WITH(links_of_page(links + "<a href=\"x\">", base),
                    Contains("http://h/emb/: the page has more names of files; at most 1000000"));
  const auto named = [&](size_t size) {
    return links_of_page("<a href=\"" + std::string(size, 'x') + "\">", base);
  };
  CHECK(named(kMostNameBytes).size() == 1);
  CHECK_THROWS_WITH(named(kMostNameBytes + 1), Contains("a name of 4097 bytes; at most 4096"));
  CHECK(links_of_page("<a href=\"a&amp;amp;b&lt;.npy\">", base).at(0).name == "a&amp;b<.npy");
}

TEST_CASE("a page that never ends is not read to its end") {
  uint64_t given = 0;
  const ByteSource endless = [&](char* buffer, size_t capacity) {
    std::fill_n(buffer, capacity, 'x');
    given += capacity;
    return capacity;
  };
  CHECK_THROWS_WITH(read_source(endless, "http://h/", 1 << 20),
                    "http://h/: it has more than 1.0 MiB, which is all that is read");
  CHECK(given < uint64_t{3} << 20);
  const std::string page(kMostPageBytes + 1, 'x');
  LoopbackServer server([&](const HttpRequest&) { return http_reply(200, page); });
  CHECK_THROWS_WITH(list_folder(server.url("/emb")), Contains("it has more than 64.0 MiB"));
}

TEST_CASE("what cannot be read is told with the schemes that can") {
  CHECK_THROWS_AS(open_source("s3://bucket"), ConfigError);
  CHECK_THROWS_WITH(open_source("gs://bucket/0.tar"), Contains("gs://bucket/0.tar: only files"));
  CHECK_THROWS_AS(open_source("/absent/0.tar"), DataError);
}

TEST_CASE("the name of an url's file tells shards apart") {
  CHECK(url_file_name("https://u:p@h/a/000012.tar?x=/7#/8") == "000012.tar");
  CHECK(url_file_name("a?b/000012.tar") == "000012.tar");
  CHECK(url_file_name("000012.tar") == "000012.tar");
  CHECK(url_file_name("pipe:s3cmd get s3://bucket/00007.tar -") == "00007.tar -");
}
