// The nodes of bench/daemon: many sessions with one ddprund, in one process.
//
//   bench-daemon form PORT JOBS NODES     JOBS jobs of NODES nodes join at once, and succeed
//   bench-daemon serial PORT JOBS LANES   JOBS jobs of one node, one after another in each lane
//   bench-daemon rounds PORT NODES ROUNDS a worker fails again and again: each round's time
//   bench-daemon flood PORT NODES         the same without a pause, until its stdin is closed
//   bench-daemon pass PORT JOBS NODES     jobs that wait for a node, until one is refused
//
// Each prints lines of `name value`, times in milliseconds, the last one the text of the refusal.
// bench/daemon reads them.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/net/descriptors.h"
#include "bench/program.h"
#include "rendezvous/grpc/client.h"

namespace ddprun {
namespace {

using bench::Clock;
using bench::milliseconds_since;
using bench::run_until_input_ends;
using bench::tell;
using rendezvous::HostMessage;

constexpr int kManyRestarts = 1'000'000'000;
constexpr int kWarmUpRounds = 10;

// One job and all of its nodes.
class Job {
 public:
  struct Events {
    std::function<void()> formed;
    std::function<void()> ended;
    std::function<void(const std::string& why)> refused{};  // else the program ends
  };

  // `missing`: nodes that it waits for and that never come.
  Job(boost::asio::io_context& loop, std::uint16_t port, std::string id, int nodes, Events events,
      int missing = 0)
      : loop_(loop),
        id_(std::move(id)),
        nodes_(nodes),
        missing_(missing),
        events_(std::move(events)) {
    for (int node = 0; node < nodes; ++node)
      sessions_.push_back(rendezvous::open_remote_session(
          loop,
          {.host = "127.0.0.1", .port = port, .token = {"a token of this bench"}, .rdzv_id = id_},
          [this, node](const HostMessage& message) { on_message(node, message); }));
  }

  void join_all() {
    for (int node = 0; node < nodes_; ++node) join(node);
  }
  void fail() {
    sessions_.front()->report_failure(round_, {.hostname = "host-0", .message = "bench"});
  }
  void succeed() {
    for (const auto& session : sessions_) session->report_success(round_);
  }

 private:
  void join(int node) {
    sessions_[static_cast<std::size_t>(node)]->join({.node_id = fmt::format("{}-{}", id_, node),
                                                     .hostname = fmt::format("host-{}", node),
                                                     .rank_is_preferred = true,
                                                     .store_port = 1,
                                                     .max_restarts = kManyRestarts,
                                                     .backoff = std::chrono::milliseconds(1),
                                                     .backoff_max = std::chrono::milliseconds(1),
                                                     .min_nodes = nodes_ + missing_,
                                                     .max_nodes = nodes_ + missing_});
  }
  void on_message(int node, const HostMessage& message) {
    if (const auto* published = std::get_if<rendezvous::RoundPublished>(&message)) {
      round_ = published->round.number;
      if (++published_ < nodes_) return;
      published_ = 0;
      events_.formed();
    } else if (std::holds_alternative<rendezvous::RoundBroken>(message)) {
      join(node);
    } else if (std::holds_alternative<rendezvous::JobEnded>(message)) {
      if (++ended_ == nodes_) boost::asio::post(loop_, events_.ended);
    } else {
      const auto* lost = std::get_if<rendezvous::SessionLost>(&message);
      const std::string why = lost != nullptr ? lost->error.message() : "drained";
      if (events_.refused) return events_.refused(why);
      fmt::print(stderr, "a node of {} was lost: {}\n", id_, why);
      std::_Exit(1);
    }
  }

  boost::asio::io_context& loop_;
  const std::string id_;
  const int nodes_;
  const int missing_;
  const Events events_;
  int published_ = 0;
  int ended_ = 0;
  std::int64_t round_ = 0;
  std::vector<std::unique_ptr<rendezvous::Session>> sessions_;
};

int form(std::uint16_t port, int count, int nodes) {
  boost::asio::io_context loop(1);
  std::vector<std::unique_ptr<Job>> jobs;
  int formed = 0;
  int ended = 0;
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    jobs.push_back(std::make_unique<Job>(loop, port, fmt::format("job-{}", i), nodes,
                                         Job::Events{.formed =
                                                         [&] {
                                                           if (++formed < count) return;
                                                           tell("all_formed_ms",
                                                                milliseconds_since(start));
                                                           for (const auto& job : jobs)
                                                             job->succeed();
                                                         },
                                                     .ended =
                                                         [&] {
                                                           if (++ended == count) loop.stop();
                                                         }}));
    jobs.back()->join_all();
  }
  loop.run();
  tell("all_ended_ms", milliseconds_since(start));
  return 0;
}

// Jobs of one node; each lane has one at a time.
class Lanes {
 public:
  Lanes(boost::asio::io_context& loop, std::uint16_t port, int jobs, int lanes)
      : loop_(loop), port_(port), jobs_(jobs), running_(static_cast<std::size_t>(lanes)) {
    for (std::size_t lane = 0; lane < running_.size(); ++lane) next(lane);
  }

