// SPDX-License-Identifier: MIT
#include "io/formats/npy.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/files/atomic_file.h"
#include "support/fixture_folder.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Contains;
using nlohmann::json;

namespace {

/// A version 1 file with this header and data.
std::string file_of(std::string header, const std::string& data, char version = 1) {
  header += '\n';
  std::string file = std::string("\x93NUMPY", 6) + version + '\0';
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  return file + header + data;
}

float value_of(const json& value) {
  if (value.is_number()) return value.get<float>();
  const std::string text = value;
  return text == "nan"    ? std::numeric_limits<float>::quiet_NaN()
         : text == "-inf" ? -std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::infinity();
}

}  // namespace

TEST_CASE(
    "files of NumPy read as NumPy's own values, and what we cannot use is refused with the reason",
    "[parity]") {
  const std::string folder = test::fixture_folder("npy");
  const json all = json::parse(read_file(folder + "/cases.json"));
  REQUIRE(all.size() > 20);
  for (const json& one : all) {
    const std::string path = folder + "/" + one.at("file").get<std::string>();
    INFO(path);
    if (one.contains("refused")) {
      CHECK_THAT(test::message_of<DataError>([&] { read_npy(path); }),
                 Contains(one.at("refused").get<std::string>()) && Contains(path));
      continue;
    }
    const NpyArray array = read_npy(path);
    CHECK(array.shape == one.at("shape").get<std::vector<int64_t>>());
    const std::vector<float> values = array.to_float32();
    const json& expected = one.at("values");
    REQUIRE(values.size() == expected.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const float wanted = value_of(expected[i]);
      CHECK((values[i] == wanted || (std::isnan(values[i]) && std::isnan(wanted))));
    }
    if (!array.shape.empty() && array.shape[0] > 1) {
      const size_t row_size = values.size() / static_cast<size_t>(array.shape[0]);
      std::vector<float> row(row_size);
      array.copy_row_float32(1, row.data());
      CHECK(row[0] == values[row_size]);
    }
  }
}

TEST_CASE("all 65,536 half-precision patterns convert exactly") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int mantissa = static_cast<int>(bits & 1023);
    float expected = exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                     : exponent == 0
                         ? std::ldexp(static_cast<float>(mantissa), -24)
                         : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    expected = std::copysign(expected, (bits & 0x8000) != 0 ? -1.0F : 1.0F);
    const float found = float16_to_float32(static_cast<uint16_t>(bits));
    const bool same = std::isnan(expected)
                          ? std::isnan(found)
                          : expected == found && std::signbit(expected) == std::signbit(found);
    if (!same) FAIL("bits " << bits << ": " << found << " is not " << expected);
  }
  SUCCEED();
}

TEST_CASE("headers in other hands' spelling are read") {
  const std::string four(16, '\0');
  for (const char* header :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }",
        "{\"shape\":(2,2),\"fortran_order\":False,\"descr\":\"<f4\"}",
        " { 'fortran_order' : False , 'shape' : ( 4 , 1 ) , 'descr' : '<f4' } "}) {
    CHECK(parse_npy(file_of(header, four), "x").numel() == 4);
  }
}

TEST_CASE("damaged NumPy files are refused with the file and the reason") {
  const auto header = [](const std::string& shape) {
    return "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
  };
  const std::string good = file_of(header("2, 3"), std::string(24, '\0'));
  CHECK(parse_npy(good, "x").numel() == 6);
  struct Case {
    std::string content;
    const char* reason;
  };
  const Case cases[] = {
      {"", "empty"},
      {"PK\x03\x04", "not a NumPy"},
      {good.substr(0, 8), "truncated"},
      {good.substr(0, 30), "truncated NumPy header"},
      {good.substr(0, good.size() - 1), "takes 24 bytes, but there are 23"},
      {good + "x", "oversize"},
      {file_of(header("2, 3"), "", 4), "version 4; expected 1, 2 or 3"},
      {file_of("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", "xxxx"),
       "Convert with array.astype('<f4')"},
      {file_of("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", std::string(16, 'x')),
       "numpy.stack(array).astype('<f4')"},
      {"PK\x03\x04 of numpy.savez", "it is an archive, as numpy.savez makes"},
      {file_of(header("-2, 3"), ""), "negative dimension -2"},
      {file_of(header("4611686018427387904, 4611686018427387904"), ""), "more than 2^63"},
      {file_of(header("4611686018427387904, 4, 0"), ""), "more than 2^63"},
      {file_of(header("0, 4611686018427387904, 4"), ""), "more than 2^63"},
      {file_of(header("2147483648, 1073741824, 0"), ""), "more than 2^63"},
      {file_of(header("99999999999999999999"), ""), "expected an integer"},
      {file_of(header("2 3"), ""), "damaged NumPy header"},
      {file_of("{'descr': '<f4', 'fortran_order': False}", ""), "without shape"},
      {file_of("{'fortran_order': False, 'shape': (1,)}", ""), "without descr"},
      {file_of("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}", ""),
       "damaged NumPy header"},
      {file_of("{'descr': '<f4", ""), "damaged NumPy header"},
      {file_of("{'other': 1}", ""), "without descr"},
      {file_of("__import__('os')", ""), "damaged NumPy header"},
      {file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} + 1", "xxxx"),
       "damaged NumPy header"},
  };
  for (const Case& one : cases) {
    INFO(one.reason);
    CHECK_THAT(test::message_of<DataError>([&] { parse_npy(one.content, "emb_0001.npy"); }),
               Contains("emb_0001.npy") && Contains(one.reason));
  }
}

TEST_CASE("a written array reads back, with a header as NumPy writes it") {
  const test::TempDir folder;
  const std::vector<float> values = {1.5F, -2.0F, 3e-8F, 0.0F, 1e30F, 7.0F};
  write_npy_float32(folder / "out/a.npy", {2, 3}, values.data());
  const NpyArray array = read_npy(folder / "out/a.npy");
  CHECK(array.type == NpyType::kFloat32);
  CHECK(array.shape == std::vector<int64_t>{2, 3});
  CHECK(array.to_float32() == values);
  // The committed file of NumPy itself, byte for byte but for the values.
  const std::string theirs = read_file(test::fixture_folder("npy") + "/float32_v1.npy");
  const std::string ours = format_npy_float32({3, 4}, std::vector<float>(12).data());
  CHECK(ours.size() == theirs.size());
  CHECK(ours.substr(0, 128) == theirs.substr(0, 128));
  CHECK_THAT(format_npy_float32({5}, std::vector<float>(5).data()), Contains("(5,), }"));
}
