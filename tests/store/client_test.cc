// Our client against a store. It is our own server or, if DDPRUN_TEST_STORE=host:port is set, the
// one that listens there. stock_store_test.py runs this program against PyTorch's. Keys carry the
// test's name: the store outlives a test.
#include "store/client.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/store/served_store.h"

namespace ddprun::store {
namespace {

using std::chrono::milliseconds;
using Strings = std::vector<std::string>;

class StoreClient : public testing::Test {
 protected:
  StoreClient() {
    if (const char* given =
            std::getenv("DDPRUN_TEST_STORE")) {  // NOLINT(concurrency-mt-unsafe): before any thread
      const std::string address = given;
      const auto colon = address.rfind(':');
      host_ = address.substr(0, colon);
      port_ = static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1)));
    } else {
      own_ = std::make_unique<ServedStore>();
      port_ = own_->port();
    }
    client_ = std::make_unique<Client>(connect());
  }

  Client connect() const { return Client::connect(host_, port_, kPatience).value(); }
  Client& client() { return *client_; }

  // "/<test>/<name>", as PyTorch's keys start with a slash.
  static std::string key(const std::string& name) {
    return std::string("/") + testing::UnitTest::GetInstance()->current_test_info()->name() + "/" +
           name;
  }

  static bool without_queues() {
    return std::getenv("DDPRUN_TEST_STORE_LEGACY") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  }

 private:
  std::string host_ = "127.0.0.1";
  std::uint16_t port_ = 0;
  std::unique_ptr<ServedStore> own_;
  std::unique_ptr<Client> client_;
};

TEST_F(StoreClient, SetsAndGets) {
  ASSERT_TRUE(client().set(key("a"), "value").has_value());
  EXPECT_EQ(client().get(key("a")).value(), "value");
  ASSERT_TRUE(client().set(key("a"), std::string("\0\xff\n", 3)).has_value());
  EXPECT_EQ(client().get(key("a")).value(), std::string("\0\xff\n", 3));
  ASSERT_TRUE(client().set(key("a"), "").has_value());
  EXPECT_EQ(client().get(key("a")).value(), "");
}

TEST_F(StoreClient, AddsAndCountsKeys) {
  const std::int64_t before = client().num_keys().value();
  EXPECT_EQ(client().add(key("key"), 1).value(), 1);
  EXPECT_EQ(client().add(key("key"), 2).value(), 3);
  EXPECT_EQ(client().add(key("key"), 3).value(), 6);
  for (const char* name : {"key0", "key1", "key2"})
    ASSERT_TRUE(client().set(key(name), name).has_value());
  for (int i = 1; i <= 6; ++i) ASSERT_TRUE(client().add(key("key3"), i).has_value());
  EXPECT_EQ(client().num_keys().value(), before + 5);
  EXPECT_EQ(client().get(key("key")).value(), "6");
  EXPECT_EQ(client().get(key("key3")).value(), "21");
  EXPECT_EQ(client().add(key("key"), -10).value(), -4);
}

TEST_F(StoreClient, ChecksAndRemoves) {
  ASSERT_TRUE(client().set(key("a"), "7").has_value());
  EXPECT_TRUE(client().check(Strings{key("a")}).value());
  EXPECT_FALSE(client().check(Strings{key("a"), key("missing")}).value());
  EXPECT_TRUE(client().check(Strings{}).value());
  EXPECT_TRUE(client().remove(key("a")).value());
  EXPECT_FALSE(client().remove(key("a")).value());
  EXPECT_FALSE(client().check(Strings{key("a")}).value());
}

TEST_F(StoreClient, ComparesAndSets) {
  EXPECT_EQ(client().compare_set(key("a"), "wrong", "new").value(), "wrong");
  EXPECT_FALSE(client().check(Strings{key("a")}).value());
  EXPECT_EQ(client().compare_set(key("a"), "", "first").value(), "first");
  EXPECT_EQ(client().compare_set(key("a"), "wrong", "second").value(), "first");
  EXPECT_EQ(client().compare_set(key("a"), "first", "second").value(), "second");
  EXPECT_EQ(client().get(key("a")).value(), "second");
}

