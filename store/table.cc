#include "store/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "base/assert.h"

namespace ddprun::store {
namespace {

// A value's string may own twice its size and this much more; beyond that the rest is given back.
// Otherwise small values in place of large ones would hold memory that stored_bytes_ does not
// count.
constexpr std::size_t kIdleCapacityBytes = 4096;

// Reads a stored number as C's strtoll does with base 10, because PyTorch's servers do. That is
// blanks and one sign in front, then digits up to the first byte that is none. Nothing if there is
// no digit, or if it is out of range.
std::optional<std::int64_t> parse_number(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\n\v\f\r");
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin);
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    // from_chars() takes a minus itself, so `+-5` would pass.
    if (text.starts_with('-')) return std::nullopt;
  }
  std::int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return number;
}

// Wraps as PyTorch's servers do: 2^63-1 plus 1 is -2^63. Signed overflow would be undefined.
std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

}  // namespace

Result<void> Table::apply(ConnectionId from, const Request& request, Replies& out) {
  DDPRUN_ASSERT(out.large_value.empty());
  const std::size_t woken_before = out.woken.size();
  const std::size_t reply_before = out.reply.size();
  auto applied = dispatch(from, request, out);
  // Half an answer is worse than none: what is in `reply` is sent before the connection closes.
  if (applied.has_error()) out.reply.resize(reply_before);
  if (out.woken.size() == woken_before) return applied;
  // The requester may have ended its own wait. That byte must come before its next answer, so it
  // goes into `reply`. Bytes for woken connections have no place among the answers.
  const auto first = out.woken.begin() + static_cast<std::ptrdiff_t>(woken_before);
  const auto others = std::remove(first, out.woken.end(), from);
  for (auto own = others; own != out.woken.end(); ++own) put_status(Status::kReady, out.reply);
  out.woken.erase(others, out.woken.end());
  return applied;
}

Result<void> Table::dispatch(ConnectionId from, const Request& request, Replies& out) {
  const Keys fields = request.fields;
  switch (request.op) {
    case Op::kSet:
      return set(fields[0], fields[1], out);
    case Op::kCompareSet:
      return compare_set(fields, out);
    case Op::kGet:
      return get(fields[0], out);
    case Op::kAdd:
      return add(fields[0], request.number, out);
    case Op::kCheck:
      check(fields, out);
      return {};
    case Op::kWait:
      return wait(from, fields, out);
    case Op::kNumKeys:
      put_number(static_cast<std::int64_t>(values_.size()), out.reply);
      return {};
    case Op::kDelete:
      remove(fields[0], out);
      return {};
    case Op::kAppend:
      return append(fields[0], fields[1], out);
    case Op::kMultiGet:
      return multi_get(fields, out);
    case Op::kMultiSet:
      return multi_set(fields, out);
    case Op::kCancelWait:
      waits_.cancel(from);
      put_status(Status::kNotReady, out.reply);
      return {};
    case Op::kPing:
      put_nonce(static_cast<std::uint32_t>(request.number), out.reply);
      return {};
    case Op::kQueuePush:
      return queue_push(fields[0], fields[1], out);
    case Op::kQueuePop:
      queue_pop(fields[0], out);
      return {};
    case Op::kQueueLength:
      put_number(queue_length(fields[0]), out.reply);
      return {};
    case Op::kListKeys:
      return list_keys(out);
    case Op::kBarrier:
      return barrier(from, request, out);
    case Op::kValidate:
      break;  // the decoder keeps it to itself
  }
  DDPRUN_UNREACHABLE("a decoded request without an opcode of the table");
}

Result<void> Table::set(std::string_view key, std::string_view value, Replies& out) {
  auto stored = store(key, value);
  if (stored.has_value()) waits_.wake_all(key, out.woken);
  return stored;
}

// Stops at the first pair that does not fit; the pairs before it stay.
Result<void> Table::multi_set(Keys fields, Replies& out) {
  for (std::size_t i = 0; i < fields.size(); i += 2) {
    if (auto done = set(fields[i], fields[i + 1], out); done.has_error()) return done;
  }
  return {};
}

