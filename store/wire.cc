#include "store/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/assert.h"

namespace ddprun::store {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian, and copied as such");

// Memory above this is given back after a request. A connection is idle most of its life, and
// thousands of them must not keep what one large request needed.
constexpr std::size_t kKeptCapacityBytes = 4096;
constexpr std::size_t kKeptFields = 16;

// The arguments of an opcode: `fields` strings, or a list of items with `stride` strings each. Then
// a number of `number_bytes`.
struct Shape {
  std::uint8_t fields;
  // Field i is a key if i % stride == 0, else a value. Keys and values have different limits.
  std::uint8_t stride;
  bool list;
  std::uint8_t number_bytes;
};

constexpr std::uint8_t kOpCount = 19;

// In the order of Op.
constexpr std::array<Shape, kOpCount> kShapes = {{
    {0, 1, false, 4},  // VALIDATE
    {2, 2, false, 0},  // SET
    {3, 3, false, 0},  // COMPARE_SET
    {1, 1, false, 0},  // GET
    {1, 1, false, 8},  // ADD
    {0, 1, true, 0},   // CHECK
    {0, 1, true, 0},   // WAIT
    {0, 1, false, 0},  // GETNUMKEYS
    {1, 1, false, 0},  // DELETE_KEY
    {2, 2, false, 0},  // APPEND
    {0, 1, true, 0},   // MULTI_GET
    {0, 2, true, 0},   // MULTI_SET
    {0, 1, false, 0},  // CANCEL_WAIT
    {0, 1, false, 4},  // PING
    {2, 2, false, 0},  // QUEUE_PUSH
    {1, 1, false, 0},  // QUEUE_POP
    {1, 1, false, 0},  // QUEUE_LEN
    {0, 1, false, 0},  // LIST_KEYS
    {1, 1, false, 8},  // BARRIER
}};

const Shape& shape_of(Op op) { return kShapes.at(static_cast<std::uint8_t>(op)); }

// memcpy and no cast: a number lies at any byte of the wire, and an unaligned read is undefined.
template <typename T>
void put(T number, std::string& out) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &number, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

template <typename T>
T get(std::string_view bytes) {
  DDPRUN_ASSERT(bytes.size() >= sizeof(T));
  T number;
  std::memcpy(&number, bytes.data(), sizeof(T));
  return number;
}

Error over_limit(std::string_view what, std::uint64_t value, std::size_t limit) {
  return {ErrorCode::kLimit, fmt::format("{} {}: at most {}", what, value, limit)};
}

}  // namespace

void encode(const Request& request, std::string& out) {
  const Shape& shape = shape_of(request.op);
  DDPRUN_ASSERT(shape.list ? request.fields.size() % shape.stride == 0
                           : request.fields.size() == shape.fields);
  out.push_back(static_cast<char>(request.op));
  if (shape.list) put(std::uint64_t{request.fields.size() / shape.stride}, out);
  for (const std::string_view field : request.fields) put_bytes(field, out);
  if (shape.number_bytes == 4) put(static_cast<std::uint32_t>(request.number), out);
  if (shape.number_bytes == 8) put(request.number, out);
}

void put_status(Status status, std::string& out) { out.push_back(static_cast<char>(status)); }
void put_nonce(std::uint32_t nonce, std::string& out) { put(nonce, out); }
void put_number(std::int64_t number, std::string& out) { put(number, out); }

void put_bytes(std::string_view bytes, std::string& out) {
  put(std::uint64_t{bytes.size()}, out);
  out.append(bytes);
}

std::uint32_t get_u32(std::string_view bytes) { return get<std::uint32_t>(bytes); }
std::uint64_t get_u64(std::string_view bytes) { return get<std::uint64_t>(bytes); }

void Decoder::feed(std::string_view chunk) {
  DDPRUN_ASSERT(!borrowed_);
  // The ordinary case: nothing is left over, so the chunk is decoded where it lies.
  if (pending_.empty()) {
    input_ = chunk;
    borrowed_ = true;
    return;
  }
  // Drops what is decoded. Else the buffer of a busy connection would grow for ever.
  pending_.erase(0, start_);
  start_ = 0;
  pending_.append(chunk);
  input_ = pending_;
}

Result<std::optional<Request>> Decoder::next() {
  while (start_ < input_.size()) {
    const auto complete = parse();
    if (complete.has_error()) return complete.error();
    if (!*complete) break;
    if (op_ != Op::kValidate) return finish();
    if (auto checked = check_magic(); checked.has_error()) return checked.error();
    begin_next();
  }
  keep();
  return std::optional<Request>{};
}

