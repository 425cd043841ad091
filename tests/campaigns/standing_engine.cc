// standing_engine KIND FILE: one rank of a program on the engine that stands still after some
// steps, as standing_worker.py. With engine_skips the last rank does not call the next sum. With
// engine_parts it calls a barrier instead.
#include <ddprun/collective.h>
#include <ddprun/process.h>
#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string_view>
#include <thread>

#include "proto/worker_page.h"

namespace {

using namespace ddprun;

void sum(Collective& ranks) {
  constexpr std::size_t kNumbers = 1000;
  static const auto memory = ranks.allocate(kNumbers * sizeof(float));
  ranks.wait(ranks.launch_sum({reinterpret_cast<float*>(memory.get()), kNumbers, Dtype::kFloat32}));
}

void say_last_step(int rank, const char* file) {
  using std::chrono::system_clock;
  const std::chrono::duration<double> time = system_clock::now().time_since_epoch();
  std::FILE* const told = std::fopen(file, "a");
  fmt::print(told, "{} {:.3f}\n", rank, time.count());
  std::fclose(told);
}

void run(std::string_view kind, const char* file) {
  constexpr int kSteps = 10;
  constexpr std::chrono::milliseconds kStep{200};
  Process process = bootstrap();
  Collective& ranks = *process.collective;
  for (int step = 0; step < kSteps; ++step) {
    sum(ranks);
    count_step(own_worker_page());
    std::this_thread::sleep_for(kStep);
  }
  say_last_step(process.world.rank, file);
  const bool is_guilty = process.world.rank == process.world.world_size - 1;
  if (is_guilty && kind == "engine_parts") ranks.barrier();
  if (is_guilty) std::this_thread::sleep_for(std::chrono::hours(1));
  sum(ranks);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: {} engine_skips|engine_parts FILE\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
