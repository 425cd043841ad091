// The TCPStore protocol as bytes: the only file that knows the layout. Checked against torch 2.11.0
// and 2.15.0; docs/store.md has the table. All integers little-endian; `bytes` is a u64 length and
// that many bytes; a list is a u64 count and its items. Requests carry an opcode; answers carry
// nothing but their content. Pure: no socket, no clock, no thread; a Decoder belongs to one
// connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/result.h"
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

// Sent with VALIDATE as the first bytes of every connection.
inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// One byte of answer. CHECK: all there, or not. WAIT and BARRIER: kReady. CANCEL_WAIT: kNotReady,
// always.
enum class Status : char { kReady = 0, kNotReady = 1 };

// One request. `fields` are the keys of a list, key and value in turn (MULTI_SET), or the strings
// of the request in the order of the wire (COMPARE_SET: key, expected, desired). Views: valid as
// long as the bytes they were made from.
struct Request {
  Op op = Op::kPing;
  std::int64_t number = 0;  // VALIDATE: magic, PING: nonce, ADD: delta, BARRIER: world size
  std::span<const std::string_view> fields;
};

// Appends `request` to `out`. The fields must fit the opcode (asserted). Encodes VALIDATE too.
void encode(const Request& request, std::string& out);

// Appends one piece of an answer to `out`.
void put_status(Status status, std::string& out);
void put_nonce(std::uint32_t nonce, std::string& out);
void put_number(std::int64_t number, std::string& out);
void put_bytes(std::string_view bytes, std::string& out);

// Reads the first 4 or 8 bytes of `bytes`, which must have them (asserted).
std::uint32_t get_u32(std::string_view bytes);
std::uint64_t get_u64(std::string_view bytes);

// Turns the bytes of one connection, cut anywhere, into requests. A list keeps its place when it
// runs out of bytes, so each byte is looked at once. Checks the handshake itself: VALIDATE with the
// magic first, and never again; it is not reported as a request. Lengths and counts are checked
// against the limits as soon as they are read, before memory is taken. After an error the decoder
// is useless: close the connection.
class Decoder {
 public:
  explicit Decoder(const Limits& limits) : limits_(limits) {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  Decoder(Decoder&&) = delete;
  Decoder& operator=(Decoder&&) = delete;
  ~Decoder() = default;

  // Adds bytes that arrived. `chunk` is borrowed until next() has answered nothing or an error, or
  // keep() was called.
  void feed(std::string_view chunk);

  // The next whole request; nothing where more bytes are needed; an error where no bytes can repair
  // it. The request's views are valid until the next call of any member.
  Result<std::optional<Request>> next();

  // Ends the borrowing of feed() early: copies what is not decoded yet.
  void keep();

  // Whether VALIDATE came and was right.
  bool validated() const { return validated_; }

  // Bytes held here for requests that are not decoded yet (0 while they are only borrowed).
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

  const Limits& limits_;
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
