// Ranks that meet at a file.
#include "worker/startup/init_method/file_init.h"

#include <ddprun/process.h>
#include <fmt/format.h>
#include <sched.h>

#include <fstream>

#include "tests/worker/collective/tcp/two_hosts.h"
#include "tests/worker/startup/init_method/ranks_at_file.h"
#include "tests/worker/startup/try_bootstrap.h"

namespace ddprun::worker {
namespace {

TEST_F(RanksAtFile, MeetAndLeaveNothing) {
  for (const int ranks : {1, 2, 4}) {
    expect_met(start_all(ranks));
    EXPECT_EQ(left(), 0);
  }
}

TEST_F(RanksAtFile, MeetAtOneFileAgainAndAgain) {
  for (int run = 0; run < 5; ++run) expect_met(start_all(3));
  EXPECT_EQ(left(), 0);
}

TEST_F(RanksAtFile, MeetByVariables) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(RankProcess([&] {
      ::setenv("DDPRUN_INIT_METHOD", method_.c_str(), 1);
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", "2", 1);
      return meet({.timeout = kSoon});
    }));
  }
  expect_met(std::move(ranks));
}

TEST_F(RanksAtFile, MeetByTheVariablesOfMpi) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(RankProcess([&] {
      // As if on two hosts, of which nothing names the first. Another test may have set these.
      for (const char* name : {"RANK", "WORLD_SIZE"}) ::unsetenv(name);
      ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
      ::setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0", 1);
      ::setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
      return meet({.timeout = kSoon, .init_method = method_});
    }));
  }
  expect_met(std::move(ranks));
}

TEST_F(RanksAtFile, FindOutWhoIsWhere) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(RankProcess([this, rank]() -> std::string {
      const auto process = try_bootstrap(options(rank, 3));
      if (!process) return process.error().message();
      const World& world = process->world;
      return fmt::format("rank {} of {}, {} of {} on node {} of {}, {}", world.rank,
                         world.world_size, world.local_rank, world.local_world_size,
                         world.node_rank, world.node_count, world.master_addr);
    }));
  }
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].said(),
              fmt::format("rank {0} of 3, {0} of 3 on node 0 of 1, 127.0.0.1", rank));
}

// Hosts are told apart by their names, too: ranks with another one are on another host.
void expect_hosts_at_file(
    const std::vector<std::string>& host_of_rank, const std::string& name,
    const std::function<BootstrapOptions(int rank)>& options,
    const std::function<std::string(const BootstrapOptions&, const std::string&)>& meet) {
  std::vector<RankProcess> ranks;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    ranks.push_back(RankProcess([&, rank]() -> std::string {
      const std::string& host = host_of_rank[rank];
      if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(host.data(), host.size()) != 0)
        return "cannot change the host's name";
      return meet(options(static_cast<int>(rank)), name);
    }));
  }
  for (auto& rank : ranks) EXPECT_EQ(rank.said(), "") << name;
}

TEST_F(RanksAtFile, MeetOnSeveralHosts) {
  RankProcess probe([]() -> std::string { return ::unshare(CLONE_NEWUTS) == 0 ? "" : "no"; });
  if (!probe.said().empty()) GTEST_SKIP() << "a host of another name needs CAP_SYS_ADMIN";
  const auto of_world = [this](int ranks) {
    return [this, ranks](int rank) { return options(rank, ranks); };
  };
  expect_hosts_at_file({"a", "b"}, "tcp", of_world(2), meet);
  expect_hosts_at_file({"a", "a", "b", "b"}, "hierarchical", of_world(4), meet);
  // Ranks that are dealt to the hosts in turn, and unlike numbers of them.
  expect_hosts_at_file({"a", "b", "a", "b"}, "tcp", of_world(4), meet);
  expect_hosts_at_file({"a", "b", "b"}, "tcp", of_world(3), meet);
}

