// Names of hosts, known and unknown. No DNS server is asked. The names are of a domain that never
// exists (RFC 6761), and the wait is for the limit.
#include "base/net/name_lookup.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/net/addresses.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Answer = Result<std::vector<asio::ip::address>>;

asio::awaitable<void> keep(asio::io_context* loop, std::string host,
                           std::chrono::milliseconds limit, std::optional<Answer>* answer) {
  answer->emplace(co_await look_up(*loop, std::move(host), limit));
}

Answer answer_for(const std::string& host, std::chrono::milliseconds limit) {
  asio::io_context loop{1};
  std::optional<Answer> answer;
  spawn(loop, "look up", keep(&loop, host, limit, &answer));
  loop.run();
  return *answer;
}

TEST(NameLookup, ANumericAddressIsItsOwnAnswer) {
  EXPECT_EQ(answer_for("192.0.2.7", 0ms)->front().to_string(), "192.0.2.7");
  EXPECT_EQ(answer_for("2001:db8::7", 0ms)->front().to_string(), "2001:db8::7");
}

TEST(NameLookup, LocalhostIsLoopback) {
  EXPECT_EQ(answer_for("localhost", 0ms)->front(), loopback_address());
}

// In a UTS namespace of its own, where it may have one.
TEST(NameLookup, TheOwnNameIsAnAddressOfThisHostWhoeverKnowsIt) {
  constexpr std::string_view kName = "nobody-knows-it.invalid";
  if (::unshare(CLONE_NEWUTS) != 0) GTEST_SKIP() << "a host name of one's own needs CAP_SYS_ADMIN";
  ASSERT_EQ(::sethostname(kName.data(), kName.size()), 0);
  const auto answer = answer_for(std::string(kName), 0ms);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->front(), outside_address());
}

TEST(NameLookup, AnUnknownNameIsAskedForUntilTheLimitAndNamedOnce) {
  std::vector<std::string> said;
  log::set_writer([&said](std::string_view line) { said.emplace_back(line); });
  const auto start = std::chrono::steady_clock::now();
  const auto answer = answer_for("no-such-host.invalid", 2 * kLookUpEvery);
  log::set_writer(nullptr);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(answer.error().message().find("'no-such-host.invalid' was looked up for 1 s"),
            std::string::npos)
      << answer.error().message();
  EXPECT_GE(std::chrono::steady_clock::now() - start, 2 * kLookUpEvery);
  ASSERT_LE(said.size(), 1U);  // none where even the first question outlasts the limit
  for (const auto& line : said)
    EXPECT_NE(line.find("no-such-host.invalid"), std::string::npos) << line;
}

}  // namespace
}  // namespace ddprun
