#include "worker/startup/pipe_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <new>
#include <system_error>

#include "base/assert.h"
#include "base/blocking_wait.h"

namespace ddprun::worker {
namespace {

// Forked ranks come within milliseconds. A rank that waits for a minute waits for one that has
// died.
constexpr std::chrono::seconds kPatience{60};

// A pipe holds 64 KiB (pipe(7)). All copies of the announced text must fit into it before anybody
// reads: 99 of 512 bytes do.
constexpr int kRanksMax = 100;

void make_pipe(std::array<int, 2>& ends) {
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "make a pipe");
  }
}

// One write is enough: it fits into the pipe, so it neither blocks nor is cut.
Result<void> write_all(int fd, std::string_view bytes) {
  const auto written = ::write(fd, bytes.data(), bytes.size());
  if (written == static_cast<ssize_t>(bytes.size())) return boost::system::in_place_value;
  return Error(ErrorCode::kSystem, "write to the ranks' pipe failed");
}

// Several ranks read from the same pipe. All is written and read in units of `length`, so that
// nobody gets part of another's bytes.
Result<std::string> read_some(int fd, std::size_t length) {
  using Clock = std::chrono::steady_clock;
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  const auto end = Clock::now() + kPatience;
  BlockingWait wait;
  for (int found = 0; found != 1;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(wait.until(end) - Clock::now()).count();
    found = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (found < 0 && errno != EINTR) break;
    if (found != 1 && Clock::now() >= end)
      return Error(ErrorCode::kTimedOut, "the other ranks did not come within a minute");
    wait.tell([] { return "the other ranks that this program has forked"; });
  }
  std::string bytes(length, '\0');
  if (::read(fd, bytes.data(), length) == static_cast<ssize_t>(length)) return bytes;
  return Error(ErrorCode::kSystem, "read from the ranks' pipe failed");
}

}  // namespace

// Anonymous shared memory: it is the same in all processes after the fork.
struct PipeExchange::Shared {
  std::atomic<int> arrived{0};
  std::atomic<int> told{0};
  // By rank: what each gave to gather().
  using Text = std::array<char, kTextBytesMax>;
  std::array<Text, kRanksMax> texts{};
};

PipeExchange::PipeExchange(int ranks) : ranks_(ranks) {
  DDPRUN_ASSERT(ranks >= 1 && ranks <= kRanksMax);
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "map memory");
  shared_ = new (memory) Shared;
  make_pipe(gate_);
  make_pipe(told_);
  make_pipe(texts_);
}

PipeExchange::~PipeExchange() {
  for (const auto& pipe : {gate_, told_, texts_}) {
    for (const int fd : pipe) ::close(fd);
  }
  ::munmap(shared_, sizeof(Shared));
}

Result<void> PipeExchange::arrive() {
  // The last rank opens the gate for all: one byte for each.
  if (shared_->arrived.fetch_add(1) + 1 == ranks_) {
    auto opened = write_all(gate_[1], std::string(static_cast<std::size_t>(ranks_), 'g'));
    if (!opened) return opened;
  }
  const auto passed = read_some(gate_[0], 1);
  if (!passed) return passed.error();
  return boost::system::in_place_value;
}

Result<std::vector<std::string>> PipeExchange::gather(int rank, std::string_view text) {
  DDPRUN_ASSERT(text.size() <= kTextBytesMax && rank >= 0 && rank < ranks_);
  std::ranges::copy(text, shared_->texts.at(static_cast<std::size_t>(rank)).begin());
  if (shared_->told.fetch_add(1) + 1 == ranks_) {
    auto opened = write_all(told_[1], std::string(static_cast<std::size_t>(ranks_), 't'));
    if (!opened) return opened.error();
  }
  const auto passed = read_some(told_[0], 1);
  if (!passed) return passed.error();
  std::vector<std::string> texts;
  for (int other = 0; other < ranks_; ++other) {
    const auto& given = shared_->texts.at(static_cast<std::size_t>(other));
    texts.emplace_back(given.begin(), std::ranges::find(given, '\0'));
  }
  return texts;
}

Result<void> PipeExchange::announce(std::string_view text) {
  DDPRUN_ASSERT(text.size() <= kTextBytesMax && text.find('\0') == std::string_view::npos);
  std::string padded(text);
  padded.resize(kTextBytesMax, '\0');
  std::string all;
  for (int listener = 1; listener < ranks_; ++listener) all += padded;
  return write_all(texts_[1], all);
}

Result<std::string> PipeExchange::hear() {
  auto text = read_some(texts_[0], kTextBytesMax);
  if (text) text->resize(std::min(text->find('\0'), text->size()));
  return text;
}

}  // namespace ddprun::worker
