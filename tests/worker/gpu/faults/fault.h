// The faults that gpu_faults provokes on a real GPU, each in a process of its own. A case returns
// if the engine does what it should. It throws Bad if not, and Absent if this machine cannot have
// the fault. scripts/gpu_kit runs them; main.cc has the list.
#pragma once

#include <ddprun/collective.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::worker {

class Bad : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Absent : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws Bad with the text if `good` does not hold.
inline void require(bool good, const std::string& text) {
  if (!good) throw Bad(text);
}

using FaultClock = std::chrono::steady_clock;

inline double seconds_since(FaultClock::time_point start) {
  return std::chrono::duration<double>(FaultClock::now() - start).count();
}

// A world of one on this device.
std::unique_ptr<Collective> joined_alone(Device device, std::chrono::milliseconds timeout);

// Two processes with a rank each. On a GPU NCCL takes them for two hosts. Each runs `body`, whose
// errors end it with exit code 1 and are printed. The call returns their wait statuses. It must
// come before this process has used CUDA.
struct TwoRanks {
  Device device = Device::kCpu;
  std::chrono::milliseconds timeout{10'000};  // of each wait of the collective
};
using RankBody = std::function<void(Collective&)>;
std::vector<int> run_two(const TwoRanks& how, const RankBody& body);

// Runs `body` in a child. It calls `begun` when the fault begins. Returns the seconds from then to
// the child's end. Throws Bad if the fault never began, or if the child lives longer than the
// limit, start included. It is killed then.
using ChildBody = std::function<void(const std::function<void()>& begun)>;
double life_of_child(std::chrono::milliseconds limit, const ChildBody& body);

// Faults of streams, graphs and memory (streams.cc): on a GPU alone, in a world of one.
void capture_elsewhere(Device device);
void sum_in_a_capture(Device device);
void captured_step(Device device);
void captured_step_of_two(Device device);
void waiter_behind_an_endless_kernel(Device device);
void process_behind_an_endless_kernel(Device device);
void destroyed_behind_an_endless_kernel(Device device);
void destroyed_before_its_graph(Device device);
void memory_dropped_under_a_kernel(Device device);

// Faults of ranks (ranks.cc).
void a_peer_never_comes(Device device);
void killed_rank(Device device);
void groups_fail_together(Device device);
void memory_dropped_in_another_thread(Device device);

}  // namespace ddprun::worker
