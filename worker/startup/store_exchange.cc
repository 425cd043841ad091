#include "worker/startup/store_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace ddprun::worker {
namespace {

// The launcher's store listens before any worker starts. So a minute is for a slow network only,
// and a job without a store must not wait for the ten minutes of a collective.
constexpr std::chrono::seconds kConnectTimeout{60};

}  // namespace

std::string StoreExchange::key(std::string_view name) const {
  // PyTorch's clients put a slash in front of every key. With the slash our keys are visible to
  // them, and the prefix keeps them apart from theirs.
  return fmt::format("/ddprun/{}/{}", options_.key, name);
}

// The last to arrive sets one key, and all others wait for it. Each rank also sets a key of its
// own, only so that an error can name who is missing.
Result<void> StoreExchange::arrive() {
  auto signed_in = client_.set(key(fmt::format("rank/{}", options_.rank)), "1");
  if (!signed_in) return signed_in;
  const auto arrived = client_.add(key("arrived"), 1);
  if (!arrived) return arrived.error();
  if (*arrived == options_.ranks) return client_.set(key("all"), "1");
  auto all = client_.wait(key("all"), options_.timeout);
  if (!all && all.error().code() == ErrorCode::kTimedOut) return absent_ranks();
  return all;
}

// Asks rank by rank: slow for thousands of ranks, but the job is lost already.
Error StoreExchange::absent_ranks() {
  std::vector<int> absent;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const std::array signed_in{key(fmt::format("rank/{}", rank))};
    const auto there = client_.check(signed_in);
    if (!there || !*there) absent.push_back(rank);
  }
  return {ErrorCode::kTimedOut,
          fmt::format("rank {} waited {} s for the others: rank {} of {} did not come",
                      options_.rank, std::chrono::duration<double>(options_.timeout).count(),
                      fmt::join(absent, ", "), options_.ranks)};
}

// All ranks have arrived, so their texts come soon.
Result<std::vector<std::string>> StoreExchange::gather(int rank, std::string_view text) {
  if (auto given = client_.set(key(fmt::format("text/{}", rank)), text); !given)
    return given.error();
  std::vector<std::string> keys;
  for (int other = 0; other < options_.ranks; ++other)
    keys.push_back(key(fmt::format("text/{}", other)));
  return client_.multi_get(keys);
}

Result<void> StoreExchange::announce(std::string_view text) {
  return client_.set(key("text"), text);
}

Result<std::string> StoreExchange::hear() {
  const auto announced = client_.wait(key("text"), options_.timeout);
  if (!announced) return announced.error();
  return client_.get(key("text"));
}

Result<std::unique_ptr<StoreExchange>> meet_over_store(const WorkerEnv& world,
                                                       std::chrono::milliseconds timeout,
                                                       const StoreGroup& group) {
  const auto patience = std::min<std::chrono::milliseconds>(kConnectTimeout, timeout);
  auto client = store::Client::connect(world.master_addr, world.master_port, patience);
  if (!client) return client.error();
  // The restart count makes the keys fresh: under torchrun the store outlives an attempt.
  StoreExchange::Options options{.rank = group.rank,
                                 .ranks = group.ranks,
                                 .key = fmt::format("{}/{}", group.name, world.restart_count),
                                 .timeout = timeout};
  return std::make_unique<StoreExchange>(std::move(*client), std::move(options));
}

}  // namespace ddprun::worker
