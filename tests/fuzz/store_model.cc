#include "tests/fuzz/store_model.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace ddprun::fuzz {

using store::ConnectionId;
using store::kEntryOverheadBytes;
using store::Op;
using store::put_bytes;
using store::put_number;
using store::put_status;
using store::Request;
using store::Status;

Expected StoreModel::apply(ConnectionId from, const Request& request) {
  Expected out;
  dispatch(from, request, out);
  if (out.fails) out.reply.clear();
  // A client that ends a wait of its own is told in its own answer.
  const auto own = std::count(out.woken.begin(), out.woken.end(), from);
  for (auto n = own; n > 0; --n) put_status(Status::kReady, out.reply);
  std::erase(out.woken, from);
  return out;
}

void StoreModel::dispatch(ConnectionId from, const Request& request, Expected& out) {
  const Fields fields = request.fields;
  const std::string key(fields.empty() ? std::string_view() : fields[0]);
  switch (request.op) {
    case Op::kSet:
      return set(key, std::string(fields[1]), out);
    case Op::kMultiSet:
      for (std::size_t i = 0; i < fields.size() && !out.fails; i += 2)
        set(std::string(fields[i]), std::string(fields[i + 1]), out);
      return;
    case Op::kAppend:
      return append(key, std::string(fields[1]), out);
    case Op::kCompareSet:
      return compare_set(fields, out);
    case Op::kGet:
      put_bytes(value_of(key), out.reply);
      out.fails = value_of(key).size() > limits_.reply_bytes;
      return;
    case Op::kMultiGet:
      for (const std::string_view one : fields) put_bytes(value_of(one), out.reply);
      out.fails = out.reply.size() > limits_.reply_bytes;
      return;
    case Op::kAdd:
      if (const auto sum = increment(key, request.number)) {
        put_number(*sum, out.reply);
        wake(key, false, out);
      } else {
        out.fails = true;
      }
      return;
    case Op::kCheck: {
      const bool all = std::ranges::all_of(
          fields, [this](std::string_view one) { return has(std::string(one)); });
      return put_status(all ? Status::kReady : Status::kNotReady, out.reply);
    }
    case Op::kWait:
      return wait(from, fields, out);
    case Op::kBarrier:
      return barrier(from, request, out);
    case Op::kCancelWait:
      disconnect(from);
      return put_status(Status::kNotReady, out.reply);
    case Op::kNumKeys:
      return put_number(static_cast<std::int64_t>(values_.size()), out.reply);
    case Op::kListKeys:
      return list_keys(out);
    case Op::kDelete:
      return put_number(static_cast<std::int64_t>(values_.erase(key)), out.reply);
    case Op::kPing:
      return store::put_nonce(static_cast<std::uint32_t>(request.number), out.reply);
    case Op::kQueuePush:
    case Op::kQueuePop:
    case Op::kQueueLength:
      return dispatch_queue(request, out);
    case Op::kValidate:
      out.fails = true;  // the decoder never lets one through
  }
}

void StoreModel::dispatch_queue(const Request& request, Expected& out) {
  const std::string name(request.fields[0]);
  if (request.op == Op::kQueuePush) return push(name, std::string(request.fields[1]), out);
  if (request.op == Op::kQueuePop) return pop(name, out);
  const auto length = queues_.contains(name) ? queues_.at(name).size() : 0;
  put_number(static_cast<std::int64_t>(length), out.reply);
}

void StoreModel::disconnect(ConnectionId connection) {
  std::erase_if(waits_, [&](const Wait& wait) { return wait.connection == connection; });
}

void StoreModel::wait_failed(ConnectionId from) {
  const auto last = std::find_if(waits_.rbegin(), waits_.rend(),
                                 [&](const Wait& wait) { return wait.connection == from; });
  if (last != waits_.rend()) waits_.erase(std::next(last).base());
}

std::size_t StoreModel::stored_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [key, value] : values_) bytes += key.size() + value.size() + kEntryOverheadBytes;
  for (const auto& [name, queue] : queues_) {
    bytes += name.size() + kEntryOverheadBytes;
    for (const std::string& value : queue) bytes += value.size() + kEntryOverheadBytes;
  }
  return bytes;
}

std::size_t StoreModel::registrations() const {
  std::size_t count = 0;
  for (const Wait& wait : waits_) count += wait.missing.size();
  return count;
}

bool StoreModel::fits(std::size_t new_keys, std::size_t new_bytes) const {
  if (new_keys > 0 && values_.size() + queues_.size() + new_keys > limits_.keys) return false;
  return stored_bytes() + new_bytes <= limits_.stored_bytes;
}

