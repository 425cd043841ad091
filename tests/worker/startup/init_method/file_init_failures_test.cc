// The errors of ranks that cannot meet at a file.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>

#include <fstream>

#include "tests/worker/startup/init_method/ranks_at_file.h"
#include "worker/startup/init_method/file_init.h"

namespace ddprun::worker {
namespace {

using std::chrono::seconds;
class RanksThatFail : public RanksAtFile {};

TEST_F(RanksThatFail, SayThatRank0DidNotCome) {
  EXPECT_EQ(start(1, 2, seconds(1)).said(), line("rank 1 waited 1 s: rank 0 did not come"));
}

TEST_F(RanksThatFail, SayWhoLeftTheFileWhereRank0DidNotCome) {
  RankProcess killed = start(0, 2);
  const InitRecord record = await_record();
  killed.signal(SIGKILL);
  killed.said();
  EXPECT_EQ(start(1, 2, seconds(1)).said(),
            line(fmt::format("rank 1 waited 1 s: rank 0 did not come; process {} on {} has left "
                             "the file and does not answer at 127.0.0.1 port {}",
                             record.process, record.host.name, record.port)));
}

TEST_F(RanksThatFail, SayWhoDidNotCome) {
  std::vector<RankProcess> ranks;
  for (const int rank : {0, 2}) ranks.push_back(start(rank, 3, seconds(5)));
  for (auto& rank : ranks) {
    const std::string said = rank.said();
    EXPECT_EQ(said.find(line("rank ")), 0) << said;
    EXPECT_NE(said.find("waited 5 s for the others: rank 1 of 3 did not come"), std::string::npos)
        << said;
  }
  EXPECT_EQ(left(), 0);
}

// Rank 1 waits for rank 2 when rank 0 dies.
TEST_F(RanksThatFail, EndWhereRank0IsKilled) {
  RankProcess rank0 = start(0, 3, seconds(600));
  RankProcess rank1 = start(1, 3, seconds(600));
  const InitRecord record = await_record();
  await_arrival(record, 1);
  rank0.signal(SIGKILL);
  const std::string said = rank1.said();
  EXPECT_EQ(said.find(line("rank 0 (" + rank0_of(record) + ") is gone: ")), 0) << said;
  expect_met(start_all(3));
}

TEST_F(RanksThatFail, AllEndWhereOneComesTwice) {
  RankProcess rank0 = start(0, 3, seconds(600));
  RankProcess first = start(1, 3, seconds(600));
  await_arrival(await_record(), 1);
  RankProcess second = start(1, 3, seconds(600));
  const std::string host = this_host().name;
  const std::string expected =
      line(fmt::format("rank 1 is there twice: process {} on {} and process {} on {}", first.pid(),
                       host, second.pid(), host));
  for (auto* rank : {&rank0, &first, &second}) EXPECT_EQ(rank->said(), expected);
  EXPECT_EQ(left(), 0);
}

TEST_F(RanksThatFail, AllEndWhereWorldSizesDiffer) {
  RankProcess rank0 = start(0, 3, seconds(600));
  RankProcess rank1 = start(1, 4, seconds(600));
  const std::string expected =
      line(fmt::format("rank 1 has a world size of 4, rank 0 (process {} on {}) of 3", rank0.pid(),
                       this_host().name));
  EXPECT_EQ(rank0.said(), expected);
  EXPECT_EQ(rank1.said(), expected);
  EXPECT_EQ(left(), 0);
}

TEST_F(RanksThatFail, OfASecondJobAreRefused) {
  RankProcess rank0 = start(0, 2);
  const InitRecord record = await_record();
  EXPECT_EQ(start(0, 4, seconds(600)).said(), line("two jobs use it at once, or two ranks 0: " +
                                                   rank0_of(record) + " meets 2 ranks there"));
  // The first goes on.
  RankProcess rank1 = start(1, 2);
  EXPECT_EQ(rank1.said(), "");
  EXPECT_EQ(rank0.said(), "");
}

TEST_F(RanksThatFail, OfAJobWithAnotherNameDisturbNobody) {
  const auto of_job = [this](int rank, const std::string& job) {
    return RankProcess([=, this] {
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("TORCHELASTIC_RUN_ID", job.c_str(), 1);
      return meet({.timeout = kSoon, .init_method = method_});
    });
  };
  RankProcess rank0 = of_job(0, "one");
  const InitRecord record = await_record();
  EXPECT_EQ(of_job(1, "other").said(), line("two jobs use it at once: " + rank0_of(record) +
                                            " is of job one.0, this rank 1 of job other.0"));
  RankProcess rank1 = of_job(1, "one");
  EXPECT_EQ(rank1.said(), "");
  EXPECT_EQ(rank0.said(), "");
}

// It may be stopped, or its host cut off: whether it is over only the user knows.
TEST_F(RanksThatFail, LeaveAFileAloneWhoseRank0IsSilent) {
  RankProcess stopped = start(0, 2);
  const InitRecord record = await_record();
  // Before that it may still have a second file there.
  await_arrival(record, 0);
  stopped.stop();
  EXPECT_EQ(start(0, 2).said(),
            line(fmt::format("{} has left it and does not answer at 127.0.0.1 port {}: if that job "
                             "is over, remove the file",
                             rank0_of(record), record.port)));
  EXPECT_EQ(left(), 1);
  stopped.signal(SIGCONT);
  RankProcess rank1 = start(1, 2);
  EXPECT_EQ(rank1.said(), "");
  EXPECT_EQ(stopped.said(), "");
}

TEST_F(RanksThatFail, RefuseAFileThatIsNotTheirs) {
  const std::string mine = format_record({.id = fresh_id(),
                                          .ranks = 2,
                                          .job = "",
                                          .host = this_host(),
                                          .process = 1,
                                          .address = "127.0.0.1",
                                          .port = 1});
  for (const std::string& text :
       {std::string("my notes\n"), std::string("\0\0\0\0", 4), std::string(5'000'000, '\n'),
        mine.substr(0, mine.size() - 1), mine + "x"}) {
    std::ofstream(path_, std::ios::binary) << text;
    for (const int rank : {0, 1})
      EXPECT_EQ(start(rank, 2).said(),
                line("what is in it was not written by ranks that meet: name another file"));
    EXPECT_EQ(std::filesystem::file_size(path_), text.size());
  }
}

// Something listens where the record says, and it is no store of this start.
TEST_F(RanksThatFail, DoNotJoinAnotherStore) {
  RankProcess other = start(0, 2);
  InitRecord record = await_record();
  record.id = fresh_id();
  const std::filesystem::path path = folder_ / "elsewhere";
  std::ofstream(path) << format_record(record);
  const BootstrapOptions theirs{
      .timeout = seconds(1), .init_method = "file://" + path.string(), .rank = 1, .world_size = 2};
  const std::string said = RankProcess([&] { return meet(theirs); }).said();
  EXPECT_NE(said.find("rank 0 did not come"), std::string::npos) << said;
}

TEST_F(RanksThatFail, SayThatTheFolderIsMissingOrClosed) {
  for (const int rank : {0, 1}) {
    BootstrapOptions nowhere = options(rank, 2);
    nowhere.init_method = "file:///no/such/folder";
    EXPECT_EQ(RankProcess([&] { return meet(nowhere); }).said(),
              "init_method=file:///no/such/folder: there is no folder /no/such");
  }
  BootstrapOptions closed = options(0, 2);
  closed.init_method = "file:///proc/ddprun-init";
  const std::string said = RankProcess([&] { return meet(closed); }).said();
  EXPECT_EQ(said.find("init_method=file:///proc/ddprun-init: write to the folder /proc: "), 0)
      << said;
}

// Rank 1, too, says so at once: it would wait for a rank 0 that is gone.
TEST_F(RanksThatFail, SayThatTheFolderCannotBeWritten) {
  const std::string folder = folder_.string();
  const auto close_folder = [&folder] {
    return ::unshare(CLONE_NEWNS) == 0 &&
           ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
           ::mount(nullptr, folder.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) ==
               0;
  };
  if (RankProcess([&] { return std::string(close_folder() ? "" : "no"); }).said() == "no")
    GTEST_SKIP() << "a folder that root cannot write needs CAP_SYS_ADMIN";
  for (const int rank : {0, 1}) {
    RankProcess closed([&]() -> std::string {
      if (!close_folder()) return "the folder is open";
      return meet(options(rank, 2, seconds(600)));
    });
    EXPECT_EQ(closed.said(), line("write to the folder " + folder + ": Read-only file system"));
  }
}

TEST_F(RanksThatFail, RefuseAWrongRankOrAddress) {
  EXPECT_EQ(start(2, 2).said(),
            line("rank=2 with world_size=2: expected a rank from 0 on that is below it"));
  BootstrapOptions wrong = options(0, 2);
  wrong.init_method = "tcp://10.0.0.1:23456";
  const std::string said = RankProcess([&] { return meet(wrong); }).said();
  EXPECT_EQ(said.find("init_method=tcp://10.0.0.1:23456: expected env:// or file:///PATH"), 0)
      << said;
  wrong.init_method.clear();
  EXPECT_NE(
      RankProcess([&] { return meet(wrong); }).said().find("go with init_method=file:///PATH"),
      std::string::npos);
  EXPECT_EQ(left(), 0);
}

}  // namespace
}  // namespace ddprun::worker
