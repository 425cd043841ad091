// How the ranks that will form a collective find each other before they have one: they wait for all
// to be there, then one of them announces a short text (a segment's name, an NCCL id). Over the
// job's store in production, over pipes between forked processes in tests and benchmarks.
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

  // Returns once every rank has called it, so that what is made afterwards is made when all are
  // there to take it.
  virtual Result<void> arrive() = 0;

  // One rank announces, once; the others hear the same text. At most kTextBytesMax bytes.
  virtual Result<void> announce(std::string_view text) = 0;
  virtual Result<std::string> hear() = 0;

  // An NCCL id in hex is 256, a line of error a little more.
  static constexpr std::size_t kTextBytesMax = 512;
};

}  // namespace ddprun::worker