 private:
  void next(std::size_t lane) {
    running_[lane].reset();
    if (ended_ == jobs_) return loop_.stop();
    if (begun_ == jobs_) return;
    running_[lane] =
        std::make_unique<Job>(loop_, port_, fmt::format("serial-{}-{}", ::getpid(), begun_++), 1,
                              Job::Events{.formed = [this, lane] { running_[lane]->succeed(); },
                                          .ended =
                                              [this, lane] {
                                                ++ended_;
                                                next(lane);
                                              }});
    running_[lane]->join_all();
  }

  boost::asio::io_context& loop_;
  const std::uint16_t port_;
  const int jobs_;
  int begun_ = 0;
  int ended_ = 0;
  std::vector<std::unique_ptr<Job>> running_;
};

int serial(std::uint16_t port, int count, int lanes) {
  boost::asio::io_context loop(1);
  const auto start = Clock::now();
  const Lanes all(loop, port, count, lanes);
  loop.run();
  tell("jobs_ms", milliseconds_since(start));
  return 0;
}

// Goes on without end if nothing is refused: bench/daemon has a limit.
int pass(std::uint16_t port, int count, int nodes) {
  boost::asio::io_context loop(1);
  std::vector<std::unique_ptr<Job>> jobs;
  for (int i = 0; i < count; ++i) {
    jobs.push_back(std::make_unique<Job>(loop, port, fmt::format("pass-{}", i), nodes,
                                         Job::Events{.formed = [] {},
                                                     .ended = [] {},
                                                     .refused =
                                                         [&](const std::string& why) {
                                                           fmt::print("refused {}\n", why);
                                                           loop.stop();
                                                         }},
                                         1));
    jobs.back()->join_all();
  }
  loop.run();
  return 0;
}

int rounds(std::uint16_t port, int nodes, int count) {
  boost::asio::io_context loop(1);
  std::vector<double> times;
  auto start = Clock::now();
  std::unique_ptr<Job> job;
  int formed = 0;
  job = std::make_unique<Job>(loop, port, fmt::format("rounds-{}", ::getpid()), nodes,
                              Job::Events{.formed =
                                              [&] {
                                                if (formed++ > kWarmUpRounds)
                                                  times.push_back(milliseconds_since(start));
                                                if (static_cast<int>(times.size()) == count)
                                                  return loop.stop();
                                                start = Clock::now();
                                                job->fail();
                                              },
                                          .ended = [] {}});
  job->join_all();
  loop.run();
  std::ranges::sort(times);
  tell("median_ms", times[times.size() / 2]);
  tell("p99_ms", times[times.size() * 99 / 100]);
  return 0;
}

int flood(std::uint16_t port, int nodes) {
  boost::asio::io_context loop(1);
  std::unique_ptr<Job> job;
  double count = 0;
  job = std::make_unique<Job>(loop, port, fmt::format("flood-{}", ::getpid()), nodes,
                              Job::Events{.formed =
                                              [&] {
                                                if (count++ == 0) tell("floods", 1);
                                                job->fail();
                                              },
                                          .ended = [] {}});
  job->join_all();
  run_until_input_ends(loop);
  tell("rounds", count);
  return 0;
}

int number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int run(const std::vector<std::string_view>& words) {
  const std::string_view mode = words.size() > 2 ? words[1] : "";
  const auto port = static_cast<std::uint16_t>(words.size() > 2 ? number(words[2]) : 0);
  const auto at = [&](std::size_t i) { return i < words.size() ? number(words[i]) : 0; };
  if (mode == "form" && words.size() == 5) return form(port, at(3), at(4));
  if (mode == "serial" && words.size() == 5) return serial(port, at(3), at(4));
  if (mode == "rounds" && words.size() == 5) return rounds(port, at(3), at(4));
  if (mode == "flood" && words.size() == 4) return flood(port, at(3));
  if (mode == "pass" && words.size() == 5) return pass(port, at(3), at(4));
  fmt::print(
      stderr,
      "expected: form PORT JOBS NODES, serial PORT JOBS LANES, rounds PORT NODES ROUNDS, flood "
      "PORT "
      "NODES or pass PORT JOBS NODES\n");
  return 2;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  ddprun::raise_descriptor_limit();
  return ddprun::run({argv, argv + argc});
}
