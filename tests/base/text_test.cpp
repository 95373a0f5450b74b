// SPDX-License-Identifier: MIT
#include "base/text.h"

#include <catch2/catch.hpp>
#include <limits>

#include "base/hash.h"

namespace dalle2 {
namespace {

TEST_CASE("a number is 1 to 18 digits and nothing else") {
  CHECK(number_of_digits("000042") == 42);
  CHECK(number_of_digits("999999999999999999") == 999'999'999'999'999'999);
  for (const char* text : {"", "1000000000000000000", "-1", "+1", "1 ", "1a", "0x1"}) {
    INFO(text);
    CHECK_FALSE(number_of_digits(text));
  }
}

TEST_CASE("a hash is FNV-1a of 32 or 64 bits") {
  CHECK(Fnv1a<uint64_t>().hex() == "cbf29ce484222325");
  CHECK(Fnv1a<uint64_t>("foobar").hex() == "85944171f73967e8");  // the authors' test vectors
  CHECK(Fnv1a<uint32_t>("foobar").hex() == "bf9cf968");
  Fnv1a<uint32_t> lines;
  lines.add_line("foo");
  CHECK(lines.value() == Fnv1a<uint32_t>("foo\n").value());
}

TEST_CASE("edits are counted, a swap of neighbours as one") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("epcohs", "epochs") == 1);
  CHECK(edit_distance("batch_size", "batchsize") == 1);
  CHECK(edit_distance("sitting", "kitten") == edit_distance("kitten", "sitting"));
}

TEST_CASE("a near miss finds the nearest word, the first of equals, and no other") {
  const std::vector<std::string> keys = {
      "lr", "wd", "epochs", "batch_size", "save_every_n_samples"};
  CHECK(nearest_word("epcohs", keys) == "epochs");
  CHECK(nearest_word("EPOCHS", keys) == "epochs");
  CHECK(nearest_word("bach_size", keys) == "batch_size");
  CHECK(nearest_word("save_every_samples", keys) == "save_every_n_samples");
  CHECK(nearest_word("epochs", keys) == "epochs");
  const std::vector<std::string> others = {"scheduler", "x", "", "xx", std::string(1'000'000, 'l')};
  for (const std::string& other : others) CHECK_FALSE(nearest_word(other, {"lr", "wd", "t"}));
  CHECK_FALSE(nearest_word("anything", {}));
  CHECK(nearest_word("save_bets_to", {"save_meta_to", "save_best_to"}) == "save_best_to");
  CHECK(nearest_word("betas", {"beta1", "beta2"}) == "beta1");
}

TEST_CASE("counts have commas") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(1234567) == "1,234,567");
  CHECK(with_commas(-999) == "-999");
  CHECK(with_commas(-123456) == "-123,456");
  CHECK(with_commas(std::numeric_limits<int64_t>::min()) == "-9,223,372,036,854,775,808");
}

TEST_CASE("what is counted has its plural") {
  CHECK(counted(0, "shard") == "0 shards");
  CHECK(counted(1, "shard") == "1 shard");
  CHECK(counted(2000, "shard") == "2,000 shards");
  CHECK(counted(1, "picture of one", "pictures of many") == "1 picture of one");
  CHECK(counted(3, "picture of one", "pictures of many") == "3 pictures of many");
}

TEST_CASE("a number for people has four significant digits at most, and no idle zeros") {
  CHECK(short_number(0.30654321) == "0.3065");
  CHECK(short_number(0.42) == "0.42");
  CHECK(short_number(0.00198) == "1.98e-3");
  CHECK(short_number(0.01) == "0.01");
  CHECK(short_number(1e-4) == "1e-4");
  CHECK(short_number(-2.5e-12) == "-2.5e-12");
  CHECK(short_number(1) == "1");
  CHECK(short_number(108.24) == "108.2");
  CHECK(short_number(108.24, 3) == "108");
  CHECK(short_number(60.26, 3) == "60.3");
  CHECK(short_number(12345.6) == "12,346");
  CHECK(short_number(-1234567) == "-1,234,567");
  CHECK(short_number(3.4e38) == "3.4e38");
  CHECK(short_number(0.002, 1) == "2e-3");
  CHECK(short_number(0) == "0");
  CHECK(short_number(std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(short_number(-std::numeric_limits<double>::infinity()) == "-inf");
}

TEST_CASE("sizes have the unit in which they are short") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.0 KiB");
  CHECK(human_bytes(123456789) == "117.7 MiB");
  CHECK(human_bytes(1024 * 1024 - 1) == "1.0 MiB");  // not 1024.0 KiB
  CHECK(human_bytes(std::numeric_limits<uint64_t>::max()) == "16.0 EiB");
}

TEST_CASE("durations read like a clock") {
  CHECK(human_duration(0) == "0:00");
  CHECK(human_duration(75.4) == "1:15");
  CHECK(human_duration(3599.9) == "59:59");
  CHECK(human_duration(3700) == "1:01:40");
  CHECK(human_duration(-3) == "0:00");
  CHECK(human_duration(std::numeric_limits<double>::infinity()) == "-:--");
  CHECK(human_duration(std::numeric_limits<double>::quiet_NaN()) == "-:--");
}

TEST_CASE("letters from A to Z become small ones, other bytes stay") {
  CHECK(lower_case("A photo.JPG") == "a photo.jpg");
  CHECK(lower_case("\xc3\x84.PNG") == "\xc3\x84.png");
}

TEST_CASE("a list below a message ends after fifteen lines") {
  CHECK(indented_list({}).empty());
  CHECK(indented_list({"a", "b"}) == "\n    a\n    b");
  const std::string text = indented_list(std::vector<std::string>(17, "x"));
  CHECK(text.ends_with("\n    x\n    ... and 2 more"));
}

}  // namespace
}  // namespace dalle2
