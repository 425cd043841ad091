// A real limit of a memory cgroup, which the ranks' memory does not fit into. One line says so, and
// no rank dies of SIGBUS or of the kernel's killer.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "base/memory_cgroup.h"
#include "tests/worker/forked_ranks.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool write_to(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// A cgroup below this process's own, with a limit; gone with the object. `why`: why there is none.
class LimitedCgroup {
 public:
  explicit LimitedCgroup(std::size_t bytes) {
    const auto own = memory_folder(own_memory_cgroup());
    if (!own) {
      why_ = "this host has no memory cgroups";
      return;
    }
    path_ = fmt::format("{}/ddprun_test_{}", own->path, ::getpid());
    // Version 2 gives a cgroup the controller only where its parent, which has processes, may pass
    // it on.
    if (own->v2) write_to(own->path + "/cgroup.subtree_control", "+memory");
    if (::mkdir(path_.c_str(), 0755) != 0) {
      why_ = fmt::format("a cgroup below {}: {}", own->path, std::strerror(errno));
      path_.clear();
      return;
    }
    const char* limit = own->v2 ? "/memory.max" : "/memory.limit_in_bytes";
    if (!write_to(path_ + limit, std::to_string(bytes)))
      why_ = fmt::format("{}{}: {}", path_, limit, std::strerror(errno));
  }
  LimitedCgroup(const LimitedCgroup&) = delete;
  LimitedCgroup& operator=(const LimitedCgroup&) = delete;
  LimitedCgroup(LimitedCgroup&&) = delete;
  LimitedCgroup& operator=(LimitedCgroup&&) = delete;
  ~LimitedCgroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }

  const std::string& why() const { return why_; }
  // Takes this process in; its children are born there.
  bool enter() const { return write_to(path_ + "/cgroup.procs", std::to_string(::getpid())); }

 private:
  std::string path_;
  std::string why_;
};

// Runs the ranks below the limit, in a child; its wait status.
int run_below(const LimitedCgroup& cgroup, const RankBody& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    EXPECT_TRUE(cgroup.enter());
    run_ranks(2, body);
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(ShmMemoryLimit, IsNamedInOneLineAndKillsNobody) {
  const LimitedCgroup cgroup(512 * kMiB);
  if (!cgroup.why().empty()) GTEST_SKIP() << cgroup.why();
  ::testing::internal::CaptureStderr();
  const int status = run_below(cgroup, [](Collective& collective) {
    // Twice 8 MiB fit, also with what a sanitizer takes for them; twice 300 MiB do not.
    const auto small = collective.allocate(8 * kMiB);
    const auto said = message_of([&] { collective.allocate(300 * kMiB); });
    EXPECT_EQ(said.find("600 MiB of shared memory needed for sums, "), 0U) << said;
    EXPECT_NE(said.find(" MiB of memory are left: free some, or allow the job more"),
              std::string::npos)
        << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    // The collective is whole, and the memory that it gave can be used.
    std::memset(small.get(), 1, 8 * kMiB);
    collective.wait(collective.launch_sum({small.get(), 8 * kMiB, Dtype::kUInt8}));
    EXPECT_EQ(static_cast<int>(small.get()[8 * kMiB - 1]), 2);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
  fmt::print("{}", log);
}

}  // namespace
}  // namespace ddprun::worker
