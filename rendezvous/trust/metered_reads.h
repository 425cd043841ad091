// Lets an Http2Meter see what gRPC reads from a connection, before gRPC does. gRPC has no place for
// that: it is handed a descriptor, and reads it with recvmsg(2). So the linker sends its calls of
// recvmsg() and close() through this file (--wrap, in rendezvous/trust/CMakeLists.txt). Nothing is
// copied, and no thread or descriptor is added. If a connection sends too much, gRPC is told that
// the peer has reset it, and closes it.
#pragma once

#include <memory>

#include "rendezvous/trust/http2_meter.h"

namespace ddprun::rendezvous {

class MeteredConnection {
 public:
  explicit MeteredConnection(Http2Meter::Wire wire) : meter_(wire) {}

  // Any thread.
  void prove() { meter_.prove(); }
  bool is_proven() const { return meter_.is_proven(); }
  bool is_closed() const { return is_closed_; }
  // It sent more than it may.
  bool was_cut() const { return was_cut_; }

  // For the functions that the linker puts in the place of recvmsg() and close().
  bool took(std::string_view bytes, Http2Meter::Time now);
  void cut() { was_cut_ = true; }
  void closed() { is_closed_ = true; }

 private:
  Http2Meter meter_;
  std::atomic<bool> is_closed_ = false;
  std::atomic<bool> was_cut_ = false;
};

// Meters what is read from `fd` until it is closed. Call it before gRPC gets `fd`. Null if its
// number is too large to be metered.
std::shared_ptr<MeteredConnection> meter_reads(int fd, Http2Meter::Wire wire);

}  // namespace ddprun::rendezvous
