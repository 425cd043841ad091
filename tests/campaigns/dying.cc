// A worker that dies in a way of its own, without a word, for the campaigns: dying_worker WAY.
// Rank 1 dies; the others wait to be stopped. It has no launcher's library in it, so that nothing
// but the way itself is seen.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t kStep = std::size_t{1} << 20;
// A hog without a limit over it stops here, so that the host does not run out.
constexpr std::size_t kHogSteps = 512;
constexpr int kNotKilled = 3;  // the way did not lead to the end

// Behind a volatile, so that no compiler knows what comes.
void touch_nothing() {
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;
}

void touch_beyond_a_file() {
  char name[] = "/tmp/ddprun_bus_XXXXXX";
  const int file = ::mkstemp(name);
  if (file < 0) return;
  ::unlink(name);
  void* page = ::mmap(nullptr, kStep, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) *static_cast<volatile char*>(page) = 1;  // the file has no such page
}

void divide_by_zero() {
  volatile int zero = 0;
  volatile int result = 1 / zero;
  static_cast<void>(result);
  ::raise(SIGFPE);  // where the processor answers 0 instead
}

void take_all_memory() {
  std::vector<char*> taken;
  for (std::size_t step = 0; step < kHogSteps; ++step) {
    taken.push_back(static_cast<char*>(std::malloc(kStep)));
    if (taken.back() == nullptr) return;
    std::memset(taken.back(), 1, kStep);
  }
}

[[noreturn]] void wait_to_be_stopped() {
  for (;;) ::pause();
}

int die(std::string_view way) {
  if (way == "segv") touch_nothing();
  if (way == "abrt") std::abort();
  if (way == "bus") touch_beyond_a_file();
  if (way == "fpe") divide_by_zero();
  if (way == "hog") take_all_memory();
  if (way == "hang") wait_to_be_stopped();
  return way == "exit" ? 1 : kNotKilled;
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  if (argc != 2 || rank == nullptr) {
    std::fputs("usage: RANK=N dying_worker segv|abrt|bus|fpe|hog|hang|exit\n", stderr);
    return 2;
  }
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (std::string_view(rank) != "1") wait_to_be_stopped();
  return die(argv[1]);
}