// On a missing key the same as SET.
Result<void> Table::append(std::string_view key, std::string_view tail, Replies& out) {
  const auto found = values_.find(key);
  if (found == values_.end()) return set(key, tail, out);
  if (auto room = reserve(0, tail.size()); room.has_error()) return room;
  found->second.append(tail);
  stored_bytes_ += tail.size();
  waits_.wake_all(key, out.woken);
  return {};
}

Result<void> Table::add(std::string_view key, std::int64_t delta, Replies& out) {
  const auto sum = increment(key, delta);
  if (sum.has_error()) return sum.error();
  put_number(*sum, out.reply);
  waits_.wake_all(key, out.woken);
  return {};
}

// `fields`: key, expected, desired. Answers the value that the key holds afterwards. If the key is
// missing and nothing is stored, answers `expected`, as PyTorch does. Its libuv server then wakes
// waiters too; its older server never wakes. We wake exactly if the key exists afterwards.
Result<void> Table::compare_set(Keys fields, Replies& out) {
  const auto found = values_.find(fields[0]);
  const bool missing = found == values_.end();
  if (missing && !fields[1].empty()) {
    put_bytes(fields[1], out.reply);
    return {};
  }
  if (missing || found->second == fields[1]) {
    if (auto stored = store(fields[0], fields[2]); stored.has_error()) return stored;
    put_bytes(fields[2], out.reply);
  } else {
    if (auto fits = check_reply(found->second.size()); fits.has_error()) return fits;
    put_bytes(found->second, out.reply);
  }
  waits_.wake_all(fields[0], out.woken);
  return {};
}

// A missing key answers an empty value, as with PyTorch's libuv server. PyTorch's client sends WAIT
// before GET.
Result<void> Table::get(std::string_view key, Replies& out) const {
  const auto found = values_.find(key);
  const std::string_view value = found == values_.end() ? std::string_view{} : found->second;
  if (auto fits = check_reply(value.size()); fits.has_error()) return fits;
  if (value.size() < kLargeValueBytes) {
    put_bytes(value, out.reply);
  } else {
    put_number(static_cast<std::int64_t>(value.size()), out.reply);
    out.large_value = value;
  }
  return {};
}

// Checks the size as the answer grows. After an error apply() cuts off what is there by then.
Result<void> Table::multi_get(Keys keys, Replies& out) const {
  std::size_t bytes = 0;
  for (const std::string_view key : keys) {
    const auto found = values_.find(key);
    const std::string_view value = found == values_.end() ? std::string_view{} : found->second;
    bytes += sizeof(std::uint64_t) + value.size();
    if (auto fits = check_reply(bytes); fits.has_error()) return fits;
    put_bytes(value, out.reply);
  }
  return {};
}

Result<void> Table::list_keys(Replies& out) const {
  put_number(static_cast<std::int64_t>(values_.size()), out.reply);
  std::size_t bytes = 0;
  for (const auto& [key, value] : values_) {
    bytes += sizeof(std::uint64_t) + key.size();
    if (auto fits = check_reply(bytes); fits.has_error()) return fits;
    put_bytes(key, out.reply);
  }
  return {};
}

// Wakes nobody: nobody can wait for a key to go away.
void Table::remove(std::string_view key, Replies& out) {
  const auto found = values_.find(key);
  put_number(found == values_.end() ? 0 : 1, out.reply);
  if (found == values_.end()) return;
  stored_bytes_ -= found->first.size() + found->second.size() + kEntryOverheadBytes;
  values_.erase(found);
}

void Table::check(Keys keys, Replies& out) const {
  const bool all =
      std::all_of(keys.begin(), keys.end(), [this](std::string_view key) { return has(key); });
  put_status(all ? Status::kReady : Status::kNotReady, out.reply);
}

// Only keys that are missing now are waited for. A key that is deleted later still counts as there,
// as with PyTorch. A queue with values counts as there, too. PyTorch's server takes it for missing
// if another key of the list is missing, and then never answers.
Result<void> Table::wait(ConnectionId from, Keys keys, Replies& out) {
  missing_.clear();
  for (const std::string_view key : keys) {
    if (!has(key)) missing_.push_back(key);
  }
  if (!missing_.empty()) return waits_.park(from, missing_);
  put_status(Status::kReady, out.reply);
  return {};
}

