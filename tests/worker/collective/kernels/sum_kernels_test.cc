// The sum over ranks in Gloo's ring order, against the formula evaluated element by element.
#include "worker/collective/kernels/sum_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/kernels/ring_order.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kSizes[] = {1, 5, 1000, 4097, 300'000, 3'000'001};

TEST(RingOrder, CutsABufferIntoOrderedDisjointChunksThatCoverIt) {
  for (std::size_t world = 1; world <= 9; ++world) {
    for (const std::size_t elements : kSizes) {
      std::size_t end = 0;
      for (std::size_t index = 0; index < world; ++index) {
        const Chunk chunk = ring_chunk(elements * 4, 4, world, index);
        EXPECT_EQ(chunk.begin, end);
        EXPECT_EQ(chunk.begin % 4, 0U);
        end = chunk.end;
      }
      EXPECT_EQ(end, elements * 4);
    }
  }
}

// Worked by hand from the rule. B = 4,000 bytes, N = 3: 6 segments of 668 bytes, chunks of 1,336.
TEST(RingOrder, HasGloosBounds) {
  EXPECT_EQ(ring_chunk(4000, 4, 3, 0), (Chunk{0, 1336}));
  EXPECT_EQ(ring_chunk(4000, 4, 3, 1), (Chunk{1336, 2672}));
  EXPECT_EQ(ring_chunk(4000, 4, 3, 2), (Chunk{2672, 4000}));
}

// One element, two ranks: the first chunk has it all.
TEST(RingOrder, LeavesLateChunksOfATinyBufferEmpty) {
  EXPECT_EQ(ring_chunk(4, 4, 2, 0), (Chunk{0, 4}));
  EXPECT_EQ(ring_chunk(4, 4, 2, 1), (Chunk{4, 4}));
}

// Above 1 MiB a segment the count of segments grows: 25 MiB, N = 4: 28 segments.
TEST(RingOrder, BoundsTheSegmentOfLargeBuffers) {
  const std::size_t bytes = std::size_t{25} << 20;
  const std::size_t segment = (bytes + 27) / 28 / 4 * 4 + 4;
  EXPECT_EQ(ring_chunk(bytes, 4, 4, 0).end, 7 * segment);
}

template <typename T>
std::vector<std::vector<T>> random_ranks(std::size_t world, std::size_t count) {
  std::mt19937 random(static_cast<std::uint32_t>(count + world));
  std::vector<std::vector<T>> ranks(world, std::vector<T>(count));
  for (auto& rank : ranks) {
    for (T& value : rank) value = static_cast<T>(static_cast<std::int32_t>(random())) / T{1000};
  }
  return ranks;
}

// The formula of gloo's ring for one element of chunk `chunk`.
template <typename T>
T ring_sum(const std::vector<std::vector<T>>& ranks, std::size_t chunk, std::size_t i) {
  const std::size_t world = ranks.size();
  T sum = ranks[(chunk + world - 1) % world][i];
  for (std::size_t k = 2; k <= world; ++k) sum = ranks[(chunk + world - k) % world][i] + sum;
  return sum;
}

template <typename T>
void expect_ring_order(Dtype dtype, std::size_t world, std::size_t count) {
  const auto before = random_ranks<T>(world, count);
  auto ranks = before;
  for (std::size_t index = 0; index < world; ++index) {
    const Chunk chunk = ring_chunk(count * sizeof(T), sizeof(T), world, index);
    std::vector<std::byte*> buffers;
    for (std::size_t k = 0; k < world; ++k) {
      auto* data = reinterpret_cast<std::byte*>(ranks[(index + k) % world].data());
      buffers.push_back(data + chunk.begin);
    }
    sum_to_all(buffers, (chunk.end - chunk.begin) / sizeof(T), dtype, Rounding::kEach);
    for (std::size_t i = chunk.begin / sizeof(T); i < chunk.end / sizeof(T); ++i) {
      const T expected = ring_sum(before, index, i);
      // Bit for bit, the sign of a zero included.
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
      ASSERT_EQ(std::memcmp(&ranks[0][i], &expected, sizeof(T)), 0)
          << "N=" << world << " count=" << count << " element " << i;
    }
  }
  for (const auto& rank : ranks) ASSERT_EQ(rank, ranks[0]) << "all ranks get the same bits";
}

