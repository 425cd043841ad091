// A text as numbers, and the batches of it that the workers train on. Any thread.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "examples/common/program.h"
#include "examples/readers/file_text.h"

namespace ddprun::examples {

class Characters {
 public:
  // Reads a file. Throws UsageError for one that is no text of ASCII.
  explicit Characters(const std::filesystem::path& path) {
    const auto text = value_of(
        "--data", [&] { return readers::value_or_throw(readers::read_file(path, kLongest)); });
    const std::vector<std::int64_t> all(text.begin(), text.end());
    if (std::ranges::any_of(all, [](std::int64_t one) { return one < 0; }))
      throw UsageError(fmt::format("--data: {}: bytes above 127, expected ASCII", path.string()));
    all_ = at::tensor(all, at::kLong);
  }

  std::int64_t size() const { return all_.size(0); }

  // Texts of a step, [batch/places, length + 1]: the part `place` of the batch of all workers. Its
  // texts begin anywhere. Equal arguments give equal texts.
  at::Tensor batch(int step, std::int64_t batch_size, std::int64_t length,
                   const Collective& places) const {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
    const auto starts = torch::randint(size() - length, {batch_size, 1}, at::kLong);
    const std::int64_t mine = batch_size / places.world_size();
    const auto first = starts.narrow(0, mine * places.rank(), mine);
    return all_.index({first + torch::arange(length + 1)});
  }

 private:
  static constexpr std::size_t kLongest = std::size_t{64} << 20;

  at::Tensor all_;
};

}  // namespace ddprun::examples
