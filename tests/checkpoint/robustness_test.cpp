// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/this_process.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "checkpoint_test_tools.h"

namespace dalle2 {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;
using test::same_content;
using test::TempDir;

Dict small_checkpoint() {
  Dict model = test::dict_of(
      {{"weight", at::arange(20, at::kFloat).view({4, 5})}, {"mask", at::ones({3}, at::kBool)}});
  model.ordered = true;
  return test::dict_of({{"model", model}, {"version", "1.15.6"}, {"steps", List{{1, 2.5, true}}}});
}

/// Reads damaged bytes: true if that was noticed, or if the content is the same anyway.
template <class Read>
bool noticed_or_harmless(const std::string& path, const std::string& bytes, Read same_as_before) {
  test::put_file(path, bytes);
  try {
    return same_as_before(path);
  } catch (const DataError&) {
    return true;
  }
}

std::string with_flipped_bit(std::string bytes, size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  return bytes;
}

Value run(const std::string& pickle) {
  const StorageLoader none = [](const StorageRef& ref) -> at::Tensor {
    throw DataError("storage {} asked for", ref.key);
  };
  return value_of_pickle(run_pickle(pickle, "test"), none, "test");
}

}  // namespace

TEST_CASE("every truncation of a checkpoint is noticed") {
  const TempDir folder;
  write_pth(folder / "a.pth", small_checkpoint(), ReadBack::kNo);
  const Value model = *small_checkpoint().find("model");
  write_safetensors(folder / "a.safetensors", Cursor(model).as_state_dict(), {{"k", "v"}});
  const std::string legacy =
      std::string(DALLE2_SOURCE_DIR) + "/tests/parity/fixtures/checkpoints/legacy.pth";
  for (const auto& [path, step] :
       {std::pair{folder / "a.pth", 1}, {folder / "a.safetensors", 1}, {legacy, 7}}) {
    const std::string bytes = read_file(path), cut = folder / "cut" + path.substr(path.rfind('.'));
    for (size_t size = 0; size < bytes.size(); size += static_cast<size_t>(step)) {
      test::put_file(cut, bytes.substr(0, size));
      INFO(path << " cut to " << size << " of " << bytes.size());
      CHECK_THROWS_AS(read_checkpoint(cut), DataError);
    }
  }
}

TEST_CASE("every single flipped bit of a checkpoint is noticed or harmless") {
  const TempDir folder;
  const Value original = small_checkpoint();
  write_pth(folder / "a.pth", original, ReadBack::kNo);
  const std::string bytes = read_file(folder / "a.pth");
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const std::string damaged = with_flipped_bit(bytes, bit);
    INFO("bit " << bit % 8 << " of byte " << bit / 8 << " of " << bytes.size());
    CHECK(noticed_or_harmless(folder / "b.pth", damaged, [&](const std::string& path) {
      return same_content(read_pth(path), original);
    }));
  }
}

TEST_CASE("a storage that is a part of another, which no torch since 0.4 writes, is refused") {
  const TempDir folder;
  const auto text = [](const std::string& word) {
    return "X" + std::string(1, static_cast<char>(word.size())) + "\0\0\0"s + word;
  };
  const auto file = [&] {
    std::string bytes = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s;
    bytes += "\x80\x02M\xe9\x03."s;  // the protocol, 1001
    bytes += "\x80\x02}."s;          // the machine
    bytes +=
        "\x80\x02"
        "ctorch._utils\n_rebuild_tensor_v2\n(("s +
        text("storage") + "ctorch\nFloatStorage\n" + text("s") + text("cpu") + "K\x06(" +
        text("v") +
        "K\2K\3ttQK\0K\3\x85K\x01\x85\x89"s
        "ccollections\nOrderedDict\n)RtR.";
    bytes += "\x80\x02]" + text("s") + "a.";
    const at::Tensor values = at::arange(6, at::kFloat);
    const int64_t count = 6;
    bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
    bytes.append(static_cast<const char*>(values.data_ptr()), 24);
    test::put_file(folder / "view.pth", bytes);
    return read_pth(folder / "view.pth");
  };
  CHECK_THROWS_WITH(file(), Contains("storage 's' is a part of another"));
}

TEST_CASE("a pickle that would run a command is an inert stub") {
  const TempDir folder;
  const std::string command = "touch " + (folder / "ran");
  const std::string text = std::string("\x8c") + static_cast<char>(command.size()) + command;
  const Value value = run("\x80\x04" + std::string("cposix\nsystem\n") + text + "\x85R.");
  REQUIRE(value.is_stub());
  const auto& stub = std::get<std::shared_ptr<StubObject>>(value.data);
  CHECK(stub->full_name() == "posix.system");
  REQUIRE(stub->args.size() == 1);
  CHECK(stub->args[0].as_string() == command);
  CHECK_FALSE(std::filesystem::exists(folder / "ran"));
}

