// A worker that meets the others of its job in the store, for the campaigns, and ends well. It must
// find them there and nobody else. Prints the port of its store; leaves a segment of shared memory
// behind, as a worker that dies does. greeting_worker [FIFO GATE]: says in FIFO that they have met.
// Then it waits until nobody holds a lock on the file GATE. Every wait has a limit.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "store/client.h"

namespace {

using ddprun::Result;
using ddprun::store::Client;

constexpr std::chrono::seconds kPatience{60};  // many jobs start at once

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    std::fprintf(stderr, "%s is not set\n", name);
    std::exit(2);
  }
  return value;
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "rank %s: %s\n", variable("RANK").c_str(), why.c_str());
  std::exit(1);
}

template <typename T>
T need(Result<T> result) {
  if (result.has_error()) give_up(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

void leave_shared_memory() {
  const std::string name =
      "/ddprun-" + variable("DDPRUN_JOB") + "-" + std::to_string(::getpid()) + "-left";
  const int segment = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (segment < 0 || ::ftruncate(segment, 1) != 0) give_up("make " + name);
  ::close(segment);
}

// Everybody leaves the job's name and reads everybody else's.
void meet(Client& store) {
  const std::string job = variable("TORCHELASTIC_RUN_ID");
  const int size = std::stoi(variable("WORLD_SIZE"));
  need(store.set("/member/" + variable("RANK"), job));
  for (int rank = 0; rank < size; ++rank) {
    const std::string theirs = need(store.get("/member/" + std::to_string(rank)));
    if (theirs != job) give_up("this is job " + job + ", but the store has one of " + theirs);
  }
  const std::int64_t count = need(store.add("/count", 1));
  if (count > size) give_up("member " + std::to_string(count) + " of " + std::to_string(size));
}

void wait_at(const char* fifo, const char* gate) {
  const int ready = ::open(fifo, O_WRONLY | O_CLOEXEC);
  const int lock = ::open(gate, O_RDONLY | O_CLOEXEC);
  ::alarm(static_cast<unsigned>(kPatience.count()));
  if (ready < 0 || lock < 0 || ::write(ready, "met\n", 4) != 4 || ::flock(lock, LOCK_SH) != 0)
    give_up("wait at the gate");
  ::alarm(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string port = variable("MASTER_PORT");
  auto store = need(Client::connect(variable("MASTER_ADDR"),
                                    static_cast<std::uint16_t>(std::stoi(port)), kPatience));
  leave_shared_memory();
  meet(store);
  if (argc == 3) wait_at(argv[1], argv[2]);
  std::printf("port %s\n", port.c_str());
  return 0;
}
