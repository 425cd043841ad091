#include "worker/startup/store_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/duration.h"
#include "base/random_number.h"
#include "worker/startup/init_method/named_ranks.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// A word of so many random bytes is no other process's. A pid would not do: it comes again.
constexpr std::size_t kWordBytes = 12;

// The values of a round's key "decided", written once.
constexpr std::string_view kAllHere = "all";
constexpr std::string_view kOver = "over";

std::chrono::milliseconds left_until(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

}  // namespace

// PyTorch's clients put a slash in front of every key. With the slash our keys are visible to them,
// and the prefix keeps them apart from theirs. It has the number of ranks in it. So a place that
// another world left free cannot be taken for one of ours.
std::string StoreExchange::key_of_all(std::string_view name) const {
  return fmt::format("/ddprun/{}/{}/{}", options_.key, options_.ranks, name);
}

std::string StoreExchange::key_of(std::int64_t round, std::string_view name) const {
  return key_of_all(fmt::format("{}/{}", round, name));
}

Result<void> StoreExchange::arrive() {
  const auto end = Clock::now() + options_.timeout;
  wait_ = {};
  auto here = options_.rank == 0 ? lead(end) : follow(end);
  if (!here && here.error().code() == ErrorCode::kTimedOut) return absent_ranks();
  return here;
}

// As Client::wait(), and tells of a wait that goes on.
Result<void> StoreExchange::await(std::span<const std::string> keys, Deadline end, Words words) {
  for (;;) {
    auto there = client_.wait(keys, left_until(wait_.until(end)));
    const bool is_missing = !there && there.error().code() == ErrorCode::kTimedOut;
    if (!is_missing || Clock::now() >= end) return there;
    wait_.tell([&] { return (this->*words)(); });
  }
}

Result<void> StoreExchange::await_ranks(std::string key, Deadline end) {
  return await(std::array{std::move(key)}, end, &StoreExchange::ranks_are_awaited);
}

// Writes a key that nobody has written, and says what it holds then. PyTorch's store without libuv
// wakes nobody who waits for the key at that (torch 2.11, TCPStore.cpp, compareSetHandler). So our
// value is written once more.
Result<std::string> StoreExchange::claim(const std::string& key, std::string_view value) {
  auto held = client_.compare_set(key, "", value);
  if (!held || *held != value) return held;
  if (auto written = client_.set(key, value); !written) return written.error();
  return held;
}

Result<void> StoreExchange::lead(Deadline end) {
  const auto round = client_.add(key_of_all("rounds"), 1);
  if (!round) return round.error();
  round_ = *round;
  placed_ = true;
  if (auto ended = end_earlier_rounds(); !ended) return ended;
  std::vector<std::string> places;
  for (int rank = 1; rank < options_.ranks; ++rank)
    places.push_back(key(fmt::format("rank/{}", rank)));
  if (!places.empty())
    if (auto all = await(places, end, &StoreExchange::ranks_are_awaited); !all) return all;
  const auto decided = claim(key("decided"), kAllHere);
  if (!decided) return decided.error();
  if (*decided == kAllHere) return boost::system::in_place_value;
  return Error(ErrorCode::kUnavailable,
               "another rank 0 has come since: this process belongs to a membership that is over");
}

// All of them, each time: one whose rank 0 died in here may have ended some only. There are as many
// as memberships of this attempt.
Result<void> StoreExchange::end_earlier_rounds() {
  for (std::int64_t round = 1; round < round_; ++round) {
    const auto decided = claim(key_of(round, "decided"), kOver);
    if (!decided) return decided.error();
    if (auto told = client_.set(key_of(round, "next"), "1"); !told) return told;
  }
  return boost::system::in_place_value;
}

Result<void> StoreExchange::follow(Deadline end) {
  if (auto begun = await_ranks(key_of_all("rounds"), end); !begun) return begun;
  const std::string word = random_hex(kWordBytes);
  while (true) {
    const auto met = take_place(word, end);
    if (!met) return met.error();
    if (*met) return boost::system::in_place_value;
  }
}