class SumKernels : public ::testing::TestWithParam<std::size_t> {};

TEST_P(SumKernels, AddFloatsInRingOrder) {
  for (const std::size_t count : kSizes)
    expect_ring_order<float>(Dtype::kFloat32, GetParam(), count);
}
TEST_P(SumKernels, AddDoublesInRingOrder) {
  for (const std::size_t count : kSizes) {
    expect_ring_order<double>(Dtype::kFloat64, GetParam(), count);
  }
}
TEST_P(SumKernels, AddIntegers) {
  for (const std::size_t count : kSizes) {
    expect_ring_order<std::int64_t>(Dtype::kInt64, GetParam(), count);
    expect_ring_order<std::int32_t>(Dtype::kInt32, GetParam(), std::min<std::size_t>(count, 4097));
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, SumKernels, ::testing::Range(std::size_t{2}, std::size_t{9}));

// A large sum is cut only at a cache line that all buffers have at the same element.
template <typename T>
void expect_sums_from(const std::vector<std::size_t>& offsets, Dtype dtype) {
  constexpr std::size_t kCount = 70'001;
  constexpr std::size_t kLine = 64;
  const auto before = random_ranks<T>(offsets.size(), kCount);
  for (const bool to_all : {true, false}) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::byte*> buffers;
    for (std::size_t rank = 0; rank < offsets.size(); ++rank) {
      auto& room = memory.emplace_back(kCount * sizeof(T) + 2 * kLine);
      const auto address = reinterpret_cast<std::uintptr_t>(room.data());
      buffers.push_back(room.data() + (kLine - address % kLine) % kLine + offsets[rank]);
      std::memcpy(buffers.back(), before[rank].data(), kCount * sizeof(T));
    }
    // The last buffer alone: the result may be any of them.
    const std::size_t first = to_all ? 0 : offsets.size() - 1;
    if (to_all)
      sum_to_all(buffers, kCount, dtype, Rounding::kEach);
    else
      sum_to_one(buffers.back(), buffers, kCount, dtype, Rounding::kEach);
    for (std::size_t rank = first; rank < offsets.size(); ++rank) {
      for (std::size_t i = 0; i < kCount; ++i) {
        T got{};
        std::memcpy(&got, buffers[rank] + i * sizeof(T), sizeof(T));
        ASSERT_EQ(got, ring_sum(before, 0, i)) << "rank " << rank << ", element " << i;
      }
    }
  }
}

// The other buffers stay as they are, and the bits are those of all.
TEST(ReduceKernels, StoreTheSameResultToOneBuffer) {
  constexpr std::size_t kCount = 5000;
  for (const Reduction reduction : {Reduction::kSum, Reduction::kWideSum, Reduction::kAverage,
                                    Reduction::kMin, Reduction::kMax}) {
    const auto before = random_ranks<float>(3, kCount);
    const auto pointers = [](std::vector<std::vector<float>>& ranks) {
      std::vector<std::byte*> buffers;
      for (auto& rank : ranks) buffers.push_back(reinterpret_cast<std::byte*>(rank.data()));
      return buffers;
    };
    auto all = before;
    reduce_to_all(pointers(all), kCount, Dtype::kFloat32, reduction);
    for (std::size_t one = 0; one < 3; ++one) {
      auto ranks = before;
      const auto buffers = pointers(ranks);
      reduce_to_one(buffers[one], buffers, kCount, Dtype::kFloat32, reduction);
      for (std::size_t rank = 0; rank < 3; ++rank)
        EXPECT_EQ(ranks[rank], rank == one ? all[0] : before[rank])
            << "reduction " << static_cast<int>(reduction) << " to " << one << ", rank " << rank;
    }
  }
}

