// Drives a Table in tests: one function per request, answers as text or number. No sockets.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "store/table.h"

namespace ddprun::store {

// The table's answers to `wait` and `check`.
inline const std::string kReady(1, '\0');
inline const std::string kNotReady(1, '\1');

class TableDriver {
 public:
  TableDriver() = default;
  explicit TableDriver(const StoreLimits& limits) : limits_(limits) {}

  // Applies a request of connection `from` and returns the bytes of the answer. `woken` then has
  // the connections that it woke. If the table refuses the request, the answer is "error" and
  // `error` says why.
  std::string ask(Op op, std::vector<std::string_view> fields, std::int64_t number = 0,
                  ConnectionId from = kAsker) {
    Replies out;
    const auto applied = table.apply(from, {op, number, fields}, out);
    woken = out.woken;
    if (applied.has_error()) {
      error = applied.error();
      return "error";
    }
    return out.reply.append(out.large_value);
  }

  // For an `op` that answers a number. -999999 if the answer is no number.
  std::int64_t number(Op op, std::vector<std::string_view> fields, std::int64_t argument = 0) {
    const std::string answer = ask(op, std::move(fields), argument);
    return answer.size() == 8 ? static_cast<std::int64_t>(get_u64(answer)) : -999'999;
  }

  // For an `op` that answers bytes: the bytes without their length. "malformed" if the length is
  // wrong.
  std::string bytes(Op op, std::vector<std::string_view> fields) {
    const std::string answer = ask(op, std::move(fields));
    return answer.size() >= 8 && get_u64(answer) == answer.size() - 8 ? answer.substr(8)
                                                                      : "malformed";
  }

  void set(std::string_view key, std::string_view value) { ask(Op::kSet, {key, value}); }
  std::string get(std::string_view key) { return bytes(Op::kGet, {key}); }
  std::int64_t add(std::string_view key, std::int64_t delta) {
    return number(Op::kAdd, {key}, delta);
  }
  std::int64_t num_keys() { return number(Op::kNumKeys, {}); }
  std::string wait(ConnectionId from, std::vector<std::string_view> keys) {
    return ask(Op::kWait, std::move(keys), 0, from);
  }

  static constexpr ConnectionId kAsker = 1000;

  const StoreLimits limits_{};
  Table table{limits_};
  std::vector<ConnectionId> woken;
  Error error;
};

}  // namespace ddprun::store
