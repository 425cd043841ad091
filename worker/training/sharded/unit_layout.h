// The places of a unit's parameters in its flat parameter, and the owner of each part. Pure
// arithmetic, in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddprun::worker {

// Elements [begin, end) of a flat parameter.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t length() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

class UnitLayout {
 public:
  // Each parameter and each shard begins at a multiple of `alignment`. `counts` has one parameter
  // or more. `equal_shards`: a gap at the end makes the last shards as long as the others.
  UnitLayout(std::span<const std::int64_t> counts, std::int64_t alignment, int ranks,
             bool equal_shards = false);

  std::int64_t length() const { return length_; }
  const std::vector<FlatRange>& parameters() const { return parameters_; }
  // Between parameters, and behind the last one: nobody's elements, which are zero.
  const std::vector<FlatRange>& gaps() const { return gaps_; }
  // By rank. Equally long, but for the last ones, which may be shorter or empty.
  const std::vector<FlatRange>& shards() const { return shards_; }

 private:
  std::int64_t length_ = 0;
  std::vector<FlatRange> parameters_;
  std::vector<FlatRange> gaps_;
  std::vector<FlatRange> shards_;
};

}  // namespace ddprun::worker
