// The source and target of a sum over TCP, piece by piece. It makes elements when they are about to
// be sent or added, and takes results when they have come. Each time they are in a cache. Used by
// one thread.
#pragma once

#include <cstddef>

namespace ddprun::worker {

class TcpFeed {
 public:
  TcpFeed() = default;
  TcpFeed(const TcpFeed&) = delete;
  TcpFeed& operator=(const TcpFeed&) = delete;
  TcpFeed(TcpFeed&&) = delete;
  TcpFeed& operator=(TcpFeed&&) = delete;
  virtual ~TcpFeed() = default;

  // The elements from `begin` to `end` of the sum are needed now. Asked once for each element.
  virtual void make(std::size_t begin, std::size_t end) = 0;
  // Their results are in place. Said once for each element.
  virtual void take(std::size_t begin, std::size_t end) = 0;
};

}  // namespace ddprun::worker