TEST_F(StoreClient, AWaitRunsOutAndTheClientGoesOn) {
  const auto before = std::chrono::steady_clock::now();
  const auto waited = client().wait(Strings{key("bad"), key("worse")}, milliseconds(250));
  ASSERT_TRUE(waited.has_error());
  EXPECT_EQ(waited.error().code(), ErrorCode::kTimedOut);
  EXPECT_GE(std::chrono::steady_clock::now() - before, milliseconds(250));
  EXPECT_NE(waited.error().message().find("wait for \"" + key("bad") + "\", \"" + key("worse") +
                                          "\" at store 127.0.0.1:"),
            std::string::npos)
      << waited.error().message();
  EXPECT_NE(waited.error().message().find("not there in 250 ms"), std::string::npos);
  ASSERT_TRUE(client().add(key("good"), 1).has_value());
  EXPECT_TRUE(client().wait(key("good"), kPatience).has_value());
  EXPECT_TRUE(client().wait(Strings{}, kPatience).has_value());
}

TEST_F(StoreClient, AWaitOfNoTimeEndsAtOnce) {
  EXPECT_EQ(client().wait(key("missing"), milliseconds(0)).error().code(), ErrorCode::kTimedOut);
  EXPECT_TRUE(client().ping().has_value());
}

TEST_F(StoreClient, AGetThatRanOutDoesNotBreakTheNext) {
  client().set_limit(milliseconds(100));
  EXPECT_EQ(client().get(key("late")).error().code(), ErrorCode::kTimedOut);
  client().set_limit(kPatience);
  ASSERT_TRUE(client().set(key("late"), "v").has_value());
  EXPECT_EQ(client().get(key("late")).value(), "v");
  EXPECT_TRUE(client().remove(key("late")).value());
  client().set_limit(milliseconds(100));
  EXPECT_EQ(client().get(key("late")).error().code(), ErrorCode::kTimedOut);
}

TEST_F(StoreClient, AWaitIsEndedByAnotherClient) {
  Client setter = connect();
  Result<std::string> got = Error();
  std::thread waiter([&] { got = client().get(key("a")); });
  ASSERT_TRUE(setter.set(key("a"), "from the other").has_value());
  waiter.join();
  EXPECT_EQ(got.value(), "from the other");
}

TEST_F(StoreClient, ASignalDoesNotEndAWait) {
  struct sigaction action {};
  action.sa_handler = [](int) {};  // without SA_RESTART: system calls are interrupted
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  Client setter = connect();
  Result<void> waited = Error();
  std::thread waiter([&] { waited = client().wait(key("a"), kPatience); });
  for (int i = 0; i < 100; ++i) {
    ::pthread_kill(waiter.native_handle(), SIGUSR1);
    ASSERT_TRUE(setter.ping().has_value());
  }
  ASSERT_TRUE(setter.set(key("a"), "v").has_value());
  waiter.join();
  EXPECT_TRUE(waited.has_value()) << waited.error().message();
}

TEST_F(StoreClient, Appends) {
  ASSERT_TRUE(client().set(key("a"), "po").has_value());
  ASSERT_TRUE(client().append(key("a"), "tato").has_value());
  ASSERT_TRUE(client().append(key("b"), "po").has_value());
  ASSERT_TRUE(client().append(key("b"), "tato").has_value());
  EXPECT_EQ(client().multi_get(Strings{key("a"), key("b")}).value(), (Strings{"potato", "potato"}));
}

TEST_F(StoreClient, SetsAndGetsMany) {
  std::vector<std::pair<std::string, std::string>> pairs;
  Strings keys;
  Strings values;
  for (int i = 0; i < 1000; ++i) {
    pairs.emplace_back(key(std::to_string(i)), std::string(static_cast<std::size_t>(i), 'v'));
    keys.push_back(pairs.back().first);
    values.push_back(pairs.back().second);
  }
  ASSERT_TRUE(client().multi_set(pairs).has_value());
  EXPECT_EQ(client().multi_get(keys).value(), values);
  std::reverse(keys.begin(), keys.end());
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(client().multi_get(keys).value(), values);
  EXPECT_TRUE(client().wait(keys, kPatience).has_value());
}

