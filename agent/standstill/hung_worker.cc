#include "agent/standstill/hung_worker.h"

#include <utility>

#include "agent/core/clock.h"

namespace ddprun::agent {

HungWorker::HungWorker(asio::io_context& loop, Children& children)
    : children_(children), alarm_(loop, [this] { kill(); }) {}

void HungWorker::end(int local_rank, std::string why) {
  if (pid_ != 0) return;
  local_rank_ = local_rank;
  why_ = std::move(why);
  pid_ = children_.pid_of(local_rank);
  children_.abort_worker(local_rank, why_);
  alarm_.set(now() + kAbortLimit);
}

void HungWorker::forget() {
  pid_ = 0;
  alarm_.set(Time::max());
}

void HungWorker::kill() {
  if (pid_ != 0 && pid_ == children_.pid_of(local_rank_)) children_.end_worker(local_rank_, why_);
  pid_ = 0;
}

}  // namespace ddprun::agent
