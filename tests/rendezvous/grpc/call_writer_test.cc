#include "rendezvous/grpc/call_writer.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::rendezvous {
namespace {

using Writer = CallWriter<std::string>;

std::string text(const Writer::Step& step) {
  return (step.write != nullptr ? *step.write : "-") + (step.end ? " end" : "");
}

TEST(CallWriter, WritesOneAtATimeInOrder) {
  Writer writer;
  EXPECT_EQ(text(writer.send("a")), "a");
  EXPECT_EQ(text(writer.send("b")), "-");
  EXPECT_EQ(text(writer.send("c")), "-");
  EXPECT_EQ(text(writer.written(true)), "b");
  EXPECT_EQ(text(writer.written(true)), "c");
  EXPECT_FALSE(writer.idle());
  EXPECT_EQ(text(writer.written(true)), "-");
  EXPECT_TRUE(writer.idle());
  EXPECT_EQ(text(writer.send("d")), "d");
}

TEST(CallWriter, EndsOnceAfterWhatWasQueued) {
  Writer writer;
  writer.send("a");
  writer.send("b");
  EXPECT_EQ(text(writer.close()), "-");
  EXPECT_EQ(text(writer.send("too late")), "-");
  EXPECT_EQ(text(writer.written(true)), "b");
  EXPECT_EQ(text(writer.written(true)), "- end");
  EXPECT_EQ(text(writer.close()), "-");
  EXPECT_EQ(text(writer.abandon()), "-");
}

TEST(CallWriter, EndsAtOnceWhenIdle) {
  Writer writer;
  EXPECT_EQ(text(writer.close()), "- end");
}

TEST(CallWriter, DropsTheRestWhenAWriteFails) {
  Writer writer;
  writer.send("a");
  writer.send("b");
  EXPECT_EQ(text(writer.written(false)), "- end");
  EXPECT_EQ(text(writer.send("c")), "-");
}

TEST(CallWriter, KeepsTheMessageUnderWayWhenAbandoned) {
  Writer writer;
  const Writer::Step first =
      writer.send("a long enough text to live on the heap, not in the string");
  writer.send("b");
  EXPECT_EQ(text(writer.abandon()), "-");
  EXPECT_EQ(first.write->substr(0, 6), "a long");  // gRPC may still read it
  EXPECT_EQ(text(writer.written(false)), "- end");
}

TEST(CallWriter, KeepsItsMessageInPlaceWhileOthersQueueUp) {
  Writer writer;
  const Writer::Step first = writer.send("a");
  for (std::size_t i = 1; i < kMaxQueued; ++i) EXPECT_FALSE(writer.send("x").overflow);
  EXPECT_EQ(*first.write, "a");
}

TEST(CallWriter, TellsWhenAPeerIsStuck) {
  Writer writer;
  for (std::size_t i = 0; i < kMaxQueued; ++i) EXPECT_FALSE(writer.send("x").overflow);
  EXPECT_TRUE(writer.send("one too many").overflow);
}

TEST(CallWriter, StartsNothingOnceEnded) {
  Writer writer;
  int started = 0;
  writer.while_alive([&] { ++started; });
  writer.close();
  writer.while_alive([&] { ++started; });
  EXPECT_EQ(started, 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
