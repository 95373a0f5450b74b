// SPDX-License-Identifier: MIT
#include "checkpoint/archive/safetensors.h"

#include <unistd.h>

#include "support/fixture.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;

std::string little_endian_u64(uint64_t value) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string temporary_file(const std::string& content) {
  const std::string path = std::filesystem::temp_directory_path().string() +
                           "/dalle2_safetensors_test_" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

/// Reads a file with that header and data.
SafetensorsFile read_made(const std::string& header, const std::string& data) {
  return read_safetensors(temporary_file(little_endian_u64(header.size()) + header + data));
}

void check_refused(const std::string& header, const std::string& data, const std::string& reason) {
  INFO(header);
  CHECK_THROWS_WITH(read_made(header, data), Contains(reason));
}

const std::string kEightBytes(8, '\1');

}  // namespace

TEST_CASE("safetensors headers are read whatever their order and padding") {
  const SafetensorsFile file = read_made(
      " \n"
      "{\"b\":{\"data_offsets\":[4,8],\"shape\":[2],\"dtype\":\"F16\"},\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}  "
      "\n"
      " ",
      std::string("\0\0\x80\x3f\0\x3c\0\x40", 8));
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].first == "b");
  CHECK(file.tensors[0].second.scalar_type() == at::kHalf);
  CHECK(file.tensors[0].second[1].item<float>() == 2.0F);
  CHECK(file.tensors[1].second.dim() == 0);
  CHECK(file.tensors[1].second.item<float>() == 1.0F);
  CHECK(file.metadata.at("k") == "v");
}

TEST_CASE("safetensors files without tensors, with empty tensors and at odd offsets are read") {
  CHECK(read_made("{}", "").tensors.empty());
  const SafetensorsFile empty =
      read_made(R"({"e":{"dtype":"I64","shape":[3,0],"data_offsets":[0,0]}})", "");
  CHECK(empty.tensors[0].second.sizes() == at::IntArrayRef({3, 0}));
  const SafetensorsFile odd = read_made(
      R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
      std::string("\7\0\0\x80\x3f", 5));
  CHECK(odd.tensors[1].second.item<float>() == 1.0F);
}

TEST_CASE("tensors of a safetensors file can be written to without changing the file") {
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string path = temporary_file(little_endian_u64(header.size()) + header + kEightBytes);
  read_safetensors(path).tensors[0].second.zero_();
  CHECK(read_safetensors(path).tensors[0].second[0].item<float>() != 0.0F);
}

TEST_CASE("damaged safetensors files are refused with the reason") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(read_made(good, kEightBytes).tensors.size() == 1);
  check_refused(good, kEightBytes + "x", "trailing bytes");
  check_refused(good, kEightBytes.substr(1), "cut off");
  check_refused(good, kEightBytes.substr(1), "the file has 7\n  Copy or download the file again.");
  check_refused(good + std::string(1, '\0'), kEightBytes, "NUL");
  check_refused(good + "x", kEightBytes, "not valid JSON");
  check_refused(R"([1])", "", "expected an object of tensors");
  const auto check_tensor = [](const char* dtype, const char* rest, const char* reason) {
    check_refused(fmt::format(R"({{"a":{{"dtype":"{}",{}}}}})", dtype, rest), kEightBytes, reason);
  };
  check_tensor("F32", R"("shape":[3],"data_offsets":[0,8])", "needs 12 bytes");
  check_tensor("F32", R"("shape":[1],"data_offsets":[4,8])", "a hole");
  check_tensor("F32", R"("shape":[2],"data_offsets":[8,0])", "[begin, end]");
  check_tensor("F32", R"("shape":[-2],"data_offsets":[0,8])", "-2");
  check_tensor("F32", R"("shape":[2.0],"data_offsets":[0,8])", "2.0");
  check_tensor("F99", R"("shape":[2],"data_offsets":[0,8])", "'F99'");
  check_tensor("F32", R"("shape":[2])", "expected an object with dtype, shape");
  check_tensor(
      "F32", R"("shape":[2],"data_offsets":[0,8],"x":1)", "expected an object with dtype, shape");
  check_tensor("F32", R"("shape":[4611686018427387904,4],"data_offsets":[0,8])", "overflows");
  check_refused(R"({"__metadata__":{"k":1}})", "", "__metadata__/k: expected a text, got number");
}

TEST_CASE("safetensors names that appear twice and overlapping tensors are refused") {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  check_refused("{" + a + "," + a + "}", kEightBytes, "/a occurs twice");
  check_refused(R"({"__metadata__":{"k":"1","k":"2"}})", "", "/__metadata__/k occurs twice");
  check_refused("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                kEightBytes,
                "an overlap");
}

TEST_CASE("safetensors files that are too short, huge or not files at all are refused") {
  CHECK_THROWS_WITH(read_safetensors(temporary_file("")), Contains("got 0 bytes"));
  CHECK_THROWS_WITH(read_safetensors(temporary_file(little_endian_u64(UINT64_MAX) + "{}")),
                    Contains("not a safetensors file"));
  CHECK_THROWS_WITH(read_safetensors("/nowhere/x.safetensors"), Contains("No such file"));
  CHECK_THROWS_WITH(read_safetensors("/tmp"), Contains("/tmp: expected a file, got a folder"));
  const std::string deep(200000, '[');
  CHECK_THROWS_AS(read_safetensors(temporary_file(little_endian_u64(deep.size()) + deep)),
                  DataError);
}

}  // namespace dalle2
