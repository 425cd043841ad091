// An exchange over pipes, for programs that fork their own ranks (bench/allreduce, tests). It has
// up to 100 processes with one parent, no store, no network. The parent makes it before it forks;
// each process then uses its own copy. One exchange serves one collective. A call waits for the
// others for a minute, then returns kTimedOut.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/core/exchange.h"

namespace ddprun::worker {

class PipeExchange final : public Exchange {
 public:
  // `ranks` must be 1 … 100. Throws std::system_error if the kernel gives no pipe or no memory.
  explicit PipeExchange(int ranks);
  PipeExchange(const PipeExchange&) = delete;
  PipeExchange& operator=(const PipeExchange&) = delete;
  PipeExchange(PipeExchange&&) = delete;
  PipeExchange& operator=(PipeExchange&&) = delete;
  ~PipeExchange() override;

  Result<void> arrive() override;
  Result<void> announce(std::string_view text) override;
  Result<std::string> hear() override;
  Result<std::vector<std::string>> gather(int rank, std::string_view text) override;

 private:
  struct Shared;  // in memory that the forked processes share

  int ranks_;
  Shared* shared_;
  // Pipes, read end first. `gate_` gets one byte per rank once all have arrived, and `told_` once
  // all have given their texts. `texts_` gets the announced text once per listener, each time
  // padded to kTextBytesMax.
  std::array<int, 2> gate_{-1, -1};
  std::array<int, 2> told_{-1, -1};
  std::array<int, 2> texts_{-1, -1};
};

}  // namespace ddprun::worker
