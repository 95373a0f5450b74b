// SPDX-License-Identifier: MIT
#include "tracker/run_folder/resume_order.h"

#include <catch2/catch.hpp>

#include "tracker/run_folder/own_files.h"

namespace dalle2 {
namespace {

using Paths = std::vector<std::string>;

ResumeFile at(const std::string& path,
              int64_t samples,
              const std::vector<int64_t>& went_back_to = {},
              bool amid_skips = false) {
  return {
      path,
      SavedFacts{.samples_seen = samples, .went_back_to = went_back_to, .amid_skips = amid_skips}};
}

TEST_CASE("the file that has seen the most samples comes first, equal ones keep their order") {
  CHECK(resume_order({at("latest", 10), at("checkpoint", 30), at("a", 20), at("b", 30)},
                     ResumeFor::kStart) == Paths{"checkpoint", "b", "a", "latest"});
}

TEST_CASE("a file that cannot be read is tried first, so that the log names it") {
  CHECK(resume_order({at("a", 10), {"damaged"}, at("b", 20)}, ResumeFor::kStart) ==
        Paths{"damaged", "b", "a"});
}

TEST_CASE("files of a branch that a roll-back abandoned do not count, its ancestors do") {
  // 10, 20, 50 and 60 were saved; the run went back to 20 and saved there and at 30.
  const std::vector<ResumeFile> files = {at("10", 10),
                                         at("20", 20),
                                         at("50", 50),
                                         at("60", 60),
                                         at("back", 20, {20}),
                                         at("30", 30, {20})};
  CHECK(resume_order(files, ResumeFor::kStart) == Paths{"30", "back", "20", "10"});
  // Later it went back to 15, which abandons what was saved on the second branch, too.
  std::vector<ResumeFile> twice = files;
  twice.push_back(at("again", 15, {20, 15}));
  CHECK(resume_order(twice, ResumeFor::kStart) == Paths{"again", "10"});
}

TEST_CASE("a roll-back prefers a file that was not saved amid skipped updates, a start does not") {
  const std::vector<ResumeFile> files = {
      at("stopped", 60, {}, true), at("good", 40), at("older", 20)};
  CHECK(resume_order(files, ResumeFor::kStart) == Paths{"stopped", "good", "older"});
  CHECK(resume_order(files, ResumeFor::kRollBack) == Paths{"good", "older", "stopped"});
}

TEST_CASE("ids of runs are random UUIDs of version 4") {
  const std::string id = make_run_id();
  CAPTURE(id);
  CHECK(is_run_id(id));
  CHECK(id[14] == '4');
  CHECK(std::string("89ab").find(id[19]) != std::string::npos);
  CHECK(make_run_id() != id);
  for (const char* other : {"", "abc", "0f8fad5b-d9cb-469f-a165-7086772895ZZ"}) {
    CHECK_FALSE(is_run_id(other));
  }
}

}  // namespace
}  // namespace dalle2
