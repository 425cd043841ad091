// The TCPStore protocol as bytes: only this file and wire.cc know the layout. Checked against torch
// 2.11.0 and 2.15.0; docs/store.md has the table. Integers are little-endian. `bytes` is a u64
// length and that many bytes. A list is a u64 count and its items. A request begins with an opcode.
// An answer has only its content, so a client must remember what it asked. Pure: no socket, no
// clock, no thread. A Decoder belongs to one connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/limits.h"

namespace ddprun::store {

enum class Op : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kNumKeys = 7,
  kDelete = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLength = 16,
  kListKeys = 17,
  kBarrier = 18,  // since torch 2.15
};

// Sent with VALIDATE. VALIDATE is the first thing on every connection.
inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// One byte of answer. CHECK: kReady if all keys exist, else kNotReady. WAIT and BARRIER: always
// kReady. CANCEL_WAIT: always kNotReady.
enum class Status : char { kReady = 0, kNotReady = 1 };

// One request. By opcode, `fields` are the keys of a list, or key, value, key, value (MULTI_SET).
// Or they are the strings in the order of the wire (COMPARE_SET: key, expected, desired). They are
// views: they are valid as long as the bytes that they were made from.
struct Request {
  Op op = Op::kPing;
  std::int64_t number = 0;  // VALIDATE: magic, PING: nonce, ADD: delta, BARRIER: world size
  std::span<const std::string_view> fields;
};

// Appends `request` to `out`, also a VALIDATE. The fields must fit the opcode (asserted).
void encode(const Request& request, std::string& out);

// Appends one piece of an answer to `out`.
void put_status(Status status, std::string& out);
void put_nonce(std::uint32_t nonce, std::string& out);
void put_number(std::int64_t number, std::string& out);
void put_bytes(std::string_view bytes, std::string& out);

// Reads the first 4 or 8 bytes of `bytes`. `bytes` must have that many (asserted).
std::uint32_t get_u32(std::string_view bytes);
std::uint64_t get_u64(std::string_view bytes);

// Turns the bytes of one connection into requests; the bytes may be cut anywhere. It keeps its
// place in a request that is not whole yet, so it looks at each byte once. It checks the handshake
// itself: VALIDATE with the magic comes first and never again, and next() does not return it. It
// compares lengths and counts with the limits as soon as it has read them, before it takes memory.
// It is useless after an error: close the connection.
class Decoder {
 public:
  explicit Decoder(const StoreLimits& limits) : limits_(limits) {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  Decoder(Decoder&&) = delete;
  Decoder& operator=(Decoder&&) = delete;
  ~Decoder() = default;

  // Adds bytes that arrived. The decoder reads `chunk` in place. Keep the bytes until next() has
  // answered nothing or an error, or keep() was called. Only then call feed() again (asserted).
  void feed(std::string_view chunk);

  // The next whole request. Nothing if more bytes are needed. Error: no further bytes can repair
  // it. The request's views are valid until the next call of any member.
  Result<std::optional<Request>> next();

  // Copies what is not decoded yet, so that the bytes of feed() may go. Call it when you stop
  // before next() has answered nothing.
  void keep();

  // Returns whether a correct VALIDATE came.
  bool validated() const { return validated_; }

  // Bytes kept here, at most twice those of requests that are not decoded yet. Borrowed bytes do
  // not count.
  std::size_t held_bytes() const { return pending_.size(); }

 private:
  struct Slice {
    std::size_t begin;  // from the first byte of the request
    std::size_t size;
  };

  std::size_t available() const { return input_.size() - start_ - cursor_; }
  std::string_view rest() const { return input_.substr(start_ + cursor_); }
  Result<bool> parse();
  Result<void> take_opcode();
  Result<bool> take_count();
  Result<bool> take_field();
  bool take_number();
  Result<void> check_magic();
  Request finish();
  void begin_next();

  const StoreLimits& limits_;
  std::string pending_;        // bytes kept between feeds; input_ points into it unless borrowed_
  std::string_view input_;     // what is being decoded
  std::size_t start_ = 0;      // of the current request in input_
  std::size_t cursor_ = 0;     // next byte to look at, from start_; 0: the opcode is not read yet
  std::size_t wanted_ = 0;     // fields of the current request
  std::vector<Slice> fields_;  // those found so far; offsets, since pending_ may move
  std::vector<std::string_view> views_;
  std::int64_t number_ = 0;
  Op op_ = Op::kValidate;
  bool counted_ = false;    // wanted_ is known
  bool borrowed_ = false;   // input_ is the caller's chunk
  bool validated_ = false;  // the handshake is over
};

}  // namespace ddprun::store