void Decoder::keep() {
  if (borrowed_) {
    // `pending_` is empty here, but may still own memory reserved for a large field.
    pending_.append(input_.substr(start_));
    start_ = 0;
  } else if (start_ >= pending_.size() - start_) {
    // It is not done sooner. So each byte is moved once or twice, in however many turns they are
    // decoded.
    pending_.erase(0, start_);
    start_ = 0;
    if (pending_.empty() && pending_.capacity() > kKeptCapacityBytes) pending_.shrink_to_fit();
  }
  borrowed_ = false;
  input_ = pending_;
  if (views_.capacity() > kKeptFields) views_ = {};
}

// Goes on where the bytes ran out last time. True if the request is complete, and cursor_ is behind
// it.
Result<bool> Decoder::parse() {
  if (cursor_ == 0) {
    if (auto taken = take_opcode(); taken.has_error()) return taken.error();
  }
  if (!counted_) {
    auto counted = take_count();
    if (counted.has_error() || !*counted) return counted;
  }
  while (fields_.size() < wanted_) {
    auto taken = take_field();
    if (taken.has_error() || !*taken) return taken;
  }
  return take_number();
}

Result<void> Decoder::take_opcode() {
  const auto opcode = static_cast<std::uint8_t>(input_[start_]);
  // The first byte alone tells: a browser or a TLS client is sent away before anything is stored.
  if (!validated_ && opcode != static_cast<std::uint8_t>(Op::kValidate))
    return Error(ErrorCode::kProtocol,
                 fmt::format("first byte {:#04x} is not a TCPStore client's", opcode));
  if (opcode >= kOpCount)
    return Error(ErrorCode::kProtocol, fmt::format("unknown opcode {}", opcode));
  op_ = static_cast<Op>(opcode);
  if (validated_ && op_ == Op::kValidate) return Error(ErrorCode::kProtocol, "second VALIDATE");
  cursor_ = 1;
  const Shape& shape = shape_of(op_);
  counted_ = !shape.list;
  wanted_ = shape.fields;
  return {};
}

// False if more bytes are needed. Counts and lengths come from the peer, so each is compared with
// its limit before it is used.
Result<bool> Decoder::take_count() {
  if (available() < sizeof(std::uint64_t)) return false;
  const std::uint64_t count = get_u64(rest());
  if (count > limits_.keys_per_request)
    return over_limit("keys in one request:", count, limits_.keys_per_request);
  cursor_ += sizeof(std::uint64_t);
  wanted_ = count * shape_of(op_).stride;
  counted_ = true;
  return true;
}

Result<bool> Decoder::take_field() {
  if (available() < sizeof(std::uint64_t)) return false;
  const std::uint64_t size = get_u64(rest());
  const bool key = fields_.size() % shape_of(op_).stride == 0;
  const std::size_t limit = key ? limits_.key_bytes : limits_.value_bytes;
  if (size > limit) return over_limit(key ? "key bytes:" : "value bytes:", size, limit);
  // `size` is within its own limit here, so the sum below cannot overflow.
  const std::size_t begin = cursor_ + sizeof(std::uint64_t);
  if (begin + size > limits_.request_bytes)
    return over_limit("request bytes:", begin + size, limits_.request_bytes);
  if (available() - sizeof(std::uint64_t) < size) {
    // The field will come in many chunks: make room once and not for each chunk. Untouched pages
    // cost nothing until the bytes really arrive.
    if (!borrowed_) {
      pending_.reserve(start_ + begin + size);
      input_ = pending_;
    }
    return false;
  }
  fields_.push_back({begin, size});
  cursor_ = begin + size;
  return true;
}

bool Decoder::take_number() {
  const std::size_t size = shape_of(op_).number_bytes;
  if (available() < size) return false;
  if (size == 4) number_ = get_u32(rest());
  if (size == 8) number_ = get<std::int64_t>(rest());
  cursor_ += size;
  return true;
}

Result<void> Decoder::check_magic() {
  if (number_ != std::int64_t{kMagic})
    return Error(ErrorCode::kProtocol, fmt::format("wrong magic {:#x} in VALIDATE", number_));
  validated_ = true;
  return {};
}

// The views are made only now: while bytes still come, `pending_` may move.
Request Decoder::finish() {
  const std::string_view request = input_.substr(start_, cursor_);
  views_.clear();
  for (const Slice& field : fields_) views_.push_back(request.substr(field.begin, field.size));
  const Request done{op_, number_, views_};
  begin_next();
  return done;
}

void Decoder::begin_next() {
  start_ += cursor_;
  cursor_ = 0;
  number_ = 0;
  fields_.clear();
  if (fields_.capacity() > kKeptFields) fields_.shrink_to_fit();
}

}  // namespace ddprun::store