// In the latest round. False if it is over, and a later one has begun.
Result<bool> StoreExchange::take_place(const std::string& word, Deadline end) {
  const auto round = client_.add(key_of_all("rounds"), 0);
  if (!round) return round.error();
  round_ = *round;
  const auto place = claim(key(fmt::format("rank/{}", options_.rank)), word);
  if (!place) return place.error();
  placed_ = *place == word;
  // The place of a process of an earlier membership: that round may have been decided long ago.
  const std::string next = key(placed_ ? "decided" : "next");
  if (auto there = await_ranks(next, end); !there) return there.error();
  if (!placed_) return false;
  const auto decided = client_.get(next);
  if (!decided) return decided.error();
  return *decided == kAllHere;
}

// Asks rank by rank: slow for thousands of ranks, but nobody waits for this one. A round that waits
// for nobody else waits for its rank 0.
std::vector<int> StoreExchange::absent() {
  std::vector<int> absent;
  for (int rank = 1; placed_ && rank < options_.ranks; ++rank) {
    const std::array place{key(fmt::format("rank/{}", rank))};
    const auto there = client_.check(place);
    if (!there || !*there) absent.push_back(rank);
  }
  if (absent.empty()) absent.push_back(0);
  return absent;
}

std::string StoreExchange::ranks_are_awaited() {
  return fmt::format("rank {} is at the store {}, and {} of {} has not come yet", options_.rank,
                     options_.store, named_ranks(absent()), options_.ranks);
}

std::string StoreExchange::texts_are_awaited() {
  return fmt::format(
      "rank {} of {} is at the store {}, and the others have not said there yet how to "
      "reach them",
      options_.rank, options_.ranks, options_.store);
}

Error StoreExchange::absent_ranks() {
  return {
      ErrorCode::kTimedOut,
      fmt::format("rank {} waited {} s for the others: rank {} of {} did not come", options_.rank,
                  in_seconds(options_.timeout), fmt::join(absent(), ", "), options_.ranks)};
}

// All ranks have arrived, so their texts come soon.
Result<std::vector<std::string>> StoreExchange::gather(int rank, std::string_view text) {
  if (auto given = client_.set(key(fmt::format("text/{}", rank)), text); !given)
    return given.error();
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(options_.ranks));
  for (int other = 0; other < options_.ranks; ++other)
    keys.push_back(key(fmt::format("text/{}", other)));
  wait_ = {};
  const auto limit = std::min<std::chrono::milliseconds>(kStoreConnectTimeout, options_.timeout);
  const auto all = await(keys, Clock::now() + limit, &StoreExchange::texts_are_awaited);
  if (!all) return all.error();
  return client_.multi_get(keys);
}

Result<void> StoreExchange::announce(std::string_view text) {
  return client_.set(key("text"), text);
}

Result<std::string> StoreExchange::hear() {
  wait_ = {};
  const auto announced = await(std::array{key("text")}, Clock::now() + options_.timeout,
                               &StoreExchange::texts_are_awaited);
  if (!announced) return announced.error();
  return client_.get(key("text"));
}

Result<std::unique_ptr<StoreExchange>> meet_over_store(const WorkerEnv& world,
                                                       std::chrono::milliseconds timeout,
                                                       const StoreGroup& group) {
  const auto patience = std::min<std::chrono::milliseconds>(kStoreConnectTimeout, timeout);
  auto client = store::Client::connect(world.master_addr, world.master_port, patience,
                                       fmt::format("rank {}", world.rank));
  if (!client) return client.error();
  // The restart count keeps attempts apart, the rounds those of one.
  StoreExchange::Options options{
      .rank = group.rank,
      .ranks = group.ranks,
      .key = fmt::format("{}/{}", group.name, world.restart_count),
      .store = fmt::format("{}:{}", world.master_addr, world.master_port),
      .timeout = timeout};
  return std::make_unique<StoreExchange>(std::move(*client), std::move(options));
}

}  // namespace ddprun::worker
