// The records that a leader writes of its jobs, and the fate of writes whose answer is late or
// lost.
#include "rendezvous/election/job_record_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace ddprun::rendezvous {
namespace {

using std::chrono::seconds;

struct JobRecordTableTest : testing::Test {
  JobRecordTable table;
  Time now = Time() + std::chrono::hours(1);
  Ticket ticket = 0;  // of the last write

  std::string show(const JobRecordTable::Actions& actions) {
    std::vector<std::string> texts;
    for (const auto& action : actions) {
      if (const auto* write = std::get_if<JobRecordTable::Write>(&action)) {
        ticket = write->ticket;
        texts.push_back(
            fmt::format("{}={} if {}", write->rdzv_id, write->value, write->if_revision));
      } else {
        texts.push_back("recorded " + std::get<JobRecordTable::RecordWritten>(action).rdzv_id);
      }
    }
    return fmt::format("{}", fmt::join(texts, "; "));
  }
  std::string put(const std::string& id, const std::string& value) {
    return show(table.put(id, value));
  }
  std::string written(std::int64_t revision) { return show(table.written(ticket, revision)); }
  std::string is_otherwise(const std::optional<KeyHolder>& record) {
    return show(table.is_otherwise(ticket, record));
  }
  std::string at(Time when) {
    now = when;
    return show(table.time_passed(now));
  }
};

TEST_F(JobRecordTableTest, EachWriteIsOnTopOfTheOneBefore) {
  EXPECT_EQ(put("a", "1"), "a=1 if 0");
  EXPECT_EQ(written(10), "recorded a");
  EXPECT_EQ(put("a", "2"), "a=2 if 10");
  EXPECT_EQ(written(12), "recorded a");
  EXPECT_EQ(table.look_again_at(), Time::max());
}

TEST_F(JobRecordTableTest, TheNextLeaderGoesOnFromWhatItFound) {
  table.found("a", 7);
  EXPECT_EQ(put("a", "2"), "a=2 if 7");
}

TEST_F(JobRecordTableTest, AnEtcdThatIsSilentIsAskedAgain) {
  put("a", "1");
  table.failed(ticket, now);
  EXPECT_EQ(table.look_again_at(), now + kRecordRetry);
  EXPECT_EQ(at(now + kRecordRetry), "a=1 if 0");
  // The first one was done after all.
  EXPECT_EQ(is_otherwise(KeyHolder{"1", 9, 0}), "recorded a");
  EXPECT_EQ(put("a", "2"), "a=2 if 9");
}

TEST_F(JobRecordTableTest, AnEarlierWriteThatIsDoneLateDoesNotUndoALaterOne) {
  put("a", "1");
  const Ticket first = ticket;
  EXPECT_EQ(put("a", "2"), "a=2 if 0");
  EXPECT_EQ(is_otherwise(KeyHolder{"1", 9, 0}), "a=2 if 9");
  EXPECT_EQ(show(table.written(first, 9)), "") << "its answer tells nothing any more";
  EXPECT_EQ(written(11), "recorded a");
}

TEST_F(JobRecordTableTest, AnEndedJobIsRemovedInTime) {
  put("a", "1");
  written(10);
  table.remove_at("a", now + seconds(60));
  EXPECT_EQ(at(now + seconds(59)), "");
  EXPECT_EQ(at(now + seconds(1)), "a= if 10");
  table.failed(ticket, now);
  EXPECT_EQ(at(now + kRecordRetry), "a= if 10");
  EXPECT_EQ(is_otherwise({}), "") << "it is gone already";
  EXPECT_EQ(table.size(), 0u);
}

TEST_F(JobRecordTableTest, TheNextJobOfTheIdKeepsItsRecord) {
  put("a", "1");
  written(10);
  table.remove_at("a", now + seconds(60));
  EXPECT_EQ(put("a", "2"), "a=2 if 10");
  EXPECT_EQ(written(11), "recorded a");
  EXPECT_EQ(at(now + seconds(100)), "");
}

TEST_F(JobRecordTableTest, AJobThatBeginsWhileItsRecordIsRemoved) {
  put("a", "1");
  written(10);
  table.remove_at("a", now);
  EXPECT_EQ(at(now), "a= if 10");
  const Ticket removal = ticket;
  EXPECT_EQ(put("a", "2"), "a=2 if 10");
  EXPECT_EQ(show(table.written(removal, 12)), "");
  EXPECT_EQ(is_otherwise({}), "a=2 if 0");
  EXPECT_EQ(written(13), "recorded a");
  EXPECT_EQ(table.size(), 1u);
}

TEST_F(JobRecordTableTest, WhatIsDueComesInTheOrderOfItsTime) {
  for (const char* id : {"a", "b", "c"}) {
    put(id, "1");
    written(10);
  }
  table.remove_at("a", now + seconds(3));
  table.remove_at("b", now + seconds(1));
  table.remove_at("c", now + seconds(2));
  table.remove_at("c", now + seconds(1));  // another time
  EXPECT_EQ(table.look_again_at(), now + seconds(1));
  EXPECT_EQ(at(now + seconds(1)), "b= if 10; c= if 10");
  EXPECT_EQ(table.look_again_at(), now + seconds(2));
  put("a", "2");
  EXPECT_EQ(table.look_again_at(), Time::max()) << "it is kept, and being written";
  table.failed(ticket, now);
  EXPECT_EQ(table.look_again_at(), now + kRecordRetry);
  table.clear();
  EXPECT_EQ(table.look_again_at(), Time::max());
}

TEST_F(JobRecordTableTest, ALeaderNoMoreHearsNoAnswers) {
  put("a", "1");
  table.clear();
  EXPECT_EQ(written(10), "");
  EXPECT_EQ(table.size(), 0u);
}

}  // namespace
}  // namespace ddprun::rendezvous
