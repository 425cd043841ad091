#include "proto/host_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

namespace ddprun {
namespace {

std::string expanded(std::string_view list) {
  const auto hosts = parse_host_list(list);
  return hosts ? fmt::format("{}", fmt::join(*hosts, " ")) : "! " + hosts.error().message();
}

TEST(HostList, EndsAtTheLargestNumber) {
  const auto hosts = parse_host_list("n[18446744073709551614-18446744073709551615]");
  ASSERT_TRUE(hosts) << hosts.error().message();
  EXPECT_EQ(*hosts, (std::vector<std::string>{"n18446744073709551614", "n18446744073709551615"}));
}

// Those that were recorded, or others that live_host_lists has just asked for.
TEST(HostList, IsReadAsScontrolReadsIt) {
  const char* const live = std::getenv("DDPRUN_HOST_LISTS");
  std::ifstream file(live != nullptr ? live : DDPRUN_PROTO_TESTS "/host_lists.txt");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    ++count;
    if (line.ends_with(" !")) {
      EXPECT_TRUE(expanded(line.substr(0, line.size() - 2)).starts_with("! ")) << line;
      continue;
    }
    const auto arrow = line.find(" => ");
    ASSERT_NE(arrow, std::string::npos) << line;
    EXPECT_EQ(expanded(line.substr(0, arrow)), line.substr(arrow + 4));
  }
  EXPECT_GE(count, 200);
}

TEST(HostList, SaysWhatIsWrong) {
  EXPECT_EQ(expanded(""), "");
  EXPECT_EQ(expanded("a[3-1]"), "! a[3-1] in the host list: `3-1` is no range");
  EXPECT_EQ(expanded("a[1-3"), "! a[1-3 in the host list: a [ without a ]");
  EXPECT_EQ(expanded("a]1"), "! a]1 in the host list: a ] without a [");
  EXPECT_EQ(expanded("a[1]b"),
            "! a[1]b in the host list: expected nothing behind the last bracket");
}

TEST(HostList, IsBounded) {
  EXPECT_EQ(parse_host_list("a[1-65536]")->size(), kMaxHosts);
  for (const std::string& list :
       {std::string("a[1-65537]"), std::string("a[0-65535],b"), std::string("a[1-300]b[1-300]"),
        std::string("a[0-18446744073709551615]"), std::string(300, 'a'),
        std::string("a[1][1][1][1][1][1][1][1][1][1]"), "a[" + std::string(300, '0') + "1-9]",
        "[" + std::string(200, '0') + "][" + std::string(100, '0') + "]"}) {
    ASSERT_TRUE(parse_host_list(list).has_error()) << list;
    EXPECT_EQ(parse_host_list(list).error().code(), ErrorCode::kLimit) << list;
  }
}

// The parser ends and stays within its bounds, whatever comes.
TEST(HostList, TakesAnyText) {
  std::mt19937 random(15);  // NOLINT(cert-msc51-cpp): the same lists each time
  constexpr std::string_view kLetters = "ab019[]-,, ";
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  std::uniform_int_distribution<int> length(0, 30);
  int good = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string text;
    for (int left = length(random); left > 0; --left) text += kLetters[letter(random)];
    const auto hosts = parse_host_list(text);
    if (!hosts) continue;
    ++good;
    EXPECT_LE(hosts->size(), kMaxHosts);
    for (const std::string& host : *hosts) EXPECT_FALSE(host.empty()) << text;
  }
  EXPECT_GT(good, 1000);
}

}  // namespace
}  // namespace ddprun
