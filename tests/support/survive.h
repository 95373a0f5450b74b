// SPDX-License-Identifier: MIT
// Thousands of damaged files, each of which is read or refused within seconds.
#pragma once

#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/mutate.h"

namespace dalle2::test {

struct Outcome {
  int64_t accepted = 0, refused = 0;
};

inline int64_t mutation_setting(const char* name, int64_t without) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : without;
}

/// Reads DALLE2_MUTATIONS mutated files (or `usual`) of a kind. `read` gets the mutation and the
/// whole file, and refuses by one of our errors; anything else it throws fails the test. A file
/// that takes longer than 30 s, on a busy machine under sanitizers, ends the test by SIGALRM.
inline Outcome survive(const std::string& kind,
                       const std::vector<std::string>& files,
                       int64_t usual,
                       const std::function<void(const Mutation&, const std::string&)>& read) {
  using Clock = std::chrono::steady_clock;
  constexpr unsigned kSecondsPerFile = 30;
  const int64_t rounds = mutation_setting("DALLE2_MUTATIONS", usual);
  const uint64_t seed = static_cast<uint64_t>(mutation_setting("DALLE2_MUTATION_SEED", 20));
  Mutator mutator(files, kind);
  Outcome outcome;
  double longest = 0;
  for (int64_t number = 0; number < rounds; ++number) {
    INFO(kind << " mutation " << number << " of seed " << seed);
    const Mutation mutation = mutator.make(seed, static_cast<uint64_t>(number));
    const Clock::time_point begin = Clock::now();
    alarm(kSecondsPerFile);
    try {
      read(mutation, mutator.whole(static_cast<uint64_t>(number)));
      ++outcome.accepted;
    } catch (const Error&) {
      ++outcome.refused;
    }
    alarm(0);
    longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  if (std::getenv("DALLE2_MUTATIONS") != nullptr) {
    std::printf("%s: %ld files mutated, %ld read, %ld refused, the longest took %.0f ms\n",
                kind.c_str(),
                static_cast<long>(rounds),
                static_cast<long>(outcome.accepted),
                static_cast<long>(outcome.refused),
                1000 * longest);
    std::fflush(stdout);
  }
  return outcome;
}

}  // namespace dalle2::test
