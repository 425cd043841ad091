// Notices a dying worker before the kernel announces it. The kernel gives back a process's memory
// first and tells its parent then. That takes 0.1 to 0.6 s for 0.5 to 6 GiB. Before both it
// releases the robust locks that the process holds (get_robust_list(2)). So a worker holds one, in
// its page (proto/worker_page.h), and a thread of ours waits for its release. Without futex_waitv
// (base/new_calls.h) nothing is noticed early. Loop's thread; owned by Standbys.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "agent/core/clock.h"
#include "base/loop.h"

namespace ddprun::agent {

// `noticed`: when the thread saw it; the loop may have been busy since.
using DyingHandler = std::function<void(int local_rank, Time noticed)>;

class DeathWatch {
 public:
  // `dying` is called on the loop's thread, once for each worker that is noticed, by its index in
  // `locks`. The worker's main thread is dying then, for whatever reason, or executes another
  // program.
  DeathWatch(asio::io_context& loop, DyingHandler dying);
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;
  DeathWatch(DeathWatch&&) = delete;
  DeathWatch& operator=(DeathWatch&&) = delete;
  ~DeathWatch() { stop(); }

  // Watches these locks (WorkerPage::lock_word()) until the first release. Those that nobody holds
  // now are left out. `locks` must stay in memory until stop().
  void start(std::vector<std::atomic<std::uint32_t>*> locks);
  // Nobody is told any more. Waits for the thread.
  void stop();

 private:
  void run(const std::vector<std::atomic<std::uint32_t>*>& locks, unsigned watch);

  asio::io_context& loop_;
  const DyingHandler dying_;
  std::thread thread_;
  std::atomic<std::uint32_t> stopped_{0};  // the thread waits for this word too
  unsigned watch_ = 0;                     // counts start(): what an older one noticed is not told
};

}  // namespace ddprun::agent
