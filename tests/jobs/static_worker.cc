// A worker that needs nothing but the kernel: linked statically, for jobs in a folder without libc.
// Says which rank it is and whom it would meet.
#include <cstdio>
#include <cstdlib>

namespace {

const char* value(const char* name) {
  const char* found = std::getenv(name);
  return found != nullptr ? found : "";
}

}  // namespace

int main() {
  std::printf("rank %s of %s, master %s\n", value("RANK"), value("WORLD_SIZE"),
              value("MASTER_ADDR"));
}
