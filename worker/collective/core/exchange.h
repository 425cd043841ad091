// How ranks find each other before they have a collective. All of them arrive. Then one announces a
// short text, and the others hear it. It is the name of a shared-memory segment, or an NCCL id. Or
// each gives one (its address), and all get them. Jobs use StoreExchange, over the job's store.
// Tests and benchmarks that fork their ranks use PipeExchange. Each process has its own exchange
// and calls it from one thread. Calls block, for a bounded time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  Exchange(Exchange&&) = delete;
  Exchange& operator=(Exchange&&) = delete;
  virtual ~Exchange() = default;

  // Returns once every rank has called it. A connection that a rank makes afterwards finds all
  // others ready to take it. Errors: kTimedOut, or what the store or the pipe says.
  virtual Result<void> arrive() = 0;

  // One rank announces, once. Each other rank calls hear() once and gets the same text. `text` has
  // at most kTextBytesMax bytes, none of them zero.
  virtual Result<void> announce(std::string_view text) = 0;
  virtual Result<std::string> hear() = 0;

  // Every rank calls it once, with its own text, and gets those of all, by rank. Same limits.
  virtual Result<std::vector<std::string>> gather(int rank, std::string_view text) = 0;

  // Bytes. An NCCL id in hex has 256; an error line, announced in its place, has a few more.
  static constexpr std::size_t kTextBytesMax = 512;
};

// Exchange::gather() where a rank may have an error in place of its text. It tells that, so that
// the others do not wait for it. Then no rank gets the texts, and the others' error names the first
// such rank.
Result<std::vector<std::string>> gather_or_fail(Exchange& exchange, int rank,
                                                const Result<std::string>& mine);

}  // namespace ddprun::worker
