// Operations over TCP without any socket. The bytes of each rank are put where the other one wants
// them. They go in pieces of random size and in random order.
#include "worker/collective/tcp/tcp_operation.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>

#include "worker/collective/kernels/bfloat16_kernels.h"
#include "worker/collective/kernels/copy_kernels.h"
#include "worker/collective/kernels/ring_order.h"

namespace ddprun::worker {
namespace {

using Operations = std::vector<std::unique_ptr<TcpOperation>>;
using Random = std::mt19937;

struct Pair {
  std::size_t from;
  std::size_t to;
};

OperationHead head_of(OperationKind kind, std::size_t bytes, Dtype dtype = Dtype::kUInt8,
                      int root = -1) {
  return {.number = 7,
          .sequence = 7,
          .kind = kind,
          .dtype = dtype,
          .reduction = Reduction::kSum,
          .root = root,
          .bytes = bytes};
}

std::vector<Pair> pairs_of(const Operations& ranks) {
  std::vector<Pair> pairs;
  for (std::size_t from = 0; from < ranks.size(); ++from)
    for (std::size_t to = 0; to < ranks.size(); ++to)
      if (from != to && ranks[from]->involves(to) && ranks[to]->involves(from))
        pairs.push_back({from, to});
  return pairs;
}

// Moves some bytes, and says how many.
std::size_t move_some(Operations& ranks, Pair pair, Random& random) {
  const auto ready = ranks[pair.from]->to_send(pair.to);
  const auto place = ranks[pair.to]->to_receive(pair.from);
  const std::size_t most = std::min(ready.size(), place.size());
  if (most == 0) return 0;
  // Odd numbers of bytes, too: an element may come in two pieces.
  const std::size_t bytes = random() % 3 == 0 ? most : 1 + random() % most;
  std::memcpy(place.data(), ready.data(), bytes);
  ranks[pair.from]->sent(pair.to, bytes);
  ranks[pair.to]->received(pair.from, bytes);
  return bytes;
}

bool all_done(const Operations& ranks, const std::vector<Pair>& pairs) {
  return std::ranges::all_of(pairs, [&](Pair pair) {
    return ranks[pair.from]->all_sent(pair.to) && ranks[pair.to]->all_received(pair.from);
  });
}

// Brings the operation of all ranks to its end. Fails where it stands still before.
void run(Operations& ranks, unsigned seed) {
  Random random(seed);
  auto pairs = pairs_of(ranks);
  for (const Pair pair : pairs)
    ASSERT_TRUE(ranks[pair.to]->meet(pair.from, ranks[pair.from]->head()));
  while (!all_done(ranks, pairs)) {
    std::ranges::shuffle(pairs, random);
    std::size_t moved = 0;
    for (const Pair pair : pairs)
      if (random() % 2 == 0) moved += move_some(ranks, pair, random);
    if (moved != 0) continue;
    for (const Pair pair : pairs) moved += move_some(ranks, pair, random);
    ASSERT_NE(moved, 0U) << "the ranks stand still";
  }
}

template <typename Number>
std::span<std::byte> bytes_of(std::vector<Number>& numbers) {
  return std::as_writable_bytes(std::span(numbers));
}

// Numbers whose sum depends on the order in which they are added. One multiplication makes one.
std::vector<float> numbers_of(std::size_t rank, std::size_t count) {
  auto state = static_cast<std::uint32_t>(rank + 1);
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    state = state * 1664525U + 1013904223U;
    number = static_cast<float>(static_cast<std::int32_t>(state)) / 2097152.0F;
  }
  return numbers;
}

// The formula of ring_order.h, element by element.
std::vector<float> ring_sum(std::size_t world, std::size_t count) {
  std::vector<std::vector<float>> all;
  for (std::size_t rank = 0; rank < world; ++rank) all.push_back(numbers_of(rank, count));
  std::vector<float> sums(count);
  for (std::size_t owner = 0; owner < world; ++owner) {
    const Chunk chunk = ring_chunk(count * sizeof(float), sizeof(float), world, owner);
    for (std::size_t i = chunk.begin / sizeof(float); i < chunk.end / sizeof(float); ++i) {
      float sum = all[(owner + world - 1) % world][i];
      for (std::size_t k = world - 1; k-- > 0;) sum = all[(owner + k) % world][i] + sum;
      sums[i] = sum;
    }
  }
  return sums;
}

TEST(TcpScratch, GivesTheSameMemoryAgain) {
  TcpScratch scratch;
  std::byte* first = nullptr;
  {
    const auto block = scratch.take(1000);
    first = block.data();
    EXPECT_NE(scratch.take(1000).data(), first);
  }
  EXPECT_EQ(scratch.take(900).data(), first);
  // Too small for this one.
  EXPECT_NE(scratch.take(5'000'000).data(), first);
}

class TcpOperations : public ::testing::TestWithParam<std::size_t> {};

// As a sum of the rounded elements.
TEST_P(TcpOperations, ReduceAsBFloat16RoundsElementsAndSums) {
  const std::size_t world = GetParam();
  for (const std::size_t count : {0, 1, 5, 4097, 1'600'001}) {
    std::vector<std::vector<float>> data;
    std::vector<std::vector<std::uint16_t>> rounded;
    TcpScratch scratch;
    Operations ranks;
    Operations ranks_of_rounded;
    const auto head = head_of(OperationKind::kSum, count * sizeof(std::uint16_t), Dtype::kBFloat16);
    for (std::size_t rank = 0; rank < world; ++rank) {
      data.push_back(numbers_of(rank, count));
      to_bfloat16(data[rank], rounded.emplace_back(count));
    }
    for (std::size_t rank = 0; rank < world; ++rank) {
      ranks.push_back(tcp_reduce_as_bfloat16(
          head, {rank, world}, {bytes_of(data[rank]), all_reduce_of(Reduction::kSum)}, scratch));
      ranks_of_rounded.push_back(tcp_reduce(
          head, {rank, world}, {bytes_of(rounded[rank]), all_reduce_of(Reduction::kSum)}, scratch));
    }
    run(ranks, static_cast<unsigned>(count));
    run(ranks_of_rounded, static_cast<unsigned>(count));
    std::vector<float> wanted(count);
    from_bfloat16(rounded[0], wanted);
    for (std::size_t rank = 0; rank < world; ++rank)
      EXPECT_EQ(data[rank], wanted) << count << " elements, rank " << rank;
  }
}

TEST_P(TcpOperations, ReduceIsGloosSumToTheBit) {
  const std::size_t world = GetParam();
  // The last one is more than all windows: 3 MiB a rank at two ranks.
  for (const std::size_t count : {0, 1, 5, 1000, 4097, 300'000, 1'600'001}) {
    std::vector<std::vector<float>> data;
    TcpScratch scratch;
    Operations ranks;
    for (std::size_t rank = 0; rank < world; ++rank) data.push_back(numbers_of(rank, count));
    for (std::size_t rank = 0; rank < world; ++rank) {
      const auto head = head_of(OperationKind::kSum, count * sizeof(float), Dtype::kFloat32);
      ranks.push_back(tcp_reduce(head, {rank, world},
                                 {bytes_of(data[rank]), all_reduce_of(Reduction::kSum)}, scratch));
    }
    run(ranks, static_cast<unsigned>(count));
    const auto wanted = ring_sum(world, count);
    for (std::size_t rank = 0; rank < world; ++rank)
      ASSERT_EQ(data[rank], wanted) << count << " elements on rank " << rank;
  }
}

// Each rank has many small parts and a large one, and another one has none.
TEST_P(TcpOperations, PartsAreReducedAndSharedAsTheWhole) {
  const std::size_t world = GetParam();
  for (const std::size_t count : {5, 4097, 1'600'001}) {
    std::vector<Part> parts;
    for (std::size_t i = 1; i < 40 && i < count; ++i)
      parts.push_back({static_cast<int>(i % (world - 1)), i - 1, i});
    if (count > 40) parts.push_back({0, 50, count - 3});
    std::vector<std::vector<float>> data;
    TcpScratch scratch;
    Operations scatters;
    Operations gathers;
    for (std::size_t rank = 0; rank < world; ++rank) data.push_back(numbers_of(rank, count));
    const auto before = data;
    for (std::size_t rank = 0; rank < world; ++rank) {
      const Flat flat{data[rank].data(), count, Dtype::kFloat32};
      const auto ranks = static_cast<int>(world);
      scatters.push_back(tcp_reduce(
          head_of(OperationKind::kReduceScatter, flat.bytes(), Dtype::kFloat32), {rank, world},
          {bytes_of(data[rank]), reduce_scatter_of(flat, parts, Reduction::kSum, ranks)}, scratch));
      gathers.push_back(tcp_along(
          head_of(OperationKind::kAllGather, flat.bytes(), Dtype::kFloat32),
          tcp_routes_of(flat, all_gather_of(flat, parts, ranks), static_cast<int>(rank), ranks)));
    }
    run(scatters, static_cast<unsigned>(count));
    EXPECT_EQ(data[world - 1], before[world - 1]) << "it owns nothing";
    run(gathers, static_cast<unsigned>(count));
    const auto sum = ring_sum(world, count);
    for (std::size_t rank = 0; rank < world; ++rank) {
      auto wanted = before[rank];
      for (const Part& part : parts)
        std::copy(sum.begin() + static_cast<std::ptrdiff_t>(part.begin),
                  sum.begin() + static_cast<std::ptrdiff_t>(part.end),
                  wanted.begin() + static_cast<std::ptrdiff_t>(part.begin));
      ASSERT_EQ(data[rank], wanted) << count << " elements on rank " << rank;
    }
  }
}

// Each gives many small pieces and a large one to the next, one of each to itself, and gets others.
TEST_P(TcpOperations, TransfersGoToTheirPlaces) {
  const std::size_t world = GetParam();
  const auto ranks = static_cast<int>(world);
  constexpr std::size_t kHalf = 1'000'000;
  std::vector<Transfer> transfers;
  for (int from = 0; from < ranks; ++from) {
    const int next = (from + 1) % ranks;
    for (std::size_t i = 0; i < 40; ++i)
      transfers.push_back({from, next, 3 * i, 3 * i + 2, kHalf + 5 * i});
    transfers.push_back({from, next, 200, kHalf - 1, kHalf + 1000});
    transfers.push_back({from, from, 7, 9, kHalf + 300});
  }
  std::vector<std::vector<float>> data;
  for (std::size_t rank = 0; rank < world; ++rank)
    data.push_back(numbers_of(rank, 2 * kHalf + 1000));
  const auto before = data;
  Operations all;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& numbers = data[static_cast<std::size_t>(rank)];
    const Flat flat{numbers.data(), numbers.size(), Dtype::kFloat32};
    for (const Transfer& one : transfers) {
      if (one.from == rank && one.to == rank) copy_elements(flat, one, bytes_of(numbers).data());
    }
    all.push_back(
        tcp_along(head_of(OperationKind::kAllToAll, flat.bytes(), Dtype::kFloat32),
                  tcp_routes_of(flat, all_to_all_of(flat, transfers, ranks), rank, ranks)));
  }
  run(all, static_cast<unsigned>(world));
  auto wanted = before;
  for (const Transfer& one : transfers) {
    const auto& from = before[static_cast<std::size_t>(one.from)];
    std::copy(
        from.begin() + static_cast<std::ptrdiff_t>(one.begin),
        from.begin() + static_cast<std::ptrdiff_t>(one.end),
        wanted[static_cast<std::size_t>(one.to)].begin() + static_cast<std::ptrdiff_t>(one.target));
  }
  for (std::size_t rank = 0; rank < world; ++rank) ASSERT_EQ(data[rank], wanted[rank]) << rank;
}

TEST_P(TcpOperations, BroadcastGivesRootsBytesToAll) {
  const std::size_t world = GetParam();
  for (std::size_t root = 0; root < world; ++root) {
    for (const std::size_t count : {0, 1, 100, 70'001, 3'000'000}) {
      std::vector<std::vector<char>> data(world, std::vector<char>(count));
      for (std::size_t i = 0; i < count; ++i) data[root][i] = static_cast<char>(i * 7 + root);
      const auto wanted = data[root];
      Operations ranks;
      for (std::size_t rank = 0; rank < world; ++rank) {
        const auto head =
            head_of(OperationKind::kBroadcast, count, Dtype::kUInt8, static_cast<int>(root));
        ranks.push_back(tcp_broadcast(head, {rank, world}, bytes_of(data[rank])));
      }
      run(ranks, static_cast<unsigned>(count + root));
      for (std::size_t rank = 0; rank < world; ++rank)
        ASSERT_EQ(data[rank], wanted) << count << " bytes from " << root << " on rank " << rank;
    }
  }
}

TEST_P(TcpOperations, GatherGivesAllPartsOfAnyLength) {
  const std::size_t world = GetParam();
  std::vector<std::vector<std::vector<std::byte>>> parts(world);
  Operations ranks;
  for (std::size_t rank = 0; rank < world; ++rank) {
    parts[rank].resize(world);
    parts[rank][rank].assign(rank * 1001, static_cast<std::byte>(rank));
    const auto head = head_of(OperationKind::kGather, rank * 1001);
    ranks.push_back(tcp_gather(head, {rank, world}, parts[rank]));
  }
  run(ranks, 3);
  for (std::size_t rank = 0; rank < world; ++rank)
    for (std::size_t other = 0; other < world; ++other)
      EXPECT_EQ(parts[rank][other],
                std::vector<std::byte>(other * 1001, static_cast<std::byte>(other)));
}

INSTANTIATE_TEST_SUITE_P(Worlds, TcpOperations, ::testing::Values(2, 3, 4, 5, 8));

TEST(TcpOperation, TransferGoesOneWay) {
  std::vector<char> given(5000, 'x');
  std::vector<char> taken(5000, ' ');
  Operations ranks;
  ranks.push_back(tcp_transfer(head_of(OperationKind::kSend, 5000), 1, bytes_of(given)));
  ranks.push_back(tcp_transfer(head_of(OperationKind::kReceive, 5000), 0, bytes_of(taken)));
  ranks.push_back(tcp_barrier(head_of(OperationKind::kBarrier, 0)));
  run(ranks, 1);
  EXPECT_EQ(taken, given);
  EXPECT_FALSE(ranks[0]->involves(2));
}

// Each unlike head is noticed by both sides.
TEST(TcpOperation, MeetsOnlyTheSameOperation) {
  const auto barrier = tcp_barrier(head_of(OperationKind::kBarrier, 0));
  EXPECT_TRUE(barrier->meet(1, head_of(OperationKind::kBarrier, 0)));
  EXPECT_FALSE(barrier->meet(1, head_of(OperationKind::kGather, 0)));
  auto later = head_of(OperationKind::kBarrier, 0);
  ++later.sequence;
  EXPECT_FALSE(barrier->meet(1, later));

  std::vector<float> data(4);
  TcpScratch scratch;
  const auto sum = tcp_reduce(head_of(OperationKind::kSum, 16, Dtype::kFloat32), {0, 2},
                              {bytes_of(data), all_reduce_of(Reduction::kSum)}, scratch);
  EXPECT_FALSE(sum->meet(1, head_of(OperationKind::kSum, 20, Dtype::kFloat32)));
  EXPECT_FALSE(sum->meet(1, head_of(OperationKind::kSum, 16, Dtype::kInt32)));
  auto least = head_of(OperationKind::kSum, 16, Dtype::kFloat32);
  least.reduction = Reduction::kMin;
  EXPECT_FALSE(sum->meet(1, least));
  auto in_parts = head_of(OperationKind::kSum, 16, Dtype::kFloat32);
  in_parts.parts = 1;
  EXPECT_FALSE(sum->meet(1, in_parts));

  std::vector<char> bytes(4);
  const auto send = tcp_transfer(head_of(OperationKind::kSend, 4), 1, bytes_of(bytes));
  EXPECT_TRUE(send->meet(1, head_of(OperationKind::kReceive, 4)));
  EXPECT_FALSE(send->meet(1, head_of(OperationKind::kReceive, 5)));
  EXPECT_FALSE(send->meet(1, head_of(OperationKind::kSend, 4)));
  const auto from = tcp_broadcast(head_of(OperationKind::kBroadcast, 4, Dtype::kUInt8, 0), {0, 2},
                                  bytes_of(bytes));
  EXPECT_FALSE(from->meet(1, head_of(OperationKind::kBroadcast, 4, Dtype::kUInt8, 1)));
}

// A peer cannot make us take more memory than a gather may have.
TEST(TcpOperation, GatherRefusesALongPart) {
  std::vector<std::vector<std::byte>> parts(2);
  const auto gather = tcp_gather(head_of(OperationKind::kGather, 0), {0, 2}, parts);
  EXPECT_FALSE(gather->meet(1, head_of(OperationKind::kGather, Collective::kGatherBytesMax + 1)));
}

TEST(TcpOperation, DescribesItself) {
  EXPECT_EQ(describe(head_of(OperationKind::kSum, 16, Dtype::kFloat32)),
            "sum of 16 bytes (operation 7) of type float32");
  EXPECT_EQ(describe(head_of(OperationKind::kBarrier, 0)), "barrier (operation 7)");
  EXPECT_EQ(describe(head_of(OperationKind::kBroadcast, 4, Dtype::kUInt8, 2)),
            "broadcast of 4 bytes (operation 7) from rank 2");
  OperationHead head = head_of(OperationKind::kReduce, 16, Dtype::kFloat32);
  head.reduction = Reduction::kMax;
  head.name = "loss";
  EXPECT_EQ(describe(head),
            "reduction of loss, 16 bytes (operation 7) of type float32 to the greatest");
}

}  // namespace
}  // namespace ddprun::worker
