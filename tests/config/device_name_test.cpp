// SPDX-License-Identifier: MIT
#include "config/shared/text_rules.h"

#include <catch2/catch.hpp>

#include "config/minimal_prior.h"
#include "config/reading/json_text.h"

namespace dalle2 {

TEST_CASE("cpu, cuda and numbered GPUs are names of devices") {
  for (const char* name : {"cpu", "cuda", "cuda:0", "cuda:7", "cuda:0010", "cuda:9999"}) {
    INFO(name);
    CHECK(device_fault(name) == std::nullopt);
  }
}

TEST_CASE("other names of devices are refused, with those there are") {
  for (const std::string& name : {std::string(),
                                  std::string("gpu"),
                                  std::string("CPU"),
                                  std::string("cpu "),
                                  std::string("cpu:0"),
                                  std::string("cuda0"),
                                  std::string("cuda:"),
                                  std::string("cuda:-1"),
                                  std::string("cuda:1x"),
                                  std::string("cuda: 1"),
                                  std::string("cuda:12345"),
                                  std::string("cuda:0\0", 7),
                                  std::string("mps")}) {
    INFO(name);
    CHECK(device_fault(name) ==
          "expected \"cpu\", \"cuda\" or \"cuda:N\", N the number of a GPU with at most 4 digits, "
          "got " +
              shown(name));
  }
}

TEST_CASE("a name of any length is refused in one line") {
  const std::string fault = *device_fault("cuda:" + std::string(1'000'000, '1'));
  CHECK(fault.size() < 200);
  CHECK(fault.find('\n') == std::string::npos);
}

TEST_CASE("the device of both kinds of runs is checked") {
  expect_problems({"/train/device=gpu"},
                  {"/train/device: expected \"cpu\", \"cuda\" or \"cuda:N\", N the number of a GPU "
                   "with at most 4 digits, got \"gpu\""});
  CHECK(message_of([] { read_prior({"/train/device=cuda:x"}); }) ==
        "prior.json: 1 problem\n  /train/device: expected \"cpu\", \"cuda\" or \"cuda:N\", N the "
        "number of a GPU with at most 4 digits, got \"cuda:x\"");
  CHECK(read_with({"/train/device=cuda:3"}).config.train.device == "cuda:3");
}

}  // namespace dalle2
