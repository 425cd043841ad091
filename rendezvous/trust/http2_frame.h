// The little of HTTP/2 that is read and written without gRPC (RFC 9113, sections 3.4, 4.1 and 6).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::rendezvous {

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum class Http2Kind : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr std::uint8_t kAck = 0x1;  // of SETTINGS and PING
inline constexpr std::uint8_t kEndStream = 0x1;
inline constexpr std::uint8_t kEndHeaders = 0x4;

struct Http2Frame {
  std::uint32_t length = 0;  // of the payload
  Http2Kind kind{};
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
};

using Http2Head = std::array<std::uint8_t, 9>;

constexpr Http2Frame read_frame_head(const Http2Head& head) {
  const auto number = [&](std::size_t from, std::size_t to) {
    std::uint32_t value = 0;
    for (std::size_t i = from; i < to; ++i) value = value << 8U | head[i];
    return value;
  };
  return {number(0, 3), static_cast<Http2Kind>(head[3]), head[4], number(5, 9) & 0x7fffffffU};
}

inline std::string write_frame(Http2Kind kind, std::uint8_t flags, std::uint32_t stream,
                               std::string_view payload = {}) {
  std::string frame;
  const auto put = [&](std::uint32_t value, int bytes) {
    while (bytes-- > 0) frame += static_cast<char>(value >> (8 * bytes));
  };
  put(static_cast<std::uint32_t>(payload.size()), 3);
  put(static_cast<std::uint8_t>(kind), 1);
  put(flags, 1);
  put(stream, 4);
  return frame.append(payload);
}

}  // namespace ddprun::rendezvous
