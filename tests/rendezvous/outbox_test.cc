#include "rendezvous/outbox.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::rendezvous {
namespace {

using Box = Outbox<std::string>;

std::string text(const Box::Step& step) {
  return (step.write != nullptr ? *step.write : "-") + (step.end ? " end" : "");
}

TEST(Outbox, WritesOneAtATimeInOrder) {
  Box box;
  EXPECT_EQ(text(box.send("a")), "a");
  EXPECT_EQ(text(box.send("b")), "-");
  EXPECT_EQ(text(box.send("c")), "-");
  EXPECT_EQ(text(box.written(true)), "b");
  EXPECT_EQ(text(box.written(true)), "c");
  EXPECT_FALSE(box.idle());
  EXPECT_EQ(text(box.written(true)), "-");
  EXPECT_TRUE(box.idle());
  EXPECT_EQ(text(box.send("d")), "d");
}

TEST(Outbox, EndsOnceAfterWhatWasQueued) {
  Box box;
  box.send("a");
  box.send("b");
  EXPECT_EQ(text(box.close()), "-");
  EXPECT_EQ(text(box.send("too late")), "-");
  EXPECT_EQ(text(box.written(true)), "b");
  EXPECT_EQ(text(box.written(true)), "- end");
  EXPECT_EQ(text(box.close()), "-");
  EXPECT_EQ(text(box.abandon()), "-");
}

TEST(Outbox, EndsAtOnceWhenIdle) {
  Box box;
  EXPECT_EQ(text(box.close()), "- end");
}

TEST(Outbox, DropsTheRestWhenAWriteFails) {
  Box box;
  box.send("a");
  box.send("b");
  EXPECT_EQ(text(box.written(false)), "- end");
  EXPECT_EQ(text(box.send("c")), "-");
}

TEST(Outbox, KeepsTheMessageUnderWayWhenAbandoned) {
  Box box;
  const Box::Step first = box.send("a long enough text to live on the heap, not in the string");
  box.send("b");
  EXPECT_EQ(text(box.abandon()), "-");
  EXPECT_EQ(first.write->substr(0, 6), "a long");  // gRPC may still read it
  EXPECT_EQ(text(box.written(false)), "- end");
}

TEST(Outbox, KeepsItsMessageInPlaceWhileOthersQueueUp) {
  Box box;
  const Box::Step first = box.send("a");
  for (std::size_t i = 1; i < kMaxQueued; ++i) EXPECT_FALSE(box.send("x").overflow);
  EXPECT_EQ(*first.write, "a");
}

TEST(Outbox, TellsWhenAPeerIsStuck) {
  Box box;
  for (std::size_t i = 0; i < kMaxQueued; ++i) EXPECT_FALSE(box.send("x").overflow);
  EXPECT_TRUE(box.send("one too many").overflow);
}

TEST(Outbox, StartsNothingOnceEnded) {
  Box box;
  int started = 0;
  box.while_alive([&] { ++started; });
  box.close();
  box.while_alive([&] { ++started; });
  EXPECT_EQ(started, 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
