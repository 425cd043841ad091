// The stacks of this node's workers, taken when an operator asks. It asks the witness of each
// worker, and waits for all answers, or until kAnswerLimit. /proc tells of those that gave none.
// Nothing stops or signals a worker. Loop's thread; owned by NodeOperators.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/processes/children.h"
#include "agent/standby/worker_pages.h"
#include "agent/standstill/witness_answer.h"
#include "base/alarm.h"
#include "base/loop.h"
#include "rendezvous/core/rank_stack.h"

namespace ddprun::agent {

class Stacks {
 public:
  // A witness on a busy host may need some seconds. One whose interpreter is held never answers.
  static constexpr std::chrono::seconds kAnswerLimit{4};

  struct Workers {
    std::function<const WorkerPages*()> pages;  // null: there are none
    std::function<std::string()> folder;        // the job's own, where witnesses write
  };
  using Done = std::function<void(std::vector<rendezvous::RankStack>)>;

  // `children` must outlive this.
  Stacks(asio::io_context& loop, const Children& children, Workers workers);
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  Stacks(Stacks&&) = delete;
  Stacks& operator=(Stacks&&) = delete;
  ~Stacks() = default;

  // The workers of this node: so many, of which local rank 0 has `first_rank`.
  struct Ranks {
    int workers = 0;
    int first_rank = 0;
  };
  // Calls `done` with the stacks of these global ranks; none: of all. They must be of this node.
  // A caller that comes while others wait is answered with them.
  void take(Ranks node, std::vector<int> wanted, Done done);

  // The workers of the attempt are to end: all who wait get what is there.
  void attempt_ends() { finish(); }

 private:
  struct Question {
    std::uint64_t number = 0;  // 0: its witness is not asked, or there is none
    std::optional<WitnessAnswer> answer{};
  };

  struct Waiting {
    std::vector<int> wanted;
    Done done;
  };

  void watch_folder();
  void await_answer();
  void read_answers();
  bool has_all() const;
  void finish();
  rendezvous::RankStack stack_of(int local_rank) const;

  asio::io_context& loop_;
  const Children& children_;
  const Workers workers_;
  std::vector<Question> questions_;  // by local rank
  int first_rank_ = 0;
  std::vector<Waiting> waiting_;                            // empty: none are taken now
  std::shared_ptr<asio::posix::stream_descriptor> folder_;  // inotify(7); null: it cannot be had
  std::string events_;
  Alarm alarm_;
};

// Why a worker has given no stack. `asked`: its witness was, and has not answered in time.
// `program`: the file name of its program. Pure.
std::string why_no_stack(bool asked, const std::string& program);

}  // namespace ddprun::agent
