// How ranks find each other before they have a collective. All of them arrive. Then one announces a
// short text (the name of a shared-memory segment, or an NCCL id), and the others hear it. Jobs use
// StoreExchange, over the job's store. Tests and benchmarks that fork their ranks use PipeExchange.
// Each process has its own exchange and calls it from one thread. Calls block, for a bounded time.
#pragma once

#include <string>
#include <string_view>

#include "proto/result.h"

namespace ddprun::worker {

class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  Exchange(Exchange&&) = delete;
  Exchange& operator=(Exchange&&) = delete;
  virtual ~Exchange() = default;

  // Returns once every rank has called it. What a rank makes afterwards finds all others ready to
  // take it. Errors: kTimedOut, or what the store or the pipe says.
  virtual Result<void> arrive() = 0;

  // One rank announces, once. Each other rank calls hear() once and gets the same text. `text` has
  // at most kTextBytesMax bytes, none of them zero.
  virtual Result<void> announce(std::string_view text) = 0;
  virtual Result<std::string> hear() = 0;

  // Bytes. An NCCL id in hex has 256; an error line, announced in its place, has a few more.
  static constexpr std::size_t kTextBytesMax = 512;
};

}  // namespace ddprun::worker