TEST_CASE("calls of what a call returned, states and items of unknown objects stay inert") {
  const Value value = run("\x80\x02"s +
                          "cbuiltins\ngetattr\ncos\nsystem\n\x85R)R}X\x01\0\0\0aK\x07sb(K\x01K\x02"
                          "e(K\x03K\x04u."s);
  REQUIRE(value.is_stub());
  const auto& stub = std::get<std::shared_ptr<StubObject>>(value.data);
  CHECK(stub->state.as_dict().find("a")->as_int() == 7);
  CHECK(stub->items.size() == 2);
  REQUIRE(stub->entries.size() == 1);
  CHECK(stub->entries[0].second.as_int() == 4);
}

TEST_CASE("bombs of nesting, sharing and sizes end in an error at once") {
  const std::string begin = "\x80\x02";
  CHECK_THROWS_WITH(run(begin + std::string(100000, ']') + std::string(99999, 'a') + "."),
                    Contains("deeper than 200"));
  std::string laughs = begin + "]q" + '\0';
  for (int i = 1; i < 30; ++i) {  // each list holds the one before it ten times
    laughs += std::string("](");
    for (int k = 0; k < 10; ++k) laughs += std::string("h") + static_cast<char>(i - 1);
    laughs += std::string("eq") + static_cast<char>(i);
  }
  CHECK_THROWS_WITH(run(begin + "(" + laughs.substr(2) + "t."),
                    Contains("unfolds to more than 1.2 MiB"));
  for (const char* size :
       {"X\xff\xff\xff\x7f", "\x8e\xff\xff\xff\xff\xff\xff\xff\xff", "\x8b\xff\xff\xff\xff"})
    CHECK_THROWS_WITH(run(begin + size + "a."), Contains("cut off"));
}

TEST_CASE("chains of shared unknown objects are limited in depth too") {
  // Each object is the argument of the next; all stand in one list, the first one first.
  std::string pickle = "\x80\x02](cm\nC\nq\0)R"s;
  for (int i = 0; i < 1000; ++i) pickle += "r\1\0\0\0h\0j\1\0\0\0\x85R"s;
  CHECK_THROWS_WITH(run(pickle + "e."), Contains("deeper than 200"));
}

TEST_CASE("short integers keep their sign, and a cycle is read with a stub in its place") {
  CHECK(run("\x80\x02\x8a\x02\x00\xff."s).as_int("test") == -256);
  const Value value = run("\x80\x02]q\0h\0a."s);
  REQUIRE(value.as_sequence().size() == 1);
  CHECK(value.as_sequence()[0].is_stub());
}

TEST_CASE("memos of huge numbers and thousands of open marks take little memory") {
  CHECK(run("\x80\x02Nr\xff\xff\xff\xff"
            "0j\xff\xff\xff\xff."s)
            .is_none());
  CHECK_THROWS_WITH(run("\x80\x02"s + std::string(100000, '(') + "."),
                    Contains("one object at the end"));
  CHECK_THROWS_WITH(run("\x80\x02"s + "N" + std::string(100000, '2') + "."),
                    Contains("one object at the end"));
}

TEST_CASE("a few bytes cannot stand for a tensor of terabytes") {
  const TempDir folder;
  const auto expanded = [&](int64_t rows) {
    write_pth(
        folder / "a.pth", test::dict_of({{"tensor", at::ones({1}).expand({rows})}}), ReadBack::kNo);
    return read_pth(folder / "a.pth");
  };
  CHECK(expanded(1000).as_dict().find("tensor")->as_tensor().sum().item<float>() == 1000.0f);
  CHECK_THROWS_WITH(expanded(int64_t{1} << 40), Contains("1099511627776 elements"));
  CHECK_THROWS_WITH(expanded((int64_t{1} << 24) + 1), Contains("16777217 elements"));
}

TEST_CASE("the texts that a pickle names again and again are counted as often") {
  // 64 KiB of text, and 2,000 lists of ten mentions of it: 1.3 GB.
  const std::string text(1 << 16, 'x');
  std::string pickle = "\x80\x02(X"s + "\0\0\1\0"s + text + "q\0"s;
  for (int i = 0; i < 2000; ++i) pickle += "](h\0h\0h\0h\0h\0h\0h\0h\0h\0h\0e"s;
  const uint64_t before = process_memory("VmHWM");
  CHECK_THROWS_WITH(run(pickle + "t."), Contains("unfolds to more than"));
  CHECK(process_memory("VmHWM") - before < uint64_t{200} << 20);
  // A class by a name of 60 KiB, a thousand times.
  std::string names = "\x80\x04(X"s + "\0\xf0\0\0"s + text.substr(0, 0xf000) + "q\0"s;
  for (int i = 0; i < 1000; ++i) names += "h\0h\0\x93"s;
  CHECK_THROWS_WITH(run(names + "t."), Contains("the name of a class with more than 1,024 bytes"));
}

