// A exchange over the job's store: the ranks sign in under keys of their own attempt, so that
// nothing an earlier attempt left in a store that outlived it is taken for this one's.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "store/client.h"
#include "worker/collective/exchange.h"

namespace ddprun::worker {

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

  // Error kTimedOut names the ranks that did not come.
  Result<void> arrive() override;
  Result<void> announce(std::string_view text) override;
  Result<std::string> hear() override;

 private:
  std::string key(std::string_view name) const;
  Error absent_ranks();

  store::Client client_;
  Options options_;
};

}  // namespace ddprun::worker
