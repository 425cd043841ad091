// Ranks in processes of their own that meet at a file, as far as a collective.
#pragma once

#include <ddprun/process.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "store/client.h"
#include "tests/worker/forked_ranks.h"
#include "tests/worker/startup/try_bootstrap.h"
#include "worker/startup/init_method/init_file.h"
#include "worker/startup/init_method/init_record.h"

namespace ddprun::worker {

// Ends the rank's process if it does not come to its end; above each time-out that a test waits
// for.
inline constexpr std::chrono::seconds kSoon{20};

// A rank in a process of its own, and what it said at its end: nothing, or its error.
class RankProcess {
 public:
  explicit RankProcess(const std::function<std::string()>& body) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(kRankLifeSeconds);
      const std::string said = body();
      const auto written = ::write(pipe[1], said.data(), said.size());
      ::_exit(written == static_cast<ssize_t>(said.size()) ? 0 : 1);
    }
    ::close(pipe[1]);
    said_ = pipe[0];
  }
  RankProcess(RankProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), said_(std::exchange(other.said_, -1)) {}
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  RankProcess& operator=(RankProcess&&) = delete;
  ~RankProcess() {
    if (pid_ > 0) signal(SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    if (said_ >= 0) ::close(said_);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  void stop() const {
    signal(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

  // Waits for its end.
  std::string said() {
    std::string text;
    std::array<char, 512> bytes{};
    for (ssize_t got = 0; (got = ::read(said_, bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<std::size_t>(got));
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
    return WEXITSTATUS(status) == 0 ? text : "a test in it failed";
  }

 private:
  pid_t pid_ = -1;
  int said_ = -1;
};

// Returns the error of a rank: empty, after a sum over all.
inline std::string meet(const BootstrapOptions& how, const std::string& name = "shm") {
  auto process = try_bootstrap(how);
  if (!process) return process.error().message();
  const int ranks = process->world.world_size;
  std::array values{static_cast<double>(process->world.rank), 1.0};
  process->collective->sum(values);
  if (values[0] != ranks * (ranks - 1) / 2.0 || values[1] != ranks) return "a wrong sum";
  if (ranks > 1 && process->collective->name() != name)
    return "met over " + std::string(process->collective->name());
  if (!process->launched || process->collective->rank() != process->world.rank)
    return "a wrong rank";
  return {};
}

class RanksAtFile : public ::testing::Test {
 protected:
  RanksAtFile() {
    std::string pattern = "/tmp/ddprun-ranks-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "meet";
    method_ = "file://" + path_.string();
  }
  ~RanksAtFile() override { std::filesystem::remove_all(folder_); }

  BootstrapOptions options(int rank, int ranks, std::chrono::seconds timeout = kSoon) const {
    return {.timeout = timeout, .init_method = method_, .rank = rank, .world_size = ranks};
  }

  RankProcess start(int rank, int ranks, std::chrono::seconds timeout = kSoon) const {
    return RankProcess([=, this] { return meet(options(rank, ranks, timeout)); });
  }

  std::vector<RankProcess> start_all(int ranks) const {
    std::vector<RankProcess> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(start(rank, ranks));
    return all;
  }

  void expect_met(std::vector<RankProcess> ranks) const {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      EXPECT_EQ(ranks[rank].said(), "") << "rank " << rank;
  }

  // The record that a rank 0 has put there.
  InitRecord await_record() const {
    InitFile file(path_, method_);
    const auto end = std::chrono::steady_clock::now() + kSoon;
    while (std::chrono::steady_clock::now() < end) {
      const auto text = file.read().value();
      const auto record = text ? parse_record(*text) : std::nullopt;
      if (record) return *record;
      file.wait(end);
    }
    throw std::runtime_error("rank 0 has written nothing");
  }

  // Returns when the rank has taken its place.
  static void await_arrival(const InitRecord& record, int rank) {
    auto client = store::Client::connect("127.0.0.1", record.port, kSoon).value();
    client.wait(fmt::format("/ddprun/file_init/{}/rank/{}", record.id, rank), kSoon).value();
  }

  // Files in the folder.
  std::ptrdiff_t left() const {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator());
  }

  std::string line(const std::string& rest) const { return "init_method=" + method_ + ": " + rest; }

  std::filesystem::path folder_, path_;
  std::string method_;
};

}  // namespace ddprun::worker
