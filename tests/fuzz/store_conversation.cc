// The store's decoder and table, talked to by several connections. The input is a script: which
// connection sends which bytes, cut where, and which one goes. Every answer is compared with
// store_model.h, and the table's counts with what it may hold.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/assert.h"
#include "store/table.h"
#include "store/wire.h"
#include "tests/fuzz/script_input.h"
#include "tests/fuzz/store_model.h"

namespace ddprun::fuzz {
namespace {

using store::ConnectionId;
using store::Op;
using store::Request;

// Small, so that a script can pass each of them.
constexpr store::StoreLimits kLimits = {.key_bytes = 64,
                                        .value_bytes = 64 * 1024,
                                        .keys_per_request = 64,
                                        .request_bytes = 128 * 1024,
                                        .reply_bytes = 100'000,
                                        .keys = 12,
                                        .stored_bytes = 256 * 1024,
                                        .waits_per_connection = 4};
constexpr std::size_t kSlots = 5;
constexpr std::size_t kStaleAllowed = 1024;  // of entries that are not swept yet, as in waits.cc

// The bytes that one client sent, and the decoder's requests from them.
struct Connection {
  ConnectionId id = 0;
  store::Decoder decoder{kLimits};
  std::string sent;
  std::size_t decoded_bytes = 0;
};

class Conversation {
 public:
  void run(ScriptInput script) {
    while (!script.empty()) {
      const std::uint8_t step = script.byte();
      const std::size_t slot = step % kSlots;
      switch (step / kSlots % 4) {
        case 0:
          send(slot, std::string(script.bytes(script.byte())), script);
          break;
        case 1:
        case 2:
          send(slot, request_bytes(slot, script), script);
          break;
        case 3:
          close(slot);
          break;
      }
      check_counts();
    }
    for (std::size_t slot = 0; slot < kSlots; ++slot) close(slot);
    DDPRUN_ASSERT(table_.waits().registrations() == 0);
  }

 private:
  Connection& open(std::size_t slot) {
    auto& connection = slots_.at(slot);
    if (!connection) {
      connection = std::make_unique<Connection>();
      connection->id = next_id_++;
    }
    return *connection;
  }

  void close(std::size_t slot) {
    auto& connection = slots_.at(slot);
    if (!connection) return;
    table_.disconnect(connection->id);
    model_.disconnect(connection->id);
    connection.reset();
  }

  bool is_open(ConnectionId id) const {
    return std::ranges::any_of(slots_, [id](const auto& one) { return one && one->id == id; });
  }

  // One whole request, with the greeting in front if it is the first.
  std::string request_bytes(std::size_t slot, ScriptInput& script) {
    std::string bytes;
    if (open(slot).sent.empty()) store::encode({Op::kValidate, store::kMagic, {}}, bytes);
    const auto op = static_cast<Op>(1 + script.choice(18));
    std::vector<std::string> texts;
    const std::size_t items = script.choice(4);
    const auto key = [&] { texts.push_back(kKeys.at(script.choice(kKeys.size()))); };
    const auto value = [&] { texts.push_back(some_value(script)); };
    switch (op) {
      case Op::kSet:
      case Op::kAppend:
      case Op::kQueuePush:
        key(), value();
        break;
      case Op::kCompareSet:
        key(), value(), value();
        break;
      case Op::kCheck:
      case Op::kWait:
      case Op::kMultiGet:
        for (std::size_t i = 0; i < items; ++i) key();
        break;
      case Op::kMultiSet:
        for (std::size_t i = 0; i < items; ++i) key(), value();
        break;
      case Op::kGet:
      case Op::kAdd:
      case Op::kDelete:
      case Op::kQueuePop:
      case Op::kQueueLength:
      case Op::kBarrier:
        key();
        break;
      case Op::kValidate:
      case Op::kNumKeys:
      case Op::kCancelWait:
      case Op::kPing:
      case Op::kListKeys:
        break;
    }
    const bool is_large = script.flag();
    const std::int64_t number = is_large ? script.number() : script.small_number();
    store::encode({op, number, std::vector<std::string_view>(texts.begin(), texts.end())}, bytes);
    return bytes;
  }

  static std::string some_value(ScriptInput& script) {
    const std::uint8_t size = script.byte();
    if (size < 128) return std::string(script.bytes(size % 24));
    if (size < 192) return std::to_string(script.small_number());
    // One that GET does not copy, and middling ones.
    return std::string(size == 255 ? store::kLargeValueBytes + 1 : std::size_t{size},
                       static_cast<char>(size));
  }

