// Folders of distributed checkpoints: saves that fail, on file systems that know less, too. All
// ranks get an error or none, and the folder of before stays.
#include "worker/checkpoint/dcp_folder.h"

#include <ddprun/collective.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/examples/temporary_folder.h"
#include "tests/worker/checkpoint/memory_files.h"
#include "tests/worker/forked_ranks.h"

namespace {
bool refuses_flags = false;  // as NFS does
}  // namespace

// Stands before the C library's.
extern "C" int renameat2(int old_folder, const char* old_name, int new_folder, const char* new_name,
                         unsigned flags) noexcept {
  if (refuses_flags && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(
      ::syscall(SYS_renameat2, old_folder, old_name, new_folder, new_name, flags));
}

namespace ddprun::worker {
namespace {

namespace fs = std::filesystem;
using examples::TemporaryFolder;
using examples::write_bytes;

std::vector<DcpItem> items_of(const std::string& key, std::int64_t number) {
  DcpItem item{
      .key = key, .path = {key}, .dtype = {}, .sizes = {}, .box = std::nullopt, .pickled = {}};
  item.pickled = *write_pickle(Value(number));
  std::vector<DcpItem> items;
  items.push_back(std::move(item));
  return items;
}

class DcpFolderTest : public testing::Test {
 protected:
  ~DcpFolderTest() override { refuses_flags = false; }

  fs::path path() const { return made_.path() / "run"; }
  fs::path temporary() const { return made_.path() / "run.tmp"; }

  // The message of the error, or an empty text.
  std::string save(std::int64_t number) {
    const auto saved = save_dcp(path(), items_of("epoch", number), *alone_);
    return saved ? std::string() : saved.error().message();
  }

  std::int64_t saved_number() const {
    const auto folder = DcpFolder::open(path());
    if (!folder) return -1;
    const auto value = folder->read(folder->metadata().values.at("epoch"));
    return value ? *value->as<std::int64_t>() : -1;
  }

  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(made_.path()), fs::directory_iterator()));
  }

  TemporaryFolder made_;
  std::unique_ptr<Collective> alone_ = make_alone_collective();
};

TEST_F(DcpFolderTest, IsMadeWhereFoldersCannotBeExchanged) {
  refuses_flags = true;
  EXPECT_EQ(save(1), "");
  EXPECT_EQ(saved_number(), 1);
  const std::string again = save(2);
  EXPECT_NE(again.find("cannot exchange two folders: give each save a new name"), std::string::npos)
      << again;
  EXPECT_EQ(saved_number(), 1);
  EXPECT_EQ(entries(), 1U);
  refuses_flags = false;
  EXPECT_EQ(save(3), "");
  EXPECT_EQ(saved_number(), 3);
  EXPECT_EQ(entries(), 1U);
}

TEST_F(DcpFolderTest, MayBeEmptyBefore) {
  refuses_flags = true;
  fs::create_directory(path());
  EXPECT_EQ(save(1), "");
  EXPECT_EQ(saved_number(), 1);
}

// Nothing is removed but files that have been looked at.
TEST_F(DcpFolderTest, StaysIfAFolderHasAShardsName) {
  fs::create_directories(path() / "mine.distcp");
  write_bytes(path() / "mine.distcp" / "thesis.tex", "years");
  const std::string refused = save(1);
  EXPECT_NE(refused.find("it has 'mine.distcp', which is no part of a checkpoint"),
            std::string::npos)
      << refused;
  fs::rename(path(), temporary());
  EXPECT_NE(save(1), "");
  EXPECT_TRUE(fs::exists(temporary() / "mine.distcp" / "thesis.tex"));
}

// As many as ranks have written, and more than the process may open.
TEST_F(DcpFolderTest, OpensFewOfItsShardsAtOnce) {
  constexpr int kShards = 200;
  ASSERT_EQ(save(7), "");
  const auto name = [](int rank) { return fmt::format("__{}_0.distcp", rank); };
  for (int rank = 1; rank < kShards; ++rank)
    fs::create_hard_link(path() / name(0), path() / name(rank));
  const auto folder = DcpFolder::open(path());
  ASSERT_TRUE(folder) << folder.error().message();
  DcpBytes bytes = folder->metadata().values.at("epoch");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{100, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int time = 0; time < 2; ++time) {
    for (int rank = 0; rank < kShards; ++rank) {
      bytes.file = name(rank);
      const auto value = folder->read(bytes);
      EXPECT_TRUE(value) << value.error().message();
    }
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(DcpFolderTest, IsNotThereIfNobodyCouldLoadIt) {
  auto items = items_of("empty", 1);
  items.front().dtype = "float32";
  items.front().sizes = {std::int64_t{1} << 50};
  const auto saved = save_dcp(path(), items, *alone_);
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().message().find("nobody could load it: empty is too large"),
            std::string::npos)
      << saved.error().message();
  EXPECT_EQ(entries(), 0U);
}

// Bytes that cannot be read.
class Thrower : public MemoryBytes {
 public:
  Thrower() : MemoryBytes(std::string(16, 'x')) {}
  std::span<const std::byte> memory() const override { throw std::runtime_error("lost"); }
};

void limit_files(rlim_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// Rank 1 is the one that fails. No rank waits for it.
TEST_F(DcpFolderTest, IsNotThereIfARankThrowsOrHasNoSpace) {
  run_ranks(3, [&](Collective& ranks) {
    auto items = items_of(fmt::format("rng.{}", ranks.rank()), 1);
    const auto fail = [&](const std::string& why) {
      const auto saved = save_dcp(path(), items, ranks);
      ASSERT_FALSE(saved);
      EXPECT_NE(saved.error().message().find(why), std::string::npos) << saved.error().message();
      EXPECT_EQ(saved.error().message().starts_with("rank 1: "), ranks.rank() != 1);
      ranks.barrier();
      EXPECT_FALSE(fs::exists(path()));
      EXPECT_FALSE(fs::exists(temporary()));
      ranks.barrier();
    };
    if (ranks.rank() == 1) items.front().pickled.storages.push_back(std::make_shared<Thrower>());
    fail("lost");
    if (ranks.rank() == 1) items.front().pickled.storages.clear();
    if (ranks.rank() == 1) limit_files(100);
    fail("File too large");
    if (ranks.rank() == 1) limit_files(RLIM_INFINITY);
    const auto saved = save_dcp(path(), items, ranks);
    EXPECT_TRUE(saved) << saved.error().message();
  });
  const auto folder = DcpFolder::open(path());
  ASSERT_TRUE(folder) << folder.error().message();
  EXPECT_EQ(folder->metadata().values.size(), 3U);
}

TEST_F(DcpFolderTest, IsNotThereIfARankHasNoItems) {
  run_ranks(2, [&](Collective& ranks) {
    Result<std::vector<DcpItem>> items = items_of("epoch", 1);
    if (ranks.rank() == 1) items = Error(ErrorCode::kLimit, "no memory");
    const auto saved = save_dcp(path(), items, ranks);
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().message(), ranks.rank() == 1 ? "no memory" : "rank 1: no memory");
    ranks.barrier();
    EXPECT_FALSE(fs::exists(temporary()));
  });
}

}  // namespace
}  // namespace ddprun::worker
