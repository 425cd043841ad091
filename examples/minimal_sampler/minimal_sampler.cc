// minimal_sampler: which of 24 samples each worker sees in two epochs. The lists are disjoint and
// together they are all 24; set_epoch() gives each epoch another order.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/minimal_sampler
//
// examples/pytorch/minimal_sampler.py prints the same.
#include <ddprun/data_loader.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <vector>

#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::say;

constexpr std::size_t kSamples = 24;

// A dataset without data: a batch is the list of its samples.
struct Numbers {
  std::vector<std::size_t> batch(const BatchRequest& request) const {
    return {request.indices.begin(), request.indices.end()};
  }
};

// Rank 0 prints the lines of all ranks, so that they come in order.
void print_in_order(const Process& process, const std::string& line) {
  const auto lines = process.collective->all_gather_bytes(std::as_bytes(std::span(line)));
  for (const auto& bytes : lines)
    say(process, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void run(Process& process) {
  const int rank = process.collective->rank();
  DistributedSampler sampler(kSamples, process.collective->world_size(), rank);
  const Numbers numbers;
  BatchLoader loader(numbers, sampler, 4);
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    std::vector<std::vector<std::size_t>> batches;
    for (const auto& batch : loader) batches.push_back(batch);
    print_in_order(process, fmt::format("epoch {} rank {}: {}", epoch, rank, batches));
  }
}

}  // namespace

int main(int argc, char** argv) {
  examples::Flags flags("Prints which of 24 samples each worker sees.");
  return examples::run_program(
      "minimal_sampler", flags, argc, argv, [] {}, run);
}
