// A desync board over the job's store, on a connection of its own. The thread that watches the
// collective uses it, while the program may use another. The collective owns it. A call blocks for
// a second at most.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/worker_env.h"
#include "store/client.h"
#include "worker/collective/core/desync_board.h"

namespace ddprun::worker {

class StoreBoard final : public DesyncBoard {
 public:
  // `key`: equal on all ranks, and fresh in each attempt.
  StoreBoard(store::Client client, std::string key, int rank)
      : client_(std::move(client)), key_(std::move(key)), rank_(rank) {}

  // Takes away what a rank of before may have left. Returns when the store has done so: what ranks
  // that meet afterwards read is of this attempt. Errors are those of store::Client.
  Result<void> clear();

  Result<void> post(std::string_view text) override;
  // kTimedOut where a rank has not called clear().
  Result<std::vector<std::string>> read(std::span<const int> ranks) override;

 private:
  std::string key_of(int rank) const;

  store::Client client_;
  std::string key_;
  int rank_;
};

// For the ranks of this worker's job that form the collective `name`; cleared. Errors: no answer at
// MASTER_ADDR:MASTER_PORT.
Result<std::unique_ptr<DesyncBoard>> make_store_board(const WorkerEnv& world,
                                                      std::string_view name);

}  // namespace ddprun::worker
