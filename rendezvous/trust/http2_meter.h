// Counts what one connection sends to a host, before gRPC reads it. These are reads, bytes, and the
// frames of HTTP/2 (RFC 9113, section 4.1). A connection that has proved nothing may send what a
// node of ours sends, and little more. A proven one may send far more, but not without end. With
// TLS, only a connection's reads and bytes can be counted. Pure: bytes and `now` go in, a desync
// report comes out. Its state does not grow with what comes.
//
// Used by one thread at a time; only prove() may be called by another one meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddprun::rendezvous {

// So much at once, and then so much a second.
struct Allowance {
  double at_once;
  double per_second;
};

struct MeterLimits {
  Allowance reads;
  Allowance bytes;
  Allowance frames;          // of any kind
  Allowance streams;         // frames that open one, and those that reset one
  std::size_t header_block;  // bytes of one header block: HEADERS and its CONTINUATIONs
};

// Before the proof. A node sends some 8 frames in 4 reads, of some 600 bytes. A health probe that
// keeps its connection opens a stream for each question.
inline constexpr MeterLimits kUnprovenMeter{.reads = {128, 32},
                                            .bytes = {64 * 1024, 8 * 1024},
                                            .frames = {64, 16},
                                            .streams = {8, 1},
                                            .header_block = std::size_t{16} * 1024};
// With TLS. A chain of certificates has at most some 16 KiB.
inline constexpr MeterLimits kUnprovenTlsMeter{.reads = {128, 32},
                                               .bytes = {32 * 1024, 4 * 1024},
                                               .frames = {},
                                               .streams = {},
                                               .header_block = 0};
// After the proof. A node sends some frames a second; in a round of many nodes a burst of them.
inline constexpr MeterLimits kProvenMeter{.reads = {16'384, 4'096},
                                          .bytes = {1e18, 0},
                                          .frames = {16'384, 4'096},
                                          .streams = {64, 16},
                                          .header_block = std::size_t{16} * 1024};

class Http2Meter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Wire { kClear, kTls };

  explicit Http2Meter(Wire wire) : wire_(wire) {}

  // `bytes` came in one read. False if they are more than is allowed, or no HTTP/2. The connection
  // must be cut, and stays refused.
  bool took(std::string_view bytes, Time now);
  // A node or an operator has proved over this connection that it knows the token. Any thread.
  void prove() { is_proven_ = true; }
  bool is_proven() const { return is_proven_; }

 private:
  // The rest of an allowance. Full at first.
  class Budget {
   public:
    bool spend(double amount, const Allowance& allowed, Time now);

   private:
    bool is_begun_ = false;
    double left_ = 0;
    Time at_{};
  };

  bool parse(std::string_view bytes, Time now);
  bool begin_frame(Time now);
  const MeterLimits& limits() const;

  const Wire wire_;
  std::atomic<bool> is_proven_ = false;
  bool was_proven_ = false;
  bool is_refused_ = false;
  Budget reads_;
  Budget bytes_;
  Budget frames_;
  Budget streams_;
  std::size_t preface_read_ = 0;
  std::array<std::uint8_t, 9> head_{};  // of a frame
  std::size_t head_read_ = 0;
  std::uint32_t payload_left_ = 0;
  std::size_t block_ = 0;  // bytes of the header block that is open
  bool is_first_frame_ = true;
};

}  // namespace ddprun::rendezvous