TEST(SumKernels, AddLargeBuffersThatBeginAnywhere) {
  for (const std::size_t offset : {0U, 8U, 24U, 56U}) {
    expect_sums_from<float>({offset, offset}, Dtype::kFloat32);
    expect_sums_from<double>({offset, offset, offset}, Dtype::kFloat64);
    expect_sums_from<std::int32_t>({offset, offset, offset}, Dtype::kInt32);
  }
  expect_sums_from<float>({4, 4, 4}, Dtype::kFloat32);
  expect_sums_from<float>({60, 60}, Dtype::kFloat32);
  expect_sums_from<float>({4, 8, 60}, Dtype::kFloat32);
}

// If this order did not show in the bits, the tests above could not fail for a wrong one.
TEST(SumKernels, OrderShowsInTheBitsOfFloats) {
  const auto ranks = random_ranks<float>(3, 4097);
  std::size_t different = 0;
  for (std::size_t i = 0; i < 4097; ++i) {
    if (ring_sum(ranks, 0, i) != ring_sum(ranks, 1, i)) ++different;
  }
  EXPECT_GT(different, 100U);
}

TEST(SumKernels, WrapIntegersWithoutUndefinedBehaviour) {
  std::int32_t a = std::numeric_limits<std::int32_t>::max();
  std::int32_t b = 1;
  std::byte* const buffers[] = {reinterpret_cast<std::byte*>(&a), reinterpret_cast<std::byte*>(&b)};
  sum_to_all(buffers, 1, Dtype::kInt32, Rounding::kEach);
  EXPECT_EQ(a, std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(b, a);
}

void expect_rounding(Dtype dtype, Rounding rounding, float (*widen)(std::uint16_t),
                     std::uint16_t (*round)(float)) {
  std::size_t different = 0;  // from the other rounding
  std::mt19937 random(3);
  for (const std::size_t world : {2U, 3U, 5U, 8U}) {
    std::vector<std::vector<std::uint16_t>> ranks(world, std::vector<std::uint16_t>(3000));
    for (auto& rank : ranks) {
      for (auto& value : rank) value = round(static_cast<float>(random() % 4096) / 64.0F - 30.0F);
    }
    const auto before = ranks;
    std::vector<std::byte*> buffers;
    for (auto& rank : ranks) buffers.push_back(reinterpret_cast<std::byte*>(rank.data()));
    sum_to_all(buffers, 3000, dtype, rounding);
    for (std::size_t i = 0; i < 3000; ++i) {
      float sum = widen(before[world - 1][i]);
      float rounded = sum;
      for (std::size_t k = world - 1; k-- > 0;) {
        sum = widen(before[k][i]) + sum;
        rounded = widen(round(widen(before[k][i]) + rounded));
      }
      if (round(sum) != round(rounded)) ++different;
      ASSERT_EQ(ranks[0][i], round(rounding == Rounding::kOnce ? sum : rounded))
          << "N=" << world << " element " << i;
      ASSERT_EQ(ranks[world - 1][i], ranks[0][i]);
    }
  }
  EXPECT_GT(different, 100U);
}

TEST(SumKernels, RoundSumsOfHalvesAsAsked) {
  for (const Rounding rounding : {Rounding::kEach, Rounding::kOnce})
    expect_rounding(Dtype::kFloat16, rounding, widen_half, round_to_half);
}
TEST(SumKernels, RoundSumsOfBfloat16AsAsked) {
  for (const Rounding rounding : {Rounding::kEach, Rounding::kOnce})
    expect_rounding(Dtype::kBFloat16, rounding, widen_bfloat16, round_to_bfloat16);
}

// FNV-1a of the bytes.
std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t hash) {
  for (const std::byte one : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(one)) * 0x100000001b3U;
  return hash;
}

