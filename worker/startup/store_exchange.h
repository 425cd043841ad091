// An exchange over the job's store. The ranks sign in under keys of their own attempt: torchrun's
// store outlives an attempt, and its old keys must not be taken for new ones. bootstrap() owns it
// while it meets the other ranks. Calls block.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/worker_env.h"
#include "store/client.h"
#include "worker/collective/exchange.h"

namespace ddprun::worker {

// Which ranks meet, and for what.
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
    std::string key;                      // "shm/<attempt>": equal on all ranks, fresh each attempt
    std::chrono::milliseconds timeout{};  // of arrive() and hear(), each
  };

  StoreExchange(store::Client client, Options options)
      : client_(std::move(client)), options_(std::move(options)) {}

  // kTimedOut names the ranks that did not come. Other errors are those of store::Client.
  Result<void> arrive() override;
  Result<void> announce(std::string_view text) override;
  Result<std::string> hear() override;
  Result<std::vector<std::string>> gather(int rank, std::string_view text) override;

  std::string local_address() const { return client_.local_address(); }

 private:
  std::string key(std::string_view name) const;
  Error absent_ranks();

  store::Client client_;
  Options options_;
};

// An exchange over the store of this worker's job. Errors: no answer at MASTER_ADDR:MASTER_PORT.
Result<std::unique_ptr<StoreExchange>> meet_over_store(const WorkerEnv& world,
                                                       std::chrono::milliseconds timeout,
                                                       const StoreGroup& group);

}  // namespace ddprun::worker