TEST_CASE("what is shared as much as checkpoints share it is read") {
  std::string pickle = "\x80\x02(X"s + "\x28\0\0\0"s + std::string(40, 'x') + "q\0"s;
  for (int i = 0; i < 200'000; ++i) pickle += "h\0"s;
  CHECK(run(pickle + "t.").as_sequence().size() == 200'001);
  CHECK(run("\x80\x02("s + std::string(500'000, 'N') + "t.").as_sequence().size() == 500'000);
}

TEST_CASE("numpy's scalars have at least a byte") {
  const auto scalar = [](const std::string& code, const std::string& data) {
    return run("\x80\x04"s + "cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n\x8c\2" + code +
               "\x85RC" + static_cast<char>(data.size()) + data + "tR.");
  };
  CHECK(scalar("i2", "\xfe\xff").as_int() == -2);
  CHECK(scalar("i8", "\xfe\xff\xff\xff\xff\xff\xff\xff").as_int() == -2);
  CHECK(scalar("i0", "").is_stub());  // a shift by 64
}

TEST_CASE("a storage of bytes may end within an element, and is no bool beyond 1") {
  const auto read = [](const std::string& dtype, char count, const std::string& size) {
    const StorageLoader loader = [](const StorageRef& ref) {
      return at::arange(static_cast<int64_t>(ref.numel), at::kByte);
    };
    // torch._utils._rebuild_tensor_v3 over an UntypedStorage
    const std::string pickle =
        "\x80\x02"
        "ctorch._utils\n_rebuild_tensor_v3\n((X\7\0\0\0storage"
        "ctorch.storage\nUntypedStorage\nX\1\0\0\0"
        "0X\3\0\0\0cpuK"s +
        count + "tQK\0"s + size +
        "\x85K\1\x85\x89"
        "ccollections\nOrderedDict\n)R"
        "ctorch\n" +
        dtype + "\ntR.";
    return value_of_pickle(run_pickle(pickle, "test"), loader, "test");
  };
  CHECK(read("int16", 13, "K\6"s).as_tensor().sizes() == at::IntArrayRef({6}));
  CHECK(read("int16", 13, "K\6"s).as_tensor()[1].item<int64_t>() == 0x0302);
  CHECK_THROWS_WITH(read("int16", 13, "K\7"s),
                    Contains("reaches beyond its storage of 6 elements"));
  CHECK(read("bool", 2, "K\2"s).as_tensor()[1].item<bool>());
  CHECK_THROWS_WITH(read("bool", 3, "K\3"s), Contains("bools beyond 1"));
}

TEST_CASE("numpy's numbers of the other byte order stay objects") {
  const auto scalar = [](const std::string& order) {
    return run("\x80\x04"s +
               "cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n\x8c\2i2\x85R(K\3\x8c\1" + order +
               "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tbC\2\xfe\xfftR."s);
  };
  CHECK(scalar("<").as_int() == -2);
  CHECK(scalar(">").is_stub());
}

TEST_CASE("a text of bytes is UTF-8 before it is latin-1") {
  const auto encoded = [](const std::string& text) {
    return run("\x80\x02"s + "c_codecs\nencode\nX" + static_cast<char>(text.size()) + "\0\0\0"s +
               text + "X\6\0\0\0latin1\x86R."s);
  };
  CHECK(std::get<Bytes>(encoded("a\xc3\xbf").data).data == "a\xff");
  CHECK_THROWS_WITH(encoded("a\xc3z"), Contains("expected UTF-8, got the byte 0xc3 at offset 1"));
  CHECK_THROWS_WITH(encoded("\xe2\x82\xac"), Contains("not latin-1"));
}

TEST_CASE("a tensor has at most 64 dimensions in safetensors, as elsewhere") {
  const TempDir folder;
  const auto read = [&](size_t dimensions) {
    std::string ones = "1";
    for (size_t i = 1; i < dimensions; ++i) ones += ",1";
    std::string header = R"({"x":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size() & 0xff);
    bytes[1] = static_cast<char>(header.size() >> 8);
    test::put_file(folder / "a.safetensors", bytes + header + "x");
    return read_safetensors(folder / "a.safetensors").tensors.at(0).second.dim();
  };
  CHECK(read(64) == 64);
  CHECK_THROWS_WITH(read(65), Contains("shape (of up to 64 dimensions)"));
}

TEST_CASE("JSON in a checkpoint is read to a depth, and what is wrong is told in our words") {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK_THROWS_WITH(value_of_json(deep),
                    "expected JSON: lists and objects nested more than 200 levels deep");
  ValueTree tree;
  tree.json = deep;
  CHECK_THROWS_WITH(put_together(tree, "a"), Contains("a: the checkpoint in its metadata: lists"));
  tree.json = "{\"a\": \"\\ud800\"}";
  CHECK_THROWS_WITH(put_together(tree, "a"),
                    "a: the checkpoint in its metadata: /a: expected UTF-8, got an escape that is "
                    "half of a surrogate pair");
}

TEST_CASE("text that is not UTF-8 is in no file that we write") {
  const TempDir folder;
  // Overlong, a surrogate, beyond Unicode, cut off.
  for (const char* text : {"\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc3"}) {
    const Dict checkpoint = test::dict_of({{"note", text}}), keys = test::dict_of({{text, 1}});
    CHECK_THROWS_WITH(pickle_of_value(checkpoint),
                      Contains("/note: cannot be saved: expected UTF-8, got the byte 0x"));
    CHECK_THROWS_WITH(take_apart(checkpoint),
                      Contains("note: cannot be saved: expected UTF-8, got the byte 0x"));
    CHECK_THROWS_WITH(pickle_of_value(keys), Contains("expected UTF-8"));
    CHECK_THROWS_WITH(take_apart(keys), Contains("expected UTF-8"));
    const StateDict named = {{text, at::ones({1})}}, plain = {{"x", at::ones({1})}};
    CHECK_THROWS_WITH(write_safetensors(folder / "a.safetensors", named, {}),
                      Contains("the name") && Contains("cannot be saved: expected UTF-8"));
    CHECK_THROWS_WITH(write_safetensors(folder / "a.safetensors", plain, {{"a", text}}),
                      Contains("the metadata") && Contains("cannot be saved: expected UTF-8"));
  }
}

TEST_CASE("malformed pickles are refused with the place") {
  const std::pair<const char*, const char*> pickles[] = {{"", "protocol 2"},
                                                         {"(lp0\n.", "protocol 2"},
                                                         {"\x80\x09N.", "protocol beyond 5"},
                                                         {"\x80\x02", "cut off at byte 2"},
                                                         {"\x80\x02.", "one object at the end"},
                                                         {"\x80\x02NN.", "one object at the end"},
                                                         {"\x80\x02\x61.", "empty stack"},
                                                         {"\x80\x02t.", "no mark"},
                                                         {"\x80\x02h\x05.", "never stored"},
                                                         {"\x80\x02N]a.", "not a list"},
                                                         {"\x80\x02NK\1K\2s.", "not a dict"},
                                                         {"\x80\x02N)R.", "not a function"},
                                                         {"\x80\x02NQ.", "persistent id"},
                                                         {"\x80\x02NN\x93.", "without a name"},
                                                         {"\x80\x02\xff.", "unknown opcode"}};
  for (const auto& [pickle, reason] : pickles) CHECK_THROWS_WITH(run(pickle), Contains(reason));
  CHECK_THROWS_WITH(run("\x80\x02"), Contains("byte 2\n  Copy or download the file again."));
}

TEST_CASE("files that are not checkpoints are refused with what they are") {
  const TempDir folder;
  const auto check = [&](const std::string& bytes, const std::string& reason) {
    test::put_file(folder / "x.pth", bytes);
    CHECK_THROWS_WITH(read_pth(folder / "x.pth"), Contains(reason) && Contains("x.pth"));
  };
  check("", "is not a checkpoint");
  check(std::string(1000, '\0'), "is not a checkpoint");
  check("<!DOCTYPE html>", "is a web page: download the file itself");
  check("version https://git-lfs.github.com/spec/v1\noid", "is a pointer of Git LFS");
  check("PK\x03\x04", "cut off\n  Copy or download the file again.");
  const std::string long_name =
      "PK\x01\x02" + std::string(24, '\0') + "\x64" + std::string(17, '\0');
  check("PK\x03\x04" + long_name + "PK\x05\x06\0\0\0\0\1\0\1\0\x2e\0\0\0\4\0\0\0\0\0"s, "cut off");
  check("PK\x03\x04" + std::string(100, 'x'), "no directory at its end");
  CHECK_THROWS_WITH(read_pth(folder / "absent.pth"), Contains("No such file"));
}

}  // namespace dalle2