bool StoreModel::store(const std::string& key, const std::string& value) {
  const auto found = values_.find(key);
  const std::size_t held = found == values_.end() ? 0 : found->second.size();
  const bool is_new = found == values_.end();
  const std::size_t more = is_new ? key.size() + value.size() + kEntryOverheadBytes
                                  : std::max(value.size(), held) - held;
  if (more > 0 && !fits(is_new ? 1 : 0, more)) return false;
  values_[key] = value;
  return true;
}

void StoreModel::set(const std::string& key, const std::string& value, Expected& out) {
  out.fails = !store(key, value);
  if (!out.fails) wake(key, false, out);
}

void StoreModel::append(const std::string& key, const std::string& tail, Expected& out) {
  if (!values_.contains(key)) return set(key, tail, out);
  out.fails = !fits(0, tail.size());
  if (out.fails) return;
  values_[key] += tail;
  wake(key, false, out);
}

// A value is a number as C's strtoll() has it.
std::optional<std::int64_t> StoreModel::increment(const std::string& key, std::int64_t delta) {
  std::int64_t held = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    char* end = nullptr;
    errno = 0;
    held = std::strtoll(found->second.c_str(), &end, 10);
    if (errno != 0 || end == found->second.c_str()) return std::nullopt;
  }
  const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(held) +
                                             static_cast<std::uint64_t>(delta));
  if (!store(key, std::to_string(sum))) return std::nullopt;
  return sum;
}

void StoreModel::compare_set(Fields fields, Expected& out) {
  const std::string key(fields[0]);
  const bool missing = !values_.contains(key);
  if (missing && !fields[1].empty()) return put_bytes(fields[1], out.reply);
  if (missing || values_.at(key) == fields[1]) {
    out.fails = !store(key, std::string(fields[2]));
    if (out.fails) return;
  }
  out.fails = values_.at(key).size() > limits_.reply_bytes;
  if (out.fails) return;
  put_bytes(values_.at(key), out.reply);
  wake(key, false, out);
}

std::string StoreModel::value_of(std::string_view key) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() ? std::string() : found->second;
}

void StoreModel::list_keys(Expected& out) const {
  std::size_t bytes = 0;
  out.keys.emplace();
  for (const auto& [key, value] : values_) {
    out.keys->insert(key);
    bytes += sizeof(std::uint64_t) + key.size();
  }
  out.fails = bytes > limits_.reply_bytes;
}

void StoreModel::wait(ConnectionId from, Fields keys, Expected& out) {
  std::set<std::string> missing;
  std::size_t named_bytes = 0;
  for (const std::string_view key : keys) {
    if (has(std::string(key))) continue;
    missing.emplace(key);
    named_bytes += key.size() + kEntryOverheadBytes;
  }
  if (missing.empty()) return put_status(Status::kReady, out.reply);
  park(from, std::move(missing), named_bytes, out);
}

void StoreModel::barrier(ConnectionId from, const Request& request, Expected& out) {
  const std::string key(request.fields[0]);
  const auto arrived = increment(key, 1);
  out.fails = !arrived;
  if (out.fails) return;
  if (*arrived < request.number) return park(from, {key}, key.size() + kEntryOverheadBytes, out);
  put_status(Status::kReady, out.reply);
  wake(key, false, out);
}

void StoreModel::park(ConnectionId from, std::set<std::string> missing, std::size_t named_bytes,
                      Expected& out) {
  const auto mine = std::ranges::count(waits_, from, &Wait::connection);
  out.fails = static_cast<std::size_t>(mine) >= limits_.waits_per_connection;
  if (out.fails) return;
  names_ever_waited_for_ += named_bytes;
  out.may_fail = names_ever_waited_for_ > limits_.stored_bytes;
  waits_.push_back({from, std::move(missing)});
}

void StoreModel::wake(const std::string& key, bool only_oldest, Expected& out) {
  for (auto next = waits_.begin(); next != waits_.end();) {
    const auto wait = next++;
    if (wait->missing.erase(key) == 0) continue;
    if (wait->missing.empty()) {
      out.woken.push_back(wait->connection);
      waits_.erase(wait);
    }
    if (only_oldest) return;
  }
}

void StoreModel::push(const std::string& name, const std::string& value, Expected& out) {
  const bool is_new = !queues_.contains(name);
  const std::size_t bytes =
      value.size() + kEntryOverheadBytes + (is_new ? name.size() + kEntryOverheadBytes : 0);
  out.fails = !fits(is_new ? 1 : 0, bytes);
  if (out.fails) return;
  queues_[name].push_back(value);
  wake(name, true, out);
}

void StoreModel::pop(const std::string& name, Expected& out) {
  const auto found = queues_.find(name);
  put_number(found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size()),
             out.reply);
  if (found == queues_.end()) return;
  put_bytes(found->second.front(), out.reply);
  found->second.pop_front();
  if (found->second.empty()) queues_.erase(found);
}

}  // namespace ddprun::fuzz
