// One direction of a connection between a node and the host. Messages arrive in their order, after
// some time. A blocked one holds everything back; once free again, it delivers after the pause in
// which TCP tries again. A closed one delivers nothing more.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "tests/sim/virtual_time.h"

namespace ddprun::sim {

class OneWay {
 public:
  OneWay(VirtualTime& time, int most_delay_ms) : time_(time), most_delay_ms_(most_delay_ms) {
    // A held message may hold the connection, and with it this.
    time_.at_end([state = std::weak_ptr(state_)] {
      if (const auto alive = state.lock()) std::exchange(alive->held, {});
    });
  }

  void send(std::function<void()> arrive) {
    free_at_ = std::max(free_at_, time_.now() + time_.up_to(most_delay_ms_));
    time_.at(free_at_, [state = state_, arrive = std::move(arrive)] {
      state->held.push_back(arrive);
      if (state->blocks == 0 && !state->retrying) state->flush();
    });
  }
  // May be called more than once; each needs its own unblock().
  void block() { ++state_->blocks; }
  void unblock() {
    if (--state_->blocks > 0 || state_->retrying) return;
    state_->retrying = true;
    // Retransmissions (RFC 6298): the pause is about as long as the outage was, at most.
    time_.after(time_.up_to(kMostRetryMs), [state = state_] {
      state->retrying = false;
      if (state->blocks == 0) state->flush();
    });
  }
  void close() { state_->closed = true; }

 private:
  static constexpr int kMostRetryMs = 1000;
  // Events that are set already outlive it.
  struct State {
    int blocks = 0;
    bool retrying = false;
    bool closed = false;
    std::deque<std::function<void()>> held;

    void flush() {
      while (!held.empty() && blocks == 0) {
        const auto arrive = std::move(held.front());
        held.pop_front();
        if (!closed) arrive();
      }
    }
  };

  VirtualTime& time_;
  const int most_delay_ms_;
  Time free_at_{};
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace ddprun::sim
