// An exchange over the job's store. torchrun's store outlives an attempt. If the membership
// changes, even the restart count stays. Old keys must not be taken for new ones. So each exchange
// has a round of its own. It is a number that rank 0 draws when it comes, and its keys carry that.
// A rank takes its place in the latest round, under a word that no other process has. It waits
// until rank 0 says that all are there. If that place is another's, or a later rank 0 has ended the
// round, it goes to the next one. bootstrap() owns it while it meets the other ranks. Calls block,
// in the store's WAIT.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/blocking_wait.h"
#include "proto/worker_env.h"
#include "store/client.h"
#include "worker/collective/core/exchange.h"

namespace ddprun::worker {

// The launcher's store listens before any worker starts. So a minute is for a slow network only. A
// job without a store must not wait for the ten minutes of a collective.
inline constexpr std::chrono::seconds kStoreConnectTimeout{60};

// The ranks that meet, and their purpose.
struct StoreGroup {
  std::string name;  // the same on all of them, and of no other group in this attempt
  int rank = 0;      // among those that meet
  int ranks = 1;
};

class StoreExchange final : public Exchange {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    std::string key;                      // "shm/<attempt>": equal on all ranks
    std::string store;                    // "address:port", for messages
    std::chrono::milliseconds timeout{};  // of arrive() and hear(), each
  };

  StoreExchange(store::Client client, Options options)
      : client_(std::move(client)), options_(std::move(options)) {}

  // First. kTimedOut names the ranks that did not come. kUnavailable: this is rank 0, and a later
  // one has begun another exchange. Other errors are those of store::Client.
  Result<void> arrive() override;
  Result<void> announce(std::string_view text) override;
  Result<std::string> hear() override;
  Result<std::vector<std::string>> gather(int rank, std::string_view text) override;

  std::string local_address() const { return client_.local_address(); }

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  Result<void> lead(Deadline end);
  Result<void> follow(Deadline end);
  Result<bool> take_place(const std::string& word, Deadline end);
  Result<void> end_earlier_rounds();
  Result<std::string> claim(const std::string& key, std::string_view value);
  std::string key_of_all(std::string_view name) const;
  std::string key_of(std::int64_t round, std::string_view name) const;
  std::string key(std::string_view name) const { return key_of(round_, name); }
  using Words = std::string (StoreExchange::*)();
  Result<void> await(std::span<const std::string> keys, Deadline end, Words words);
  Result<void> await_ranks(std::string key, Deadline end);
  std::vector<int> absent();
  std::string ranks_are_awaited();
  std::string texts_are_awaited();
  Error absent_ranks();

  store::Client client_;
  Options options_;
  BlockingWait wait_;       // since arrive()
  std::int64_t round_ = 0;  // this rank's latest, from 1
  bool placed_ = false;     // it has a place in it
};

// An exchange over the store of this worker's job. Errors: no answer at MASTER_ADDR:MASTER_PORT.
Result<std::unique_ptr<StoreExchange>> meet_over_store(const WorkerEnv& world,
                                                       std::chrono::milliseconds timeout,
                                                       const StoreGroup& group);

}  // namespace ddprun::worker
