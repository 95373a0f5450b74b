// SPDX-License-Identifier: MIT
// Commands in urls run only where the config file itself says so.
#include "config/reading/json_text.h"

#include "config/minimal_config.h"

namespace dalle2 {
namespace {

using Catch::Contains;

constexpr const char* kForbidden =
    "/data/allow_pipe: is false, and an url is a command (\"pipe:...\"), which would run on this "
    "machine with your rights: write \"allow_pipe\": true into the \"data\" of the config file if "
    "you trust it";
constexpr const char* kNotBySet =
    "/data/allow_pipe: only the config file itself can allow commands, --set cannot: write "
    "\"allow_pipe\": true into its \"data\" if you trust them";

/// The text of a config file with a command for its shards and some values assigned.
std::string command_file(std::vector<std::string> assignments) {
  assignments.insert(assignments.begin(), "/data/webdataset_base_url=pipe:cat {}.tar");
  return file_with(kMinimalConfig, assignments);
}

std::string faults_of(const std::string& file, const ReadOptions& options = {}) {
  return message_of([&] { parse_decoder_config(file, "test.json", options); });
}

std::string one_problem(const char* line) {
  return std::string("test.json: 1 problem\n  ") + line;
}

}  // namespace

TEST_CASE("a command is refused unless the file allows it, with what to write") {
  CHECK(faults_of(command_file({})) == one_problem(kForbidden));
  CHECK(faults_of(command_file({"/data/allow_pipe=false"})) == one_problem(kForbidden));
  for (const char* yes : {"true", "1", "\"yes\""}) {
    INFO(yes);
    CHECK(faults_of(command_file({std::string("/data/allow_pipe=") + yes})) == "no error");
  }
}

TEST_CASE("a command is found in lists of urls and in the urls of embeddings") {
  for (const char* assignment : {R"(/data/webdataset_base_url=["a.tar", "pipe:cat b.tar"])",
                                 "/data/webdataset_base_url=shards/a.tar::pipe:cat b.tar",
                                 "/data/img_embeddings_url=pipe:cat {}.npy"}) {
    INFO(assignment);
    CHECK(message_of([&] { read_with({assignment}); }) == one_problem(kForbidden));
  }
}

TEST_CASE("--set cannot allow commands") {
  CHECK(faults_of(command_file({}), {.overrides = {"/data/allow_pipe=true"}}) ==
        one_problem(kNotBySet));
  CHECK(faults_of(kMinimalConfig, {.overrides = {"/data/allow_pipe=true"}}) ==
        one_problem(kNotBySet));
  // But it can forbid them, and give the command where the file allows it.
  const std::string allowed = command_file({"/data/allow_pipe=true"});
  CHECK(faults_of(allowed, {.overrides = {"/data/allow_pipe=false"}}) == one_problem(kForbidden));
  CHECK(faults_of(allowed, {.overrides = {"/data/webdataset_base_url=pipe:ls {}"}}) == "no error");
}

TEST_CASE("a config that only describes a model never allows commands") {
  const LoadedDecoderConfig loaded = parse_decoder_config(
      command_file({"/data/allow_pipe=true"}), "test.json", {.overrides = {}, .no_commands = true});
  CHECK_FALSE(loaded.config.data.allow_pipe);
  CHECK_FALSE(Json::parse(loaded.full_json)["data"]["allow_pipe"].get<bool>());
  // Nor is it refused for the command, which nobody runs.
  CHECK(faults_of(command_file({}), {.overrides = {}, .no_commands = true}) == "no error");
}

TEST_CASE("a file allows commands by a true value at its place alone") {
  CHECK(allows_pipe(Json::parse(R"({"data": {"allow_pipe": true}})")));
  for (const char* text : {R"({"data": {"allow_pipe": false}})",
                           R"({"data": {"allow_pipe": "perhaps"}})",
                           R"({"data": {}})",
                           R"({"data": [true]})",
                           R"({"allow_pipe": true})",
                           R"({})"}) {
    INFO(text);
    CHECK_FALSE(allows_pipe(Json::parse(text)));
  }
}

}  // namespace dalle2