  // In one piece or in two, whose memory ends with them: who keeps a view too long is seen.
  void send(std::size_t slot, const std::string& bytes, ScriptInput& script) {
    const std::size_t cut = std::min<std::size_t>(script.byte(), bytes.size());
    const bool many_turns = script.flag();
    feed(slot, bytes.substr(0, cut), many_turns);
    feed(slot, bytes.substr(cut), many_turns);
  }

  void feed(std::size_t slot, const std::string& bytes, bool many_turns) {
    if (bytes.empty()) return;
    Connection& connection = open(slot);
    connection.sent += bytes;
    auto chunk = std::make_unique<std::vector<char>>(bytes.begin(), bytes.end());
    connection.decoder.feed({chunk->data(), chunk->size()});
    while (true) {
      const auto request = connection.decoder.next();
      if (request.has_error()) return close(slot);
      if (!request->has_value()) break;
      check_decoded(connection, **request);
      if (!apply(connection, **request)) return close(slot);
      if (!many_turns) continue;
      connection.decoder.keep();
      chunk.reset();
    }
    DDPRUN_ASSERT(connection.decoder.held_bytes() <=
                  2 * (connection.sent.size() - connection.decoded_bytes));
  }

  // The request, written again, is what was sent.
  static void check_decoded(Connection& connection, const Request& request) {
    DDPRUN_ASSERT(connection.decoder.validated());
    DDPRUN_ASSERT(request.fields.size() <= 2 * kLimits.keys_per_request);
    for (std::size_t i = 0; i < request.fields.size(); ++i)
      DDPRUN_ASSERT(request.fields[i].size() <= (i == 0 ? kLimits.key_bytes : kLimits.value_bytes));
    std::string again;
    if (connection.decoded_bytes == 0) store::encode({Op::kValidate, store::kMagic, {}}, again);
    store::encode(request, again);
    DDPRUN_ASSERT(connection.sent.compare(connection.decoded_bytes, again.size(), again) == 0);
    connection.decoded_bytes += again.size();
  }

  // False if the connection broke a rule.
  bool apply(const Connection& connection, const Request& request) {
    const Expected expected = model_.apply(connection.id, request);
    store::Replies replies;
    const auto applied = table_.apply(connection.id, request, replies);
    const bool failed = applied.has_error();
    DDPRUN_ASSERT(failed == expected.fails || (failed && expected.may_fail));
    if (failed && !expected.fails) model_.wait_failed(connection.id);
    DDPRUN_ASSERT(replies.woken == expected.woken);
    for (const ConnectionId id : replies.woken) DDPRUN_ASSERT(id != connection.id && is_open(id));
    DDPRUN_ASSERT(!failed || replies.large_value.empty());
    const std::string reply = replies.reply + std::string(replies.large_value);
    if (expected.keys && !failed) {
      check_keys(reply, *expected.keys);
    } else if (!failed || expected.fails) {
      DDPRUN_ASSERT(reply == expected.reply);
    }
    check_counts();
    return !failed;
  }

  // A count, and each key once.
  static void check_keys(std::string_view reply, std::set<std::string> keys) {
    DDPRUN_ASSERT(reply.size() >= sizeof(std::uint64_t) && store::get_u64(reply) == keys.size());
    reply.remove_prefix(sizeof(std::uint64_t));
    while (!keys.empty()) {
      DDPRUN_ASSERT(reply.size() >= sizeof(std::uint64_t));
      const std::uint64_t size = store::get_u64(reply);
      reply.remove_prefix(sizeof(std::uint64_t));
      DDPRUN_ASSERT(size <= reply.size() && keys.erase(std::string(reply.substr(0, size))) == 1);
      reply.remove_prefix(size);
    }
    DDPRUN_ASSERT(reply.empty());
  }

  void check_counts() const {
    DDPRUN_ASSERT(table_.key_count() == model_.key_count());
    DDPRUN_ASSERT(table_.stored_bytes() == model_.stored_bytes());
    DDPRUN_ASSERT(table_.stored_bytes() <= kLimits.stored_bytes);
    DDPRUN_ASSERT(table_.key_count() <= kLimits.keys);
    const store::Waits& waits = table_.waits();
    DDPRUN_ASSERT(waits.registrations() == model_.registrations());
    DDPRUN_ASSERT(waits.entries() <= 2 * waits.registrations() + kStaleAllowed);
  }

  inline static const std::array<std::string, 6> kKeys = {
      "a", "b", "c", "", std::string("k\0", 2), std::string(64, 'l')};

  store::Table table_{kLimits};
  StoreModel model_{kLimits};
  std::array<std::unique_ptr<Connection>, kSlots> slots_;
  ConnectionId next_id_ = 1;
};

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::Conversation().run(ddprun::fuzz::ScriptInput(data, size));
  return 0;
}
