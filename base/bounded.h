// Asks what may never answer (a resolver, a dead file server, a driver) on a thread of its own. The
// thread of a question that took too long is left behind. Only the end of this process ends a
// system call that hangs. So a question owns all that it touches. Not for a process that forks an
// agent later (launcher/scheduler/run_child.h).
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace ddprun {

template <typename Answer>
class BoundedQuestion {
 public:
  explicit BoundedQuestion(std::function<Answer()> question) {
    auto task = std::make_shared<std::packaged_task<Answer()>>(std::move(question));
    answer_ = task->get_future();
    std::thread([task] { (*task)(); }).detach();
  }

  // Nothing if there is no answer at `end`.
  std::optional<Answer> until(std::chrono::steady_clock::time_point end) {
    if (answer_.wait_until(end) != std::future_status::ready) return std::nullopt;
    return answer_.get();
  }

 private:
  std::future<Answer> answer_;
};

}  // namespace ddprun