TEST_F(StoreClient, ALargeValueComesBackWhole) {
  std::string value;
  while (value.size() < 7 * kMiB) value += "line " + std::to_string(value.size()) + "\n";
  ASSERT_TRUE(client().set(key("a"), value).has_value());
  EXPECT_TRUE(client().get(key("a")).value() == value);
}

TEST_F(StoreClient, ListsKeys) {
  ASSERT_TRUE(client().set(key("a"), "v").has_value());
  const Strings names = client().list_keys().value();
  EXPECT_EQ(std::count(names.begin(), names.end(), key("a")), 1);
  EXPECT_EQ(static_cast<std::int64_t>(names.size()), client().num_keys().value());
}

TEST_F(StoreClient, QueuesAreFirstInFirstOut) {
  if (without_queues()) GTEST_SKIP() << "this server has no queues";
  const std::string queue = key("q");
  EXPECT_FALSE(client().check(Strings{queue}).value());
  EXPECT_EQ(client().queue_length(queue).value(), 0);
  ASSERT_TRUE(client().queue_push(queue, "1").has_value());
  ASSERT_TRUE(client().queue_push(queue, "2").has_value());
  EXPECT_TRUE(client().check(Strings{queue}).value());
  EXPECT_EQ(client().queue_length(queue).value(), 2);
  EXPECT_TRUE(client().wait(queue, kPatience).has_value());
  EXPECT_EQ(client().queue_pop(queue).value(), "1");
  EXPECT_EQ(client().queue_pop(queue).value(), "2");
  EXPECT_EQ(client().queue_pop(queue).value(), std::nullopt);
  EXPECT_FALSE(client().check(Strings{queue}).value());
}

TEST_F(StoreClient, TwoClientsHandEachOtherQueueElements) {
  if (without_queues()) GTEST_SKIP() << "this server has no queues";
  Client other = connect();
  std::thread second([&] {
    EXPECT_TRUE(other.wait(key("a"), kPatience).has_value());
    EXPECT_EQ(other.queue_pop(key("a")).value(), "ping");
    EXPECT_TRUE(other.queue_push(key("b"), "pong").has_value());
  });
  ASSERT_TRUE(client().queue_push(key("a"), "ping").has_value());
  EXPECT_TRUE(client().wait(key("b"), kPatience).has_value());
  EXPECT_EQ(client().queue_pop(key("b")).value(), "pong");
  second.join();
  EXPECT_EQ(client().wait(key("a"), milliseconds(10)).error().code(), ErrorCode::kTimedOut);
}

TEST_F(StoreClient, FiveClientsSeeEachOther) {
  ASSERT_TRUE(client().set(key("shared"), "v").has_value());
  for (int i = 0; i < 5; ++i) {
    Client one = connect();
    const std::string own = key("own" + std::to_string(i));
    EXPECT_EQ(one.get(key("shared")).value(), "v");
    ASSERT_TRUE(one.set(own, "old").has_value());
    EXPECT_EQ(one.compare_set(own, "old", "new").value(), "new");
    ASSERT_TRUE(one.ping().has_value());
    EXPECT_EQ(client().get(own).value(), "new");
  }
}

TEST_F(StoreClient, AnErrorClosesTheClientForGood) {
  ASSERT_TRUE(client().set(key("text"), "text").has_value());
  const auto added = client().add(key("text"), 1);
  ASSERT_TRUE(added.has_error());
  EXPECT_EQ(added.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(added.error().message().find("add \"" + key("text") + "\" at store 127.0.0.1:"),
            std::string::npos)
      << added.error().message();
  const auto later = client().ping();
  ASSERT_TRUE(later.has_error());
  EXPECT_NE(later.error().message().find("closed after an earlier error"), std::string::npos);
  EXPECT_EQ(connect().get(key("text")).value(), "text");
}

}  // namespace
}  // namespace ddprun::store
