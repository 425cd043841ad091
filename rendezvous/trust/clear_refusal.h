// What a host with TLS answers to a peer that comes in clear: that it wants TLS. gRPC is not needed
// for that, so a flood of such peers costs little. A node's gRPC shows a status only as the answer
// to a call, so this waits for the call. Pure: bytes go in, bytes come out. Bounded.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "rendezvous/trust/http2_frame.h"

namespace ddprun::rendezvous {

// What is read of such a peer at most.
inline constexpr std::size_t kClearRefusalReads = 16 * 1024;

class ClearRefusal {
 public:
  // What to send at first.
  static std::string greeting() { return write_frame(Http2Kind::kSettings, 0, 0); }
  // `bytes` came. Returns what to send.
  std::string answer(std::string_view bytes);
  // Everything was said, or the peer speaks no HTTP/2, or it sends too much.
  bool is_done() const { return is_done_; }

 private:
  std::string refuse(std::uint32_t stream, std::string_view headers);

  std::string unread_;
  std::size_t read_ = 0;
  std::size_t preface_read_ = 0;
  bool is_done_ = false;
};

}  // namespace ddprun::rendezvous