// Counts arrivals at the key and never starts again: a late or repeated arrival passes at once.
// Only the arrival that completes the count wakes the key's waiters, also those of a plain WAIT.
Result<void> Table::barrier(ConnectionId from, const Request& request, Replies& out) {
  const Keys key = request.fields;
  const auto arrived = increment(key[0], 1);
  if (arrived.has_error()) return arrived.error();
  if (*arrived < request.number) return waits_.park(from, key);
  put_status(Status::kReady, out.reply);
  waits_.wake_all(key[0], out.woken);
  return {};
}

// Wakes one waiter only: one value is enough for one of them.
Result<void> Table::queue_push(std::string_view name, std::string_view value, Replies& out) {
  auto found = queues_.find(name);
  const bool added = found == queues_.end();
  const std::size_t bytes =
      value.size() + kEntryOverheadBytes + (added ? name.size() + kEntryOverheadBytes : 0);
  if (auto room = reserve(added ? 1 : 0, bytes); room.has_error()) return room;
  if (added) found = queues_.emplace(name, std::list<std::string>{}).first;
  found->second.emplace_back(value);
  stored_bytes_ += bytes;
  waits_.wake_oldest(name, out.woken);
  return {};
}

// Answers the length before the pop; the value follows only if there is one.
void Table::queue_pop(std::string_view name, Replies& out) {
  put_number(queue_length(name), out.reply);
  const auto found = queues_.find(name);
  if (found == queues_.end()) return;
  const std::string& value = found->second.front();
  put_bytes(value, out.reply);
  stored_bytes_ -= value.size() + kEntryOverheadBytes;
  found->second.pop_front();
  if (!found->second.empty()) return;
  stored_bytes_ -= name.size() + kEntryOverheadBytes;
  queues_.erase(found);
}

std::int64_t Table::queue_length(std::string_view name) const {
  const auto found = queues_.find(name);
  return found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

// Stores the sum as decimal text, which GET then answers. Wakes nobody; the callers differ in that.
Result<std::int64_t> Table::increment(std::string_view key, std::int64_t delta) {
  const auto found = values_.find(key);
  std::int64_t sum = delta;
  if (found != values_.end()) {
    const auto held = parse_number(found->second);
    if (!held)
      return Error(ErrorCode::kProtocol, fmt::format("the value of \"{}\" is not a number", key));
    sum = wrapping_add(*held, delta);
  }
  const fmt::format_int text(sum);
  if (auto stored = store(key, {text.data(), text.size()}); stored.has_error())
    return stored.error();
  return sum;
}

// Wakes nobody. Asks for room first, so that after an error the old value is still there.
Result<void> Table::store(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    const std::size_t bytes = key.size() + value.size() + kEntryOverheadBytes;
    if (auto room = reserve(1, bytes); room.has_error()) return room;
    values_.emplace(key, value);
    stored_bytes_ += bytes;
    return {};
  }
  const std::size_t held = found->second.size();
  if (value.size() > held) {
    if (auto room = reserve(0, value.size() - held); room.has_error()) return room;
  }
  found->second.assign(value);
  if (found->second.capacity() > kIdleCapacityBytes + 2 * value.size())
    found->second.shrink_to_fit();
  stored_bytes_ += value.size();
  stored_bytes_ -= held;
  return {};
}

// Whether `new_keys` more keys and `new_bytes` more bytes may be held. Changes nothing.
Result<void> Table::reserve(std::size_t new_keys, std::size_t new_bytes) const {
  if (new_keys > 0 && values_.size() + queues_.size() + new_keys > limits_.keys)
    return Error(ErrorCode::kLimit, fmt::format("keys: at most {}", limits_.keys));
  if (stored_bytes_ + new_bytes > limits_.stored_bytes)
    return Error(ErrorCode::kLimit, fmt::format("stored bytes: at most {}", limits_.stored_bytes));
  return {};
}

Result<void> Table::check_reply(std::size_t bytes) const {
  if (bytes > limits_.reply_bytes)
    return Error(ErrorCode::kLimit,
                 fmt::format("bytes of one answer: at most {}", limits_.reply_bytes));
  return {};
}

}  // namespace ddprun::store
