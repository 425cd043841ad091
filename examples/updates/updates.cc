// updates: one model trained four ways. They are a parameter server, synchronous and asynchronous,
// a ring, and the engine's shared memory. It counts the bytes that ranks send, beside 2(N-1)K and
// 2K(N-1)/N for a gradient of K bytes. It counts stale updates, too. 2 to 6 workers.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/updates --curves /tmp/updates.csv
//   bench/plot curves /tmp/updates.csv updates.svg
//
// examples/pytorch/updates.py counts the same for server and ring.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "examples/common/program.h"
#include "examples/updates/async_training.h"
#include "examples/updates/timing.h"
#include "examples/updates/training.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::CountedLinks;
using examples::of_all;

struct Options {
  std::filesystem::path curves;
  std::string device;
  int steps = 200, hidden = 256, largest_kib = 8192, times = 15;
  double lr = 0.2;
};

void train_all_ways(examples::UpdatesRun& run) {
  Collective& ranks = run.ranks();
  const auto n = static_cast<std::uint64_t>(ranks.world_size());
  const std::uint64_t k = examples::Learner(0, run.hidden).size() * sizeof(float);
  const std::uint64_t through_server = 2 * (n - 1) * k, around_ring = 2 * k * (n - 1) / n;

  auto links = train_together(run, "parameter server, synchronous", examples::sum_at_server);
  say_counted(run, "rank 0 sends and receives 2(N-1)K",
              {of_all(ranks, links.sent + links.received)[0]}, through_server);
  examples::train_asynchronously(run, through_server);
  links = train_together(run, "ring", examples::sum_around_ring);
  say_counted(run, "each rank sends 2K(N-1)/N", of_all(ranks, links.sent), around_ring);
  say_counted(run, "each rank receives 2K(N-1)/N", of_all(ranks, links.received), around_ring);
  links = train_together(run, "shared memory", [&](CountedLinks&, std::span<float> gradient) {
    examples::sum_in_collective(ranks, gradient);
  });
  say_counted(run, "each rank sends nothing", of_all(ranks, links.sent), 0);
}

void train(Process& process, const Options& options) {
  const int ranks = process.collective->world_size();
  if (ranks < 2 || ranks > 6)
    throw examples::UsageError(fmt::format("{} workers; expected 2 to 6", ranks));
  if (options.largest_kib < 120)  // a line needs two sizes
    throw examples::UsageError(
        fmt::format("--largest={}: expected at least 120", options.largest_kib));
  examples::UpdatesRun run{process, options.steps, options.hidden, options.lr};
  train_all_ways(run);
  examples::say_times(run, options.largest_kib, options.times);
  if (options.curves.empty() || process.collective->rank() != 0) return;
  std::ofstream file(options.curves);
  file << fmt::format("{}\n", fmt::join(run.rows, "\n"));
  if (!file.flush())
    throw std::runtime_error(fmt::format("--curves: cannot write {}", options.curves.string()));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags(
      "Trains one model by a parameter server, around a ring and in shared memory.");
  flags.path("--curves", options.curves, "file", "write way, seconds and test loss as CSV (none)");
  flags.count("--steps", options.steps, "steps of each way (200)");
  flags.count("--hidden", options.hidden, "width of the net (256)");
  flags.count("--largest", options.largest_kib, "KiB of the largest sum that is timed (8192)");
  flags.count("--times", options.times, "how often each sum is timed; the least counts (15)");
  flags.rate("--lr", options.lr, "learning rate (0.2)");
  flags.word("--device", options.device, {"auto", "cpu"},
             "both are the CPU: the sums are loops over its memory");
  return examples::run_program(
      "updates", flags, argc, argv, [] {}, [&](Process& process) { train(process, options); });
}
