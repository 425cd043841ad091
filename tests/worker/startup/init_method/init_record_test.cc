#include "worker/startup/init_method/init_record.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/startup/init_method/file_world.h"

namespace ddprun::worker {
namespace {

const std::string kSomeId = "f123456789abcdef0123456789abcdef";
const HostId kHere{.name = "n1", .id = "boot/pid:[1]/net:[2]"};
const HostId kElsewhere{.name = "n2", .id = "boot/pid:[1]/net:[2]"};

InitRecord some_record() {
  return {.id = kSomeId,
          .ranks = 4,
          .job = "srun-9.1",
          .host = kHere,
          .process = 17,
          .address = "10.0.0.7",
          .port = 34567};
}

TEST(InitRecord, IsReadAsItWasWritten) {
  InitRecord record = some_record();
  EXPECT_EQ(parse_record(format_record(record)), record);
  record.job.clear();
  record.address = "2001:db8::7";
  EXPECT_EQ(parse_record(format_record(record)), record);
  EXPECT_LE(format_record(record).size(), kInitRecordBytes);
}

TEST(InitRecord, MakesOneWordOfAJobsName) {
  InitRecord record = some_record();
  record.job = "my job\nport 1";
  EXPECT_EQ(parse_record(format_record(record)).value().job, "my?job?port?1");
  record.job = std::string(10'000, 'x');
  EXPECT_EQ(parse_record(format_record(record)).value().job.size(), 128);
  EXPECT_LE(format_record(record).size(), kInitRecordBytes);
}

TEST(InitRecord, OfWhichAnyPartIsMissingIsNone) {
  const std::string text = format_record(some_record());
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_EQ(parse_record(text.substr(0, size)), std::nullopt) << size;
  EXPECT_EQ(parse_record(text + "\n"), std::nullopt);
  EXPECT_EQ(parse_record(text + text), std::nullopt);
}

// A changed byte gives no record, or one that is written as it was read.
TEST(InitRecord, IsRefusedOrExactWithAnyByteChanged) {
  const std::string text = format_record(some_record());
  int refused = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const char byte : {'\0', '\n', ' ', '-', '0', '9', 'f', 'g', 'Z', '\x7f', '\xff'}) {
      std::string changed = text;
      changed[at] = byte;
      const auto record = parse_record(changed);
      if (!record) ++refused;
      // A number with zeros in front is one number with two texts.
      if (record && changed.find(" 0") == std::string::npos) {
        EXPECT_EQ(format_record(*record), changed);
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(InitRecord, RefusesNumbersThatMakeNoSense) {
  const std::string text = format_record(some_record());
  const auto with = [&text](const std::string& line, const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(line), line.size(), other);
    return parse_record(changed);
  };
  EXPECT_TRUE(with("port 34567", "port 65535"));
  for (const char* port :
       {"port 0", "port 65536", "port -1", "port ", "port 1e3", "port 99999999999999"})
    EXPECT_FALSE(with("port 34567", port)) << port;
  EXPECT_FALSE(with("ranks 4", "ranks 1048577"));
  EXPECT_FALSE(with("process 17", "process 0"));
  EXPECT_FALSE(with("address 10.0.0.7", "address host.example"));
  EXPECT_FALSE(with("address 10.0.0.7", "address "));
  EXPECT_FALSE(with("id f", "id G"));
  EXPECT_FALSE(with("ddprun-init 1", "ddprun-init 2"));
}

TEST(InitRecord, KnowsWhereToProbe) {
  EXPECT_EQ(address_from(some_record(), kHere), "127.0.0.1");
  EXPECT_EQ(address_from(some_record(), kElsewhere), "10.0.0.7");
  EXPECT_EQ(rank0_of(some_record()), "process 17 on n1");
}

TEST(EarlierStart, RunsWhereItsStoreAnswers) {
  for (const HostId& here : {kHere, kElsewhere})
    EXPECT_EQ(judge_earlier(some_record(), here, true, StoreAnswer::kItsStore), Earlier::kRuns);
}

TEST(EarlierStart, IsOverWhereNobodyListens) {
  for (const HostId& here : {kHere, kElsewhere}) {
    for (const bool lives : {false, true})
      EXPECT_EQ(judge_earlier(some_record(), here, lives, StoreAnswer::kNobody), Earlier::kOver);
  }
}

// Another program may have its port by now, and wait for more than our greeting.
TEST(EarlierStart, IsOverOnItsOwnHostWithoutItsProcess) {
  EXPECT_EQ(judge_earlier(some_record(), kHere, false, StoreAnswer::kSilence), Earlier::kOver);
  EXPECT_EQ(judge_earlier(some_record(), kHere, true, StoreAnswer::kSilence), Earlier::kUnknown);
}

// A number of a process means something on its own host alone.
TEST(EarlierStart, IsUnknownWhereAnotherHostIsSilent) {
  for (const bool lives : {false, true})
    EXPECT_EQ(judge_earlier(some_record(), kElsewhere, lives, StoreAnswer::kSilence),
              Earlier::kUnknown);
}

TEST(EarlierStart, IsUnknownBehindAnotherHostsLoopback) {
  InitRecord record = some_record();
  record.address = "127.0.0.1";
  EXPECT_EQ(judge_earlier(record, kElsewhere, false, StoreAnswer::kNobody), Earlier::kUnknown);
  EXPECT_EQ(judge_earlier(record, kHere, false, StoreAnswer::kNobody), Earlier::kOver);
}

TEST(InitArrival, IsReadAsItWasWritten) {
  const Arrival arrival{.id = kSomeId, .process = 9, .host = kHere};
  const std::string text = format_arrival(arrival);
  EXPECT_EQ(parse_arrival(text), arrival);
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_EQ(parse_arrival(text.substr(0, size)), std::nullopt) << size;
  EXPECT_EQ(parse_arrival(text + "x"), std::nullopt);
}

TEST(InitRecord, TellsTwoJobsApartWhereBothHaveNames) {
  EXPECT_TRUE(are_two_jobs("srun-9.1", "srun-9.2"));
  EXPECT_FALSE(are_two_jobs("srun-9.1", "srun-9.1"));
  EXPECT_FALSE(are_two_jobs("", "srun-9.2"));
  EXPECT_FALSE(are_two_jobs("srun-9.1", ""));
}

TEST(HostId, IsThisHostEachTime) {
  EXPECT_EQ(this_host(), this_host());
  EXPECT_FALSE(this_host().name.empty());
  EXPECT_EQ(as_word(this_host().id, 1000), this_host().id);
  EXPECT_EQ(as_word("a b\xc3\xa9", 3), "a?b");
}

}  // namespace
}  // namespace ddprun::worker
