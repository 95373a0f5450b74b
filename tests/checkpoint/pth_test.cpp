// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/pth.h"

#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/pickle/value_json.h"
#include "checkpoint_test_tools.h"
#include "io/files/disk_io.h"
#include "support/fixture.h"
#include "support/mapped_files.h"
#include "support/message_of.h"

namespace dalle2 {

namespace {

using Catch::Matchers::Contains;
using test::same_content;
using test::TempDir;

/// The value at "/a/0/b".
const Value& value_at(const Value& root, const std::string& path) {
  const Value* value = &root;
  for (size_t at = 1; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string part = path.substr(at, end - at);
    if (value->is_dict()) {
      const Value* child = value->as_dict().find(part);
      for (const auto& [key, other] : value->as_dict().items) {
        if (child == nullptr && key.is_int() && std::to_string(key.as_int()) == part)
          child = &other;
      }
      if (child == nullptr) throw DataError("no {}", path);
      value = child;
    } else {
      value = &value->as_sequence(path).at(std::stoul(part));
    }
    at = end + 1;
  }
  return *value;
}

}  // namespace

TEST_CASE("what Python saved is read with every value and every bit") {
  for (const std::string& expected_path :
       test::fixture_files(test::fixture_folder("checkpoints"), 4)) {
    const test::Fixture expected = test::load_fixture(expected_path);
    const std::string path = expected_path.substr(0, expected_path.find(".expected")) + ".pth";
    INFO(path);
    const Value checkpoint = read_pth(path);
    for (const auto& [name, tensor] : expected.tensors) {
      INFO(name);
      CHECK(same_content(value_at(checkpoint, name), tensor));
    }
    for (const auto& [name, plain] : expected.json.items()) {
      INFO(name);
      if (name != "/large") CHECK(json_of_value(value_at(checkpoint, name)) == plain.dump());
    }
  }
}

TEST_CASE("views, ties and shared storages that Python saved stay shared") {
  for (const std::string name : {"kinds", "legacy"}) {
    INFO(name);
    const Value root = read_pth(test::fixture_folder("checkpoints") + "/" + name + ".pth");
    const Cursor checkpoint(root);
    const at::Tensor base = checkpoint.at("base").as_tensor();
    const at::Tensor row = checkpoint.at("row").as_tensor();
    CHECK(base.is_alias_of(row));
    CHECK(base.is_alias_of(checkpoint.at("column").as_tensor()));
    CHECK(checkpoint.at("column").as_tensor().strides() == at::IntArrayRef({6}));
    row.fill_(7);
    CHECK(base[1][5].item<float>() == 7.0F);
    CHECK(checkpoint.at("transposed").as_tensor()[0][1].item<float>() == 7.0F);
    CHECK(checkpoint.at("tied").at(0).as_tensor().is_alias_of(
        checkpoint.at("tied").at(1).as_tensor()));
    CHECK(root.as_dict().ordered);
  }
}

TEST_CASE("a pickled class object becomes a stub and numpy's scalars become numbers") {
  const Value root = read_pth(test::fixture_folder("checkpoints") + "/model.pth");
  const Cursor checkpoint(root, "model.pth");
  const Cursor at_version = checkpoint.at("version");
  const Value& version = at_version.value();
  REQUIRE(version.is_stub());
  CHECK(version.type_name() == "packaging.version.Version");
  CHECK(version_text(version) == "1.15.6");
  CHECK(checkpoint.at("size").value().is_tuple());
  CHECK(checkpoint.at("half").value().type_name() == "torch.float16");
  CHECK(std::get<Bytes>(checkpoint.at("raw").value().data).data == std::string("\x00\xff"
                                                                               "ab",
                                                                               4));
  CHECK(checkpoint.at("set").value().type_name() == "builtins.set");
  CHECK(checkpoint.at("numpy").at(0).as_double() == 1.25);
  CHECK(checkpoint.at("numpy").at(1).as_int() == -3);
  CHECK(checkpoint.at("numpy").at(2).as_double() == 0.5);
  CHECK(checkpoint.at("numpy").at(3).as_bool());
  CHECK(checkpoint.at("defaults").at("a").as_int() == 1);
  CHECK(checkpoint.at("large").value().is_stub());
}

TEST_CASE("what we write is read back with equal content") {
  const TempDir folder;
  const Value checkpoint = test::sample_checkpoint();
  write_pth(folder / "a.pth", checkpoint);
  CHECK(same_content(read_pth(folder / "a.pth"), checkpoint));
}

TEST_CASE("a read-back finds a flipped bit wherever it lies on the disk") {
  const TempDir folder;
  const std::string path = folder / "a.pth";
  const auto options = at::kFloat;
  write_pth(path, List{{at::arange(10, options), at::empty({0}), at::arange(2'600'000, options)}});
  const std::string bytes = read_file(path);
  const uint32_t crc = crc32_of(0, bytes.data(), bytes.size());
  CHECK_NOTHROW(verify_pth(path, crc));
  const auto flip = [&](uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  };
  // Both sides of where one read of the disk ends and the next begins, and the first tensor.
  REQUIRE(bytes.size() > 2 * kDiskPieceBytes);
  const float one = 1;
  const std::string pattern(reinterpret_cast<const char*>(&one), sizeof one);
  for (const uint64_t offset : {static_cast<uint64_t>(bytes.find(pattern)),
                                uint64_t{kDiskPieceBytes - 1},
                                uint64_t{kDiskPieceBytes},
                                uint64_t{2 * kDiskPieceBytes - 1},
                                uint64_t{2 * kDiskPieceBytes},
                                uint64_t{2 * kDiskPieceBytes + 100'000}}) {
    INFO(offset);
    flip(offset);
    CHECK_THAT(test::message_of<DataError>([&] { verify_pth(path, crc); }),
               Contains("damaged on the disk: expected the CRC-32"));
    CHECK_THROWS_AS(read_pth(path), DataError);
    flip(offset);
    CHECK_NOTHROW(verify_pth(path, crc));
  }
  std::filesystem::resize_file(path, bytes.size() - 1);
  CHECK_THROWS_WITH(verify_pth(path, crc), Contains("damaged on the disk"));
  test::put_file(path, "");
  CHECK_THROWS_WITH(verify_pth(path, crc), Contains("damaged on the disk"));
}

TEST_CASE("equal checkpoints are equal files") {
  const TempDir folder;
  write_pth(folder / "a.pth", test::sample_checkpoint());
  write_pth(folder / "b.pth", test::sample_checkpoint(), ReadBack::kNo);
  CHECK(read_file(folder / "a.pth") == read_file(folder / "b.pth"));
}

TEST_CASE("overlapping views share a storage in the file and slices of a flat buffer do not") {
  const TempDir folder;
  const at::Tensor flat = at::arange(1000, at::kFloat);
  List list{{flat.narrow(0, 10, 5), flat.narrow(0, 12, 5), flat.narrow(0, 17, 3)}};
  const PickleToWrite pickle = pickle_of_value(list);
  REQUIRE(pickle.storages.size() == 2);
  CHECK(pickle.storages[0].numel() == 7);
  CHECK(pickle.storages[1].numel() == 3);
  write_pth(folder / "a.pth", list);
  const Value read = read_pth(folder / "a.pth");
  CHECK(same_content(read, list));
  const std::vector<Value>& items = read.as_sequence();
  CHECK(items[0].as_tensor().is_alias_of(items[1].as_tensor()));
  CHECK_FALSE(items[0].as_tensor().is_alias_of(items[2].as_tensor()));
  CHECK(std::filesystem::file_size(folder / "a.pth") < 2000);
}

TEST_CASE("tensors begin at multiples of 64 bytes in the file") {
  const TempDir folder;
  const double a = 1.25, b = 2.5;
  write_pth(folder / "a.pth", List{{at::full({3}, a, at::kDouble), at::full({5}, b, at::kDouble)}});
  const std::string bytes = read_file(folder / "a.pth");
  for (const double* value : {&a, &b}) {
    const size_t place = bytes.find(std::string(reinterpret_cast<const char*>(value), 8));
    REQUIRE(place != std::string::npos);
    CHECK(place % 64 == 0);
  }
}

TEST_CASE("what is not plain data cannot be saved and the error names its path") {
  const TempDir folder;
  auto stub = std::make_shared<StubObject>();
  stub->module = "os";
  stub->name = "system";
  const Dict root = test::dict_of({{"config", test::dict_of({{"object", stub}})}});
  CHECK_THROWS_WITH(write_pth(folder / "a.pth", root),
                    Contains("/config/object: cannot be saved") && Contains("os.system"));
  CHECK_FALSE(std::filesystem::exists(folder / "a.pth"));
  CHECK_THROWS_WITH(write_pth(folder / "a.pth", List{{"\xff"}}), Contains("/0: cannot be saved"));
  CHECK_THROWS_WITH(write_pth(folder / "a.pth", List{{at::Tensor()}}), Contains("undefined"));
  Value deep;
  for (int i = 0; i < 300; ++i) deep = List{{std::move(deep)}};
  CHECK_THROWS_WITH(write_pth(folder / "a.pth", deep), Contains("deeper than 200"));
}

TEST_CASE("errors name the path inside the checkpoint, what was expected and what is there") {
  const Dict group = test::dict_of({{"lr", "high"}});
  const Value root = test::dict_of({{"optim0", test::dict_of({{"param_groups", List{{group}}}})}});
  const Cursor checkpoint(root, "a.pth");
  const Cursor first = checkpoint.at("optim0").at("param_groups").at(0);
  CHECK_THROWS_WITH(first.at("lr").as_double(),
                    Contains("a.pth: /optim0/param_groups/0/lr: expected a number, got str"));
  CHECK_THROWS_WITH(first.at("eps"), Contains("expected an entry 'eps', got lr"));
  CHECK_THROWS_WITH(first.as_state_dict(),
                    Contains("/optim0/param_groups/0/lr: expected a Tensor, got str"));
  CHECK_THROWS_WITH(checkpoint.at("optim0").at("param_groups").at(1),
                    Contains("expected at least 2 items"));
  CHECK_THROWS_WITH(checkpoint.at("optim0").at(0), Contains("expected a list or tuple, got dict"));
  CHECK(checkpoint.find("ema") == std::nullopt);
}

TEST_CASE("numbers may stand in tensors of one element") {
  CHECK(Value(at::full({1}, 12, at::kLong)).as_int() == 12);
  CHECK(Value(at::scalar_tensor(3.0, at::kFloat)).as_int() == 3);
  CHECK(Value(at::scalar_tensor(0.5, at::kFloat)).as_double() == 0.5);
  CHECK_THROWS_AS(Value(at::scalar_tensor(0.5, at::kFloat)).as_int(), DataError);
  CHECK_THROWS_AS(Value(true).as_double(), DataError);
  const Value yes(at::ones({1}, at::kBool));
  CHECK(yes.as_bool());
  CHECK_THROWS_AS(yes.as_double(), DataError);
  CHECK_THROWS_AS(yes.as_int(), DataError);
  CHECK_THROWS_AS(Value(1.0).as_int(), DataError);
}

/// Run by check_with_python.py, which reads the files with torch and safetensors.
TEST_CASE("files for Python are written", "[.python]") {
  const char* folder = std::getenv("DALLE2_PYTHON_CHECK_DIR");
  REQUIRE(folder != nullptr);
  write_pth(std::string(folder) + "/sample.pth", test::sample_checkpoint());
  const Value kinds = read_pth(test::fixture_folder("checkpoints") + "/kinds.pth");
  write_pth(std::string(folder) + "/kinds.pth", kinds);
  const Value trainer = read_pth(test::fixture_folder("checkpoints") + "/trainer.pth");
  write_pth(std::string(folder) + "/trainer.pth", trainer);
  write_safetensors(std::string(folder) + "/sample.safetensors",
                    Cursor(trainer).at("model").as_state_dict(),
                    {{"k", "ä"}});
}

TEST_CASE("a snapshot writes exactly the file of its moment, and reuses its memory") {
  const test::TempDir folder;
  const at::Tensor flat = at::arange(100, at::kFloat);
  const at::Tensor counts = at::arange(7);
  // Views of a flat buffer, two of them of the same part.
  const Dict weights = test::dict_of({{"a", flat.narrow(0, 0, 33)},
                                      {"b", flat.narrow(0, 33, 60).view({6, 10}).t()},
                                      {"again", flat.narrow(0, 0, 33).view({3, 11})},
                                      {"none", at::empty({0, 4})},
                                      {"half", at::ones({5}, at::kHalf)},
                                      {"flag", at::full({}, true, at::kBool)}});
  const Dict checkpoint = test::dict_of({{"model", weights}, {"steps", counts}, {"name", "x"}});

  PthSnapshot snapshot;
  for (const double change : {0.0, 1.0, 2.0}) {
    flat.add_(change);
    write_pth(folder / "now.pth", checkpoint);
    snapshot.take(checkpoint);
    flat.mul_(-1);  // training goes on
    counts.add_(1);
    snapshot.write(folder / "later.pth");
    CHECK(read_file(folder / "later.pth") == read_file(folder / "now.pth"));
    flat.mul_(-1);
  }
  snapshot.take(Value(at::ones({10000})));  // larger than before
  snapshot.write(folder / "later.pth");
  CHECK(test::same_content(read_pth(folder / "later.pth"), Value(at::ones({10000}))));
  snapshot.take(checkpoint);  // and smaller
  snapshot.write(folder / "later.pth");
  CHECK(test::same_content(read_pth(folder / "later.pth"), checkpoint));
}

TEST_CASE("a snapshot leaves tensors of a scratch file where they are, until it is cleared") {
  const test::TempDir folder;
  const at::Tensor live = at::arange(6, at::kFloat), many = at::arange(2000, at::kFloat);
  Dict saved;
  {
    ScratchFile scratch(folder / "scratch");
    scratch.append(many.narrow(0, 0, 1500));
    scratch.append(many.narrow(0, 1500, 500));
    const at::Tensor in_file = scratch.tensor({20, 100}, at::kFloat);
    saved.set("live", live);
    saved.set("rows", in_file.narrow(0, 3, 2));
    saved.set("all", in_file);
  }
  CHECK_FALSE(std::filesystem::exists(folder / "scratch.part"));
  PthSnapshot snapshot;
  snapshot.take(saved);
  write_pth(folder / "now.pth", saved);
  saved = {};
  live.add_(1);
  snapshot.write(folder / "later.pth");
  CHECK(read_file(folder / "later.pth") == read_file(folder / "now.pth"));
  const Value written = read_pth(folder / "later.pth");
  CHECK(at::equal(Cursor(written).at("all").as_tensor().flatten(), many));
  CHECK(at::equal(Cursor(written).at("live").as_tensor(), live - 1));
  CHECK(test::maps_removed_file(folder / "scratch.part"));
  snapshot.clear();
  CHECK_FALSE(test::maps_removed_file(folder / "scratch.part"));
}

namespace {

uint64_t number_at(const std::string& bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = width; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

}  // namespace

// PKWARE APPNOTE 6.3.10, sections 4.3.14 to 4.3.16.
TEST_CASE("an archive of more members than 16 bits count has a zip64 directory") {
  constexpr size_t kMembers = 65'600;
  const test::TempDir folder;
  const std::string path = folder / "a.zip";
  {
    AtomicFile file(path);
    ZipWriter writer(file);
    for (size_t i = 0; i < kMembers; ++i) writer.add("m" + std::to_string(i), "x");
    writer.finish();
    file.commit();
  }
  const MappedFile file(path);
  const std::vector<ZipMember> members = read_zip(file);
  REQUIRE(members.size() == kMembers);
  CHECK(members.back().name == "m65599");
  CHECK(members.back().size == 1);

  const std::string bytes = read_file(path);
  const size_t end = bytes.size() - 22, locator = end - 20, record = locator - 56;
  CHECK(bytes.substr(end, 4) == "PK\x05\x06");
  CHECK(number_at(bytes, end + 8, 2) == 0xffff);
  CHECK(number_at(bytes, end + 10, 2) == 0xffff);
  CHECK(bytes.substr(locator, 4) == "PK\x06\x07");
  CHECK(number_at(bytes, locator + 8, 8) == record);
  CHECK(number_at(bytes, locator + 16, 4) == 1);
  CHECK(bytes.substr(record, 4) == "PK\x06\x06");
  CHECK(number_at(bytes, record + 4, 8) == 44);  // what follows this number
  CHECK(number_at(bytes, record + 24, 8) == kMembers);
  CHECK(number_at(bytes, record + 32, 8) == kMembers);
  const uint64_t size = number_at(bytes, record + 40, 8), begin = number_at(bytes, record + 48, 8);
  CHECK(begin + size == record);
  CHECK(bytes.substr(begin, 4) == "PK\x01\x02");
}

}  // namespace dalle2
