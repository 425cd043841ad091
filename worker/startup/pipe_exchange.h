// A exchange of up to 100 processes forked from one parent, over pipes: no store, no network. For
// programs that fork their own ranks (bench/allreduce, tests). Made before the fork; each process
// then uses its copy. One exchange serves one collective; a rank that does not come within a minute
// is an error.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "worker/collective/exchange.h"

namespace ddprun::worker {

class PipeExchange final : public Exchange {
 public:
  explicit PipeExchange(int ranks);  // throws std::system_error where no pipe can be had
  PipeExchange(const PipeExchange&) = delete;
  PipeExchange& operator=(const PipeExchange&) = delete;
  PipeExchange(PipeExchange&&) = delete;
  PipeExchange& operator=(PipeExchange&&) = delete;
  ~PipeExchange() override;

  Result<void> arrive() override;
  Result<void> announce(std::string_view text) override;
  Result<std::string> hear() override;

 private:
  struct Shared;  // in memory that the forked processes share

  int ranks_;
  Shared* shared_;
  std::array<int, 2> gate_{-1, -1};  // one byte a rank once all have arrived
  std::array<int, 2> texts_{
      -1, -1};  // the announced text, once per listener, each padded to kTextBytesMax
};

}  // namespace ddprun::worker