// Two network namespaces with a cable between them; they see the same file.
class RanksOfTwoHosts : public TwoHosts {
 protected:
  void expect_met(const std::vector<int>& host_of_rank, const std::string& name) const {
    std::string folder = "/tmp/ddprun-hosts-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    std::vector<RankProcess> ranks;
    for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
      ranks.push_back(RankProcess([&] {
        enter(host_of_rank[rank]);
        return meet({.timeout = kSoon,
                     .init_method = "file://" + folder + "/meet",
                     .rank = static_cast<int>(rank),
                     .world_size = static_cast<int>(host_of_rank.size())},
                    name);
      }));
    }
    for (auto& rank : ranks) EXPECT_EQ(rank.said(), "") << name;
    EXPECT_TRUE(std::filesystem::remove(folder)) << "something is left in it";
  }
};

TEST_F(RanksOfTwoHosts, MeetAtAFile) {
  expect_met({0, 1}, "tcp");
  expect_met({0, 0, 1, 1}, "hierarchical");
  expect_met({1, 0, 0}, "tcp");
}

TEST_F(RanksAtFile, MeetWhereARunThatWasKilledLeftItsFile) {
  {
    RankProcess killed = start(0, 2);
    await_arrival(await_record(), 0);  // its record has one name by then
    killed.signal(SIGKILL);
    EXPECT_EQ(killed.said(), "killed by signal 9");
  }
  EXPECT_EQ(left(), 1);
  // A rank that comes first finds the stale file alone.
  std::vector<RankProcess> ranks;
  for (const int rank : {1, 2, 0}) ranks.push_back(start(rank, 3));
  expect_met(std::move(ranks));
  EXPECT_EQ(left(), 0);
}

TEST_F(RanksAtFile, MeetWhereAnEmptyFileIs) {
  std::ofstream(path_).close();
  expect_met(start_all(2));
  EXPECT_EQ(left(), 0);
}

// A rank 0 that is killed before it has named its file leaves this.
TEST_F(RanksAtFile, MeetBesideAFileWithoutItsName) {
  std::ofstream(path_.string() + "." + fresh_id()) << "ddprun-init 1\n";
  expect_met(start_all(2));
  EXPECT_EQ(left(), 1);
}

TEST_F(RanksAtFile, MeetThoughSomebodyRemovesTheFile) {
  RankProcess rank0 = start(0, 2);
  await_record();
  std::filesystem::remove(path_);
  RankProcess rank1 = start(1, 2);
  EXPECT_EQ(rank1.said(), "");
  EXPECT_EQ(rank0.said(), "");
}

// Two calls of spawn(), as of two hosts; here they are on one, and share its memory.
TEST_F(RanksAtFile, AreThoseOfSeveralSpawns) {
  std::vector<RankProcess> nodes;
  for (int node = 0; node < 2; ++node) {
    nodes.push_back(RankProcess([this, node]() -> std::string {
      try {
        spawn(2,
              [node](Process& process) {
                std::array values{static_cast<double>(process.world.rank), 1.0};
                process.collective->sum(values);
                if (values[0] != 6 || values[1] != 4) throw std::runtime_error("a wrong sum");
                if (process.world.rank / 2 != node || process.launched)
                  throw std::runtime_error("a wrong world");
              },
              {.timeout = kSoon, .init_method = method_, .node_rank = node, .node_count = 2});
      } catch (const std::exception& error) {
        return error.what();
      }
      return {};
    }));
  }
  expect_met(std::move(nodes));
  EXPECT_EQ(left(), 0);
}

TEST_F(RanksAtFile, SpawnRefusesAWrongNode) {
  const auto refused = [](const SpawnOptions& options) {
    return message_of([&] {
      spawn(
          2, [](Process&) {}, options);
    });
  };
  EXPECT_EQ(refused({.node_rank = 1, .node_count = 2}),
            "spawn: node_rank=1 with node_count=2: expected an init_method=file:///PATH at which "
            "several nodes meet");
  EXPECT_EQ(refused({.init_method = method_, .node_rank = 2, .node_count = 2}),
            "spawn: node_rank=2 with node_count=2: expected a node_rank from 0 on that is below "
            "it, and at most 10485 nodes");
  EXPECT_EQ(refused({.init_method = "file://m"}),
            "spawn: init_method=file://m: expected env:// or file:///PATH, an absolute path "
            "without ? and #");
  EXPECT_EQ(left(), 0);
}

}  // namespace
}  // namespace ddprun::worker
