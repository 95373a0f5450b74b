// SPDX-License-Identifier: MIT
// Thousands of damaged texts, pages, pictures, arrays and pickles: each is read, or refused by one of
// our errors. Tars are in tests/io/damage_test.cpp, which asks more of them.
#include "fuzz/corpus.h"
#include "fuzz/parsers.h"

using namespace dalle2;
using namespace std::string_literals;
using test::damage;
using test::Files;
using test::files_in;
using test::Parser;

namespace {

Files configs() {
  return files_in("configs", ".json", 3);
}

}  // namespace

TEST_CASE("what coverage-guided runs found is read or refused", "[damage]") {
  const std::vector<std::pair<std::string, Parser>> parsers = {
      {"json_text", test::read_json_text},
      {"config_text", test::read_config_text},
      {"template", test::read_template},
      {"url_list", test::read_url_list},
      {"index_page", test::read_index_page},
      {"s3_page", test::read_s3_page},
      {"aws_files", test::read_aws_files},
      {"log_of_run", test::read_log_of_run},
      {"stored_config", test::read_stored_config},
      {"npy_array", test::read_npy_array},
      {"tar_samples", test::read_tar_samples},
      {"picture", test::read_picture},
      {"caption", test::read_caption},
      {"clip_merges", test::read_clip_merges},
      {"pickle_graph", test::read_pickle_graph},
  };
  size_t taken = 0;
  for (const auto& [parser, read] : parsers) taken += test::read_corpus(parser, read);
  CHECK(taken > 200);
}

TEST_CASE("damaged JSON is read or refused", "[damage]") {
  Files files = configs();
  files.push_back(
      R"({"a": [1, -2.5e3, true, null, "\u00e4\ud83d\ude3a"], "b": {"a": {}, "": []}})");
  std::erase_if(files, [](const std::string& file) { return file.find("//") != file.npos; });
  damage("json_text", files, test::read_json_text);
  damage("stored_config", configs(), test::read_stored_config);
}

TEST_CASE("damaged configs are read or refused", "[damage]") {
  Files files = configs();
  for (std::string& file : files) {
    // Parsing opens no checkpoint, so that the VAE of a decoder says what it is.
    const size_t vae = file.find("{\"checkpoint\":");
    if (vae != std::string::npos) file.insert(vae + 1, R"("model": {"dim": 16, "layers": 2}, )");
    // The parity of the length chooses the kind (see read_config_text).
    const bool prior = file.find("\"prior\"") != std::string::npos;
    if ((file.size() % 2 == 1) != prior) file += '\n';
  }
  damage("config_text", files, test::read_config_text);
}

TEST_CASE("damaged templates of targets are read or refused", "[damage]") {
  damage("template",
         {"{epoch:03d}_{losses[0]:.3f}_{task}.pth", "{{x}}{loss:012.2e}", "{losses}"},
         test::read_template);
}

TEST_CASE("damaged lists of urls are read or refused", "[damage]") {
  damage("url_list",
         {"a/{000..123}.tar::s3://b/{a,b{0..6..2}}.tar",
          "https://u:p@h/{}.tar?sig=1::pipe:curl -H 'A: {x}' http://h/{0..9}.tar",
          "file:/a/{a..f}.tar"},
         test::read_url_list);
}

TEST_CASE("damaged answers of servers are read or refused", "[damage]") {
  damage("index_page",
         {"<a href=\"x_1.npy\">x</a><A HREF='./y%20&amp;.npy?C=M'><a href=\"/a/z.npy\">",
          "<pre><a href=\"http://h/a/1.npy\">1</a> 2020 10K\n<a href=\"../\">up</a></pre>"},
         test::read_index_page);
  damage("s3_page",
         {"<R><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
          "<NextContinuationToken>a/b=</NextContinuationToken>"
          "<Contents><Size>1</Size><Key>f/1+%20.npy</Key></Contents>"
          "<Contents><Key>f/&lt;2&gt;</Key></Contents></R>"},
         test::read_s3_page);
}

TEST_CASE("damaged files of the AWS tools are read or refused", "[damage]") {
  damage(
      "aws_files",
      {"[default]\naws_access_key_id = A\naws_secret_access_key=B\nregion = eu-west-1\n",
       "[profile x]\n[default]\nservices = s\n[services s]\ns3 =\n  endpoint_url = http://h:1\n"},
      test::read_aws_files);
}

TEST_CASE("damaged pictures and arrays are read whole or refused", "[damage]") {
  // Of the whole ones, too, some are refused.
  const auto check = [](const std::string& kind, const Files& files, int64_t usual, Parser read) {
    INFO(kind);
    const test::Outcome outcome =
        test::survive(kind, files, usual, [&](const test::Mutation& mutation, const std::string&) {
          read(mutation.file);
        });
    CHECK(outcome.refused > 0);
    CHECK(outcome.accepted > 0);
  };
  for (const std::string kind : {"jpg", "png", "webp"}) {
    const Files pictures = files_in("tests/parity/fixtures/images/decode", "." + kind, 4);
    check(kind, pictures, 800, test::read_picture);
  }
  check("npy", files_in("tests/parity/fixtures/npy", ".npy", 30), 5000, test::read_npy_array);
}

TEST_CASE("damaged logs are read, line by line", "[damage]") {
  damage("log_of_run",
         {"{\"Training Loss\": 0.5, \"step\": 10}\n{\"a\": null, \"step\": 20}\n"
          "{\"Samples\": [{\"path\": \"images/1.png\", \"caption\": \"a cat\"}], \"step\": 20}\n"
          "{\"error\": \"disk full\", \"step\": 30}\n{\"a\": 1, \"step\": 10}\n"},
         test::read_log_of_run);
}

TEST_CASE("damaged captions have tokens, and damaged vocabularies are read or refused",
          "[damage]") {
  damage(
      "caption",
      {"It\u2019s &eacute;&NTILDE; &amp;#233; \uff26\uff55\uff4c\uff4c\n<b>the hat</b> \u00bd 3rd",
       "\x1b[1;31mred\x1b[0m \ufb01ne e\u0301 \u0130 \u03a3\u0391\u03a3 <|endoftext|>\r\n&#x1F600;\u0085"},
      test::read_caption);
  damage("clip_merges",
         {"#version: 0.2\nt h\nth e</w>\n\u0120 a\n", "l o\nlo w</w>\n"},
         test::read_clip_merges);
}

TEST_CASE("damaged pickles are run or refused", "[damage]") {
  damage("pickle_graph",
         {"\x80\x02}q\0(X\1\0\0\0aq\1K\7X\1\0\0\0b]q\2(K\1M\2\0J\3\0\0\0G@\4\0\0\0\0\0\0eX\1\0\0\0c"
          "ccollections\nOrderedDict\n)Rq\3h\1Nsu."s,
          "\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\2ab\x94\x8c\1c\x94\x93(K\1K\2t\x94R}\x94h\0\x88sb."s},
         test::read_pickle_graph);
}
