#include "rendezvous/call_writer.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::rendezvous {
namespace {

using Box = CallWriter<std::string>;

std::string text(const Box::Step& step) {
  return (step.write != nullptr ? *step.write : "-") + (step.end ? " end" : "");
}

TEST(CallWriter, WritesOneAtATimeInOrder) {
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

TEST(CallWriter, EndsOnceAfterWhatWasQueued) {
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

TEST(CallWriter, EndsAtOnceWhenIdle) {
  Box box;
  EXPECT_EQ(text(box.close()), "- end");
}

TEST(CallWriter, DropsTheRestWhenAWriteFails) {
  Box box;
  box.send("a");
  box.send("b");
  EXPECT_EQ(text(box.written(false)), "- end");
  EXPECT_EQ(text(box.send("c")), "-");
}

TEST(CallWriter, KeepsTheMessageUnderWayWhenAbandoned) {
  Box box;
  const Box::Step first = box.send("a long enough text to live on the heap, not in the string");
  box.send("b");
  EXPECT_EQ(text(box.abandon()), "-");
  EXPECT_EQ(first.write->substr(0, 6), "a long");  // gRPC may still read it
  EXPECT_EQ(text(box.written(false)), "- end");
}

TEST(CallWriter, KeepsItsMessageInPlaceWhileOthersQueueUp) {
  Box box;
  const Box::Step first = box.send("a");
  for (std::size_t i = 1; i < kMaxQueued; ++i) EXPECT_FALSE(box.send("x").overflow);
  EXPECT_EQ(*first.write, "a");
}

TEST(CallWriter, TellsWhenAPeerIsStuck) {
  Box box;
  for (std::size_t i = 0; i < kMaxQueued; ++i) EXPECT_FALSE(box.send("x").overflow);
  EXPECT_TRUE(box.send("one too many").overflow);
}

TEST(CallWriter, StartsNothingOnceEnded) {
  Box box;
  int started = 0;
  box.while_alive([&] { ++started; });
  box.close();
  box.while_alive([&] { ++started; });
  EXPECT_EQ(started, 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
