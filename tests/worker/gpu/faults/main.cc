// gpu_faults: provokes a fault that only a real GPU can show. Says whether the engine does what it
// should. A fault may leave the process in any state, so it has its own.
//
//   gpu_faults --list                          prints `NAME cpu|gpu|never WHAT` for each
//   gpu_faults NAME [--device=cpu|cuda]
//
// Exit code 0: the engine does what it should. 1: it does not, and the last line says what happens.
// 77: this machine cannot have the fault, and the last line says why.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "tests/worker/gpu/faults/fault.h"

namespace ddprun::worker {
namespace {

constexpr int kAbsent = 77;

// The devices that can have a fault.
enum class On { kCpuToo, kGpu, kNever };

struct Fault {
  const char* name;
  On on;
  const char* what;  // or why no program can provoke it
  void (*run)(Device device);
};

constexpr Fault kFaults[] = {
    {"capture_elsewhere", On::kGpu, "another thread captures while a sum is watched",
     capture_elsewhere},
    {"sum_in_a_capture", On::kGpu, "a sum is captured and replayed", sum_in_a_capture},
    {"waiter_behind_an_endless_kernel", On::kGpu, "the host is told within 3.1 s of 3",
     waiter_behind_an_endless_kernel},
    {"process_behind_an_endless_kernel", On::kGpu, "the process ends by itself",
     process_behind_an_endless_kernel},
    {"destroyed_behind_an_endless_kernel", On::kGpu, "the collective is destroyed within 12 s",
     destroyed_behind_an_endless_kernel},
    {"destroyed_before_its_graph", On::kGpu, "the collective goes before its graph",
     destroyed_before_its_graph},
    {"a_peer_never_comes", On::kCpuToo, "a peer dies before the first operation",
     a_peer_never_comes},
    {"stuck_driver", On::kNever, "no program can make the driver hang", nullptr},
    {"groups_fail_together", On::kCpuToo, "all groups of a process are told of one failure",
     groups_fail_together},
    {"memory_dropped_under_a_kernel", On::kGpu, "memory goes while a kernel reads it",
     memory_dropped_under_a_kernel},
    {"memory_dropped_in_another_thread", On::kCpuToo, "a second thread drops memory",
     memory_dropped_in_another_thread},
    {"another_device", On::kNever, "it needs two GPUs", nullptr},
    {"killed_rank", On::kCpuToo, "the other rank is told of a death within 2 s", killed_rank},
    {"captured_step", On::kGpu, "a captured step has the bits of an eager one", captured_step},
    {"captured_step_of_two", On::kGpu, "so has one that two ranks capture", captured_step_of_two},
};

const char* text_of(On on) {
  if (on == On::kNever) return "never";
  return on == On::kGpu ? "gpu" : "cpu";
}

void list() {
  for (const Fault& fault : kFaults)
    fmt::print("{} {} {}\n", fault.name, text_of(fault.on), fault.what);
}

int run(const Fault& fault, Device device) {
  try {
    if (fault.on == On::kNever) throw Absent(fault.what);
    if (device == Device::kCpu && fault.on == On::kGpu) throw Absent("it needs a GPU");
    fault.run(device);
    return 0;
  } catch (const Absent& absent) {
    fmt::print("{}\n", absent.what());
    return kAbsent;
  } catch (const std::exception& error) {
    fmt::print("{}\n", error.what());
    return 1;
  }
}

int main(std::string_view name, std::string_view device) {
  if (name == "--list") {
    list();
    return 0;
  }
  for (const Fault& fault : kFaults) {
    if (name == fault.name)
      return run(fault, device == "--device=cuda" ? Device::kCuda : Device::kCpu);
  }
  fmt::print(stderr, "gpu_faults: '{}' is no fault; --list prints them\n", name);
  return 2;
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: gpu_faults --list | NAME [--device=cpu|cuda]\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a process that hangs has told so far
  return ddprun::worker::main(argv[1], argc == 3 ? argv[2] : "--device=cpu");
}
