#include "worker/collective/core/parts.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "worker/collective/kernels/ring_pieces.h"

namespace ddprun::worker {
namespace {

TEST(Parts, AreTidiedSoThatEqualOwnersAreEqualParts) {
  const Flat flat{nullptr, 10, Dtype::kInt8};
  const std::vector<Part> given{{1, 6, 10}, {0, 2, 4}, {1, 3, 3}, {0, 4, 5}, {1, 5, 6}};
  const auto tidy = tidy_parts("all-gather", flat, given, 2);
  EXPECT_EQ(tidy, (std::vector<Part>{{0, 2, 5}, {1, 5, 10}}));
  EXPECT_EQ(hash_of(tidy), hash_of(tidy_parts("all-gather", flat, tidy, 2)));
  EXPECT_NE(hash_of(tidy), hash_of(std::vector<Part>{{1, 2, 5}, {0, 5, 10}}));
  EXPECT_NE(hash_of({}), 0U);
}

TEST(Parts, AreCutWhereAChunkEnds) {
  const auto chunks = ring_pieces(100, 1, 3);
  const auto pieces = ring_pieces(100, 1, 3, std::vector<Part>{{2, 10, 90}});
  std::size_t at = 10;
  for (const RingPiece& piece : pieces) {
    EXPECT_EQ(piece.owner, 2U);
    EXPECT_EQ(piece.bytes.begin, at);
    EXPECT_GE(piece.bytes.begin, chunks[piece.first].bytes.begin);
    EXPECT_LE(piece.bytes.end, chunks[piece.first].bytes.end);
    at = piece.bytes.end;
  }
  EXPECT_EQ(at, 90U);
  EXPECT_EQ(pieces.size(), 3U);
  EXPECT_TRUE(ring_pieces(0, 4, 3, {}).empty());
}

}  // namespace
}  // namespace ddprun::worker
