// The answer of a host with TLS to a peer that comes in clear: that the host wants TLS. gRPC is not
// needed for that, so a flood of such peers costs little. A node's gRPC shows a status only as the
// answer to a call, so this waits for the call. Pure: bytes go in, bytes come out. Bounded.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "rendezvous/trust/http2_frame.h"

namespace ddprun::rendezvous {

// The most bytes that are read of such a peer.
inline constexpr std::size_t kClearRefusalReads = std::size_t{16} * 1024;

class ClearRefusal {
 public:
  // Returns the first bytes to send.
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
