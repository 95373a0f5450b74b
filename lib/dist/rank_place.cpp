// SPDX-License-Identifier: MIT
#include "dist/rank_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

namespace dalle2 {
namespace {

/// A rank that says what it is busy with may take that many times the hang timeout.
constexpr double kBusyFactor = 10;
/// Seconds that a collective may take in which all ranks are.
constexpr double kLeastTransfer = 10;
/// Seconds in a collective before a rank that is silent counts as gone.
constexpr double kLeastWait = 2;

/// Why a rank is what the others wait for; none if it is not.
std::optional<std::string> fault_of(const RankPlace& own,
                                    const std::optional<RankPlace>& other,
                                    double silent_seconds,
                                    double hang_seconds) {
  if (!other) {
    if (silent_seconds < hang_seconds) return std::nullopt;
    return fmt::format("was never heard of in {:.0f} s", silent_seconds);
  }
  // Half the time: so the report is there in good time even if the rank stopped long before. While
  // collectives continue, silence says no more than that the store does not answer.
  const double most_silent =
      own.seconds < kLeastWait ? std::numeric_limits<double>::infinity() : hang_seconds / 2;
  if (auto loss = loss_of(other, silent_seconds, most_silent)) return loss;
  if (own.seconds < hang_seconds) return std::nullopt;
  if (other->ended) return fmt::format("is done, {}", place_text(*other));
  if (is_another_operation(own, *other)) {
    return "meets this one in another operation: " + place_text(*other);
  }
  if (other->sequence >= own.sequence) return std::nullopt;
  if (!other->busy.empty()) {
    if (other->seconds < kBusyFactor * hang_seconds) return std::nullopt;
    return fmt::format("is stuck in: {}; {}", other->busy, place_text(*other));
  }
  return "lives, but does not come: " + place_text(*other);
}

}  // namespace

bool is_another_operation(const RankPlace& one, const RankPlace& other) {
  return one.sequence == other.sequence && one.what != other.what;
}

std::string place_text(const RankPlace& place) {
  return place.waits ? fmt::format("in \"{}\" (number {}, step {}) for {:.0f} s",
                                   place.what,
                                   place.sequence,
                                   place.step,
                                   place.seconds)
                     : fmt::format("behind \"{}\" (number {}, step {}) for {:.0f} s",
                                   place.what,
                                   place.sequence,
                                   place.step,
                                   place.seconds);
}

std::string reason_of(const std::string& error) {
  constexpr std::string_view kLast = "Last error:";
  std::string reason = error.substr(0, error.find('\n'));
  const size_t last = error.find(kLast);
  if (last == std::string::npos) return reason;
  std::istringstream lines(error.substr(last + kLast.size()));
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string::npos) reason += "; " + line.substr(begin);
  }
  return reason;
}

std::optional<std::string> loss_of(const std::optional<RankPlace>& other,
                                   double silent_seconds,
                                   double most_silent_seconds) {
  if (other && !other->failure.empty()) return "ended with an error: " + other->failure;
  if ((other && other->ended) || silent_seconds <= most_silent_seconds) return std::nullopt;
  return fmt::format(
      "has not been heard of for {:.0f} s: the process is gone or stopped, or the network is down{}",
      silent_seconds,
      other ? "; it was " + place_text(*other) : "");
}

std::string RankPlace::to_json() const {
  return nlohmann::json{{"beats", beats},
                        {"sequence", sequence},
                        {"step", step},
                        {"what", what},
                        {"waits", waits},
                        {"seconds", seconds},
                        {"limit", limit},
                        {"busy", busy},
                        {"failure", failure},
                        {"ended", ended}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankPlace RankPlace::from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  RankPlace place;
  place.beats = json.at("beats");
  place.sequence = json.at("sequence");
  place.step = json.at("step");
  place.what = json.at("what");
  place.waits = json.at("waits");
  place.seconds = json.at("seconds");
  place.limit = json.at("limit");
  place.busy = json.at("busy");
  place.failure = json.at("failure");
  place.ended = json.at("ended");
  return place;
}

std::optional<std::string> find_hang(int own,
                                     const std::vector<std::optional<RankPlace>>& places,
                                     const std::vector<double>& silent_seconds,
                                     double hang_seconds) {
  const RankPlace& mine = *places[static_cast<size_t>(own)];
  if (!mine.waits) return std::nullopt;
  std::string found;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (static_cast<int>(rank) == own) continue;
    const auto fault = fault_of(mine, places[rank], silent_seconds[rank], hang_seconds);
    if (fault) found += fmt::format("\n  rank {} {}", rank, *fault);
  }
  if (found.empty()) {
    // All are in the same place, and still nothing moves: the network between them is at fault. One
    // that is behind may be waited for, and a large sum needs some time however short the limit.
    const bool are_in_it = std::all_of(places.begin(), places.end(), [&](const auto& place) {
      return place && place->sequence >= mine.sequence;
    });
    const double most = std::max({hang_seconds, kLeastTransfer, mine.limit});
    if (!are_in_it || mine.seconds < most) return std::nullopt;
    found = "\n  all ranks are in it: look at the network between them";
  }
  return fmt::format("rank {} waits {}:{}", own, place_text(mine), found);
}

}  // namespace dalle2
