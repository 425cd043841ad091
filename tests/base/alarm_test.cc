// One timer that is set again and again.
#include "base/alarm.h"

#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <memory>

namespace ddprun {
namespace {

using namespace std::chrono_literals;

class AlarmTest : public testing::Test {
 protected:
  void run() {
    loop.restart();
    loop.run();
  }
  static Alarm::Time now() { return std::chrono::steady_clock::now(); }

  boost::asio::io_context loop{1};
  int rings = 0;
  Alarm alarm{loop, [this] { ++rings; }};
};

TEST_F(AlarmTest, RingsOnceAtItsMoment) {
  const auto when = now() + 5ms;
  alarm.set(when);
  run();
  EXPECT_EQ(rings, 1);
  EXPECT_GE(now(), when);
  alarm.set(now());  // past already
  run();
  EXPECT_EQ(rings, 2);
}

TEST_F(AlarmTest, ForgetsAnEarlierMoment) {
  alarm.set(now() + 1h);
  alarm.set(now());
  run();  // would last an hour
  EXPECT_EQ(rings, 1);
  alarm.set(now());
  alarm.set(Alarm::Time::max());
  run();
  EXPECT_EQ(rings, 1);
}

TEST_F(AlarmTest, KeepsTheEarlierOfTwo) {
  alarm.set(now());
  alarm.set_no_later_than(now() + 1h);
  run();
  EXPECT_EQ(rings, 1);
}

TEST_F(AlarmTest, MayBeSetAgainWhileItRings) {
  std::unique_ptr<Alarm> again;
  again = std::make_unique<Alarm>(loop, [&] {
    if (++rings < 3) again->set(now());
  });
  again->set(now());
  run();
  EXPECT_EQ(rings, 3);
}

TEST_F(AlarmTest, IsSilentAfterItsEndAlsoWhereItsMomentHasCome) {
  auto ended = std::make_unique<Alarm>(loop, [this] { ++rings; });
  ended->set(now());
  // The wait is over and its handler is queued behind this one.
  boost::asio::post(loop, [&] { ended.reset(); });
  run();
  EXPECT_EQ(rings, 0);
}

}  // namespace
}  // namespace ddprun