// Reduces three ranks' numbers of a type in each way.
template <typename T>
std::uint64_t hash_of_reductions(Dtype dtype, const std::vector<std::vector<T>>& before,
                                 std::uint64_t hash) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kWideSum, Reduction::kAverage,
                                    Reduction::kMin, Reduction::kMax}) {
    auto ranks = before;
    std::vector<std::byte*> buffers;
    for (auto& rank : ranks) buffers.push_back(reinterpret_cast<std::byte*>(rank.data()));
    reduce_to_all(buffers, ranks[0].size(), dtype, reduction);
    hash = hash_of(std::as_bytes(std::span(ranks[0])), hash);
  }
  return hash;
}

// The value is that of x86-64 with AVX-512, AVX2 and without. arm64 has it, too.
TEST(ReduceKernels, HaveTheSameBitsOnEachArchitecture) {
  constexpr std::size_t kCount = 4097;
  std::uint64_t hash = 0xcbf29ce484222325U;
  hash = hash_of_reductions(Dtype::kFloat32, random_ranks<float>(3, kCount), hash);
  hash = hash_of_reductions(Dtype::kFloat64, random_ranks<double>(3, kCount), hash);
  std::vector<std::vector<std::uint16_t>> halves(3, std::vector<std::uint16_t>(kCount));
  std::vector<std::vector<std::uint16_t>> bfloats = halves;
  const auto floats = random_ranks<float>(3, kCount);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t i = 0; i < kCount; ++i) {
      halves[rank][i] = round_to_half(floats[rank][i] / 256);
      bfloats[rank][i] = round_to_bfloat16(floats[rank][i]);
    }
  }
  hash = hash_of_reductions(Dtype::kFloat16, halves, hash);
  hash = hash_of_reductions(Dtype::kBFloat16, bfloats, hash);
  EXPECT_EQ(hash, 0xa0d8141a3d32d4b7U) << std::hex << hash;
}

TEST(HalfFloats, ComeBackUnchangedFromFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (!std::isnan(widen_half(half))) {
      ASSERT_EQ(round_to_half(widen_half(half)), half) << bits;
    }
    if (!std::isnan(widen_bfloat16(half))) {
      ASSERT_EQ(round_to_bfloat16(widen_bfloat16(half)), half) << bits;
    }
  }
}

TEST(HalfFloats, HaveTheValuesOfTheStandard) {
  EXPECT_EQ(widen_half(0x3c00), 1.0F);
  EXPECT_EQ(widen_half(0xc000), -2.0F);
  EXPECT_EQ(widen_half(0x7bff), 65504.0F);
  EXPECT_EQ(widen_half(0x0001), 0x1.0p-24F);
  EXPECT_TRUE(std::isinf(widen_half(0x7c00)));
  EXPECT_TRUE(std::isnan(widen_half(0x7e00)));
  EXPECT_EQ(widen_bfloat16(0x3f80), 1.0F);
}

TEST(HalfFloats, RoundToNearestEven) {
  EXPECT_EQ(round_to_half(1.0F + 0x1.0p-11F), 0x3c00);               // half way: to even
  EXPECT_EQ(round_to_half(1.0F + 3 * 0x1.0p-11F), 0x3c02);           // half way: to even
  EXPECT_EQ(round_to_half(1.0F + 0x1.0p-11F + 0x1.0p-20F), 0x3c01);  // above half way
  EXPECT_EQ(round_to_half(65519.0F), 0x7bff);
  EXPECT_EQ(round_to_half(65520.0F), 0x7c00);  // beyond the largest: infinity
  EXPECT_EQ(round_to_half(0x1.0p-25F), 0x0000);
  EXPECT_EQ(round_to_half(0x1.8p-25F), 0x0001);
  EXPECT_EQ(round_to_half(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_TRUE(std::isnan(widen_half(round_to_half(std::nanf("")))));
  EXPECT_EQ(round_to_bfloat16(1.0F + 0x1.0p-8F), 0x3f80);
  EXPECT_EQ(round_to_bfloat16(1.0F + 3 * 0x1.0p-8F), 0x3f82);
  EXPECT_TRUE(std::isnan(widen_bfloat16(round_to_bfloat16(std::nanf("")))));
}

}  // namespace
}  // namespace ddprun::worker
