// The two collectives over parts, on ranks of each kind: compared bit for bit with an all-reduce of
// the whole.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/collective/kinds_of_ranks.h"
#include "worker/collective/kernels/sum_kernels.h"

namespace ddprun::worker {
namespace {

class Parts : public KindsOfRanks {};

constexpr std::size_t kMostElements = 70'001;

// Numbers whose sum depends on the order.
void fill(std::byte* data, std::size_t count, Dtype dtype, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::uniform_real_distribution<float> any(-100, 100);
  for (std::size_t i = 0; i < count; ++i) {
    const float real = any(random);
    const double wide = static_cast<double>(real) / 3;
    const std::uint16_t half =
        dtype == Dtype::kFloat16 ? round_to_half(real) : round_to_bfloat16(real);
    const auto whole = static_cast<std::int64_t>(real);
    const void* from = &whole;
    if (dtype == Dtype::kFloat32) from = &real;
    if (dtype == Dtype::kFloat64) from = &wide;
    if (dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16) from = &half;
    std::memcpy(data + i * size_of(dtype), from, size_of(dtype));
  }
}

std::vector<Part> even_parts(int ranks, std::size_t count) {
  const auto world = static_cast<std::size_t>(ranks);
  std::vector<Part> parts;
  for (std::size_t rank = 0; rank < world; ++rank)
    parts.push_back({static_cast<int>(rank), count * rank / world, count * (rank + 1) / world});
  return parts;
}

// Cuts at places of chance. Some parts are empty, some elements are nobody's, and no order.
std::vector<Part> wild_parts(int ranks, std::size_t count, unsigned seed) {
  std::mt19937 dice(seed);
  std::vector<std::size_t> cuts{0, count, count};
  for (int i = 0; i < 12; ++i) cuts.push_back(dice() % (count + 1));
  std::ranges::sort(cuts);
  std::vector<Part> parts;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto owner = static_cast<int>(dice() % static_cast<unsigned>(ranks + 1));
    if (owner < ranks) parts.push_back({owner, cuts[i], cuts[i + 1]});
  }
  std::ranges::shuffle(parts, dice);
  return parts;
}

std::vector<std::vector<Part>> layouts(int ranks, std::size_t count) {
  return {even_parts(ranks, count), {{ranks - 1, 0, count}},     {},
          {{0, count / 2, count}},  wild_parts(ranks, count, 1), wild_parts(ranks, count, 2)};
}

// By element its owner; -1: nobody.
std::vector<int> owners_of(const std::vector<Part>& parts, std::size_t count) {
  std::vector<int> owners(count, -1);
  for (const Part& part : parts)
    std::fill(owners.begin() + static_cast<std::ptrdiff_t>(part.begin),
              owners.begin() + static_cast<std::ptrdiff_t>(part.end), part.owner);
  return owners;
}

// Memory of a rank for one comparison after the other.
struct Memories {
  explicit Memories(Collective& ranks)
      : whole(ranks.allocate(kMostElements * 8)), parts(ranks.allocate(kMostElements * 8)) {}
  std::vector<std::byte> before = std::vector<std::byte>(kMostElements * 8);
  std::shared_ptr<std::byte> whole;
  std::shared_ptr<std::byte> parts;
};

// Some elements in line that have one owner.
struct Stretch {
  int owner = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<Stretch> stretches_of(const std::vector<int>& owners) {
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (stretches.empty() || stretches.back().owner != owners[i])
      stretches.push_back({owners[i], i, i});
    ++stretches.back().end;
  }
  return stretches;
}

bool same(const std::byte* a, const std::byte* b, const Stretch& stretch, Dtype dtype) {
  const std::size_t size = size_of(dtype);
  return std::memcmp(a + stretch.begin * size, b + stretch.begin * size,
                     (stretch.end - stretch.begin) * size) == 0;
}

void compare(Collective& ranks, const Memories& memories, Flat flat, const std::vector<Part>& parts,
             Reduction reduction) {
  const auto stretches = stretches_of(owners_of(parts, flat.count));
  const std::byte* const before = memories.before.data();
  std::memcpy(memories.whole.get(), before, flat.bytes());
  std::memcpy(memories.parts.get(), before, flat.bytes());
  flat.data = memories.whole.get();
  ranks.wait(ranks.launch(flat, reduction));
  flat.data = memories.parts.get();
  ranks.wait(ranks.launch_reduce_scatter(flat, parts, reduction));
  const std::byte* const got = memories.parts.get();
  for (const Stretch& stretch : stretches) {
    if (stretch.owner == ranks.rank()) {
      ASSERT_TRUE(same(got, memories.whole.get(), stretch, flat.dtype)) << "from " << stretch.begin;
    }
    if (stretch.owner < 0) {
      ASSERT_TRUE(same(got, before, stretch, flat.dtype)) << "from " << stretch.begin;
    }
  }
  ranks.wait(ranks.launch_all_gather(flat, parts));
  for (const Stretch& stretch : stretches) {
    const std::byte* const wanted = stretch.owner < 0 ? before : memories.whole.get();
    ASSERT_TRUE(same(got, wanted, stretch, flat.dtype)) << "gathered, from " << stretch.begin;
  }
}

TEST_P(Parts, HaveTheBitsOfAnAllReduceOfTheWhole) {
  run_ranks(options(), [](Collective& ranks) {
    Memories memories(ranks);
    const int world = ranks.world_size();
    for (int type = 0; type <= static_cast<int>(Dtype::kUInt8); ++type) {
      const auto dtype = static_cast<Dtype>(type);
      fill(memories.before.data(), kMostElements, dtype, ranks.rank());
      for (const Reduction reduction : {Reduction::kSum, Reduction::kWideSum, Reduction::kAverage,
                                        Reduction::kMin, Reduction::kMax}) {
        if (reduction == Reduction::kAverage && dtype > Dtype::kBFloat16) continue;
        SCOPED_TRACE(std::string(name_of(dtype)) + ", reduction " +
                     std::to_string(static_cast<int>(reduction)));
        for (const auto& parts : layouts(world, 1009))
          compare(ranks, memories, {nullptr, 1009, dtype}, parts, reduction);
        compare(ranks, memories, {nullptr, kMostElements, dtype},
                wild_parts(world, kMostElements, 3), reduction);
      }
    }
    fill(memories.before.data(), 1, Dtype::kFloat32, ranks.rank());
    for (const auto& parts : layouts(world, 1))
      compare(ranks, memories, {nullptr, 1, Dtype::kFloat32}, parts, Reduction::kSum);
    compare(ranks, memories, {nullptr, 0, Dtype::kFloat32}, {{0, 0, 0}}, Reduction::kSum);
  });
}

// More than a window of TCP, and more than one of its frames.
TEST_P(Parts, MayBeLarge) {
  run_ranks(options(), [](Collective& ranks) {
    constexpr std::size_t kCount = 2'000'003;
    const auto world = ranks.world_size();
    const auto parts = wild_parts(world, kCount, 5);
    const auto stretches = stretches_of(owners_of(parts, kCount));
    const auto whole = ranks.allocate(kCount * 4);
    const auto memory = ranks.allocate(kCount * 4);
    fill(whole.get(), kMostElements, Dtype::kFloat32, ranks.rank());
    for (std::size_t i = kMostElements; i < kCount; i += kMostElements)
      std::memcpy(whole.get() + i * 4, whole.get(), std::min(kMostElements, kCount - i) * 4);
    std::memcpy(memory.get(), whole.get(), kCount * 4);
    ranks.launch_sum({whole.get(), kCount, Dtype::kFloat32});
    const Flat flat{memory.get(), kCount, Dtype::kFloat32};
    ranks.wait(ranks.launch_reduce_scatter(flat, parts, Reduction::kSum));
    ranks.wait(ranks.launch_all_gather(flat, parts));
    for (const Stretch& stretch : stretches) {
      if (stretch.owner >= 0) {
        ASSERT_TRUE(same(memory.get(), whole.get(), stretch, Dtype::kFloat32)) << stretch.begin;
      }
    }
  });
}

// Many are under way, their memory is dropped, and others come between. progress() moves them.
TEST_P(Parts, WaitInLineWithOtherOperations) {
  run_ranks(options(), [](Collective& ranks) {
    constexpr std::size_t kCount = 3001;
    const auto world = ranks.world_size();
    const auto parts = wild_parts(world, kCount, 4);
    const auto owners = owners_of(parts, kCount);
    const auto kept = ranks.allocate(kCount * 4);
    auto* const numbers = reinterpret_cast<float*>(kept.get());
    std::fill_n(numbers, kCount, 1.0F);
    const Flat flat{kept.get(), kCount, Dtype::kFloat32, "kept"};
    Ticket last = ranks.launch_reduce_scatter(flat, parts, Reduction::kSum);
    for (int i = 0; i < 300; ++i) {  // more than kLaunchedMax
      const auto dropped = ranks.allocate(64);
      const Flat few{dropped.get(), 16, Dtype::kFloat32};
      last = i % 3 == 0 ? ranks.launch_sum(few)
             : i % 3 == 1
                 ? ranks.launch_all_gather(few, even_parts(world, 16))
                 : ranks.launch_reduce_scatter(few, even_parts(world, 16), Reduction::kMax);
      ranks.progress();
      if (i % 100 == 50) ranks.barrier();
    }
    ranks.wait(last);
    ranks.wait(ranks.launch_all_gather(flat, parts));
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(numbers[i], owners[i] < 0 ? 1.0F : static_cast<float>(world)) << i;
    const auto record = ranks.flight_record();
    if (ranks.name() == "alone") return;
    for (const char* name : {":reduce_scatter", ":all_gather", ":all_reduce"})
      EXPECT_NE(record.find(name), std::string::npos) << name;
  });
}

// No other rank has heard of it: the next operation works.
TEST_P(Parts, AreRefusedBeforeAnybodyHearsOfThem) {
  run_ranks(options(), [](Collective& ranks) {
    const auto memory = ranks.allocate(400);
    const Flat flat{memory.get(), 100, Dtype::kFloat32};
    const auto refusal = [&](const std::vector<Part>& parts) {
      EXPECT_THROW(ranks.launch_all_gather(flat, parts), std::invalid_argument);
      return message_of([&] { ranks.launch_reduce_scatter(flat, parts, Reduction::kSum); });
    };
    if (ranks.rank() == 0) {
      const std::string world = std::to_string(ranks.world_size());
      EXPECT_EQ(refusal({{0, 0, 60}, {0, 50, 100}}),
                "reduce-scatter: part [0, 60) of rank 0 and part [50, 100) of rank 0 overlap");
      EXPECT_EQ(refusal({{0, 90, 101}}),
                "reduce-scatter: part [90, 101) of rank 0 ends behind the 100 elements");
      EXPECT_EQ(refusal({{0, 9, 8}}),
                "reduce-scatter: part [9, 8) of rank 0 ends before it begins");
      EXPECT_EQ(refusal({{-1, 0, 1}}),
                "reduce-scatter: part [0, 1) of rank -1: there is no such "
                "rank among " +
                    world);
      EXPECT_EQ(refusal({{ranks.world_size(), 0, 0}}),
                "reduce-scatter: part [0, 0) of rank " + world + ": there is no such rank among " +
                    world);
    }
    ranks.wait(ranks.launch_all_gather(flat, even_parts(ranks.world_size(), 100)));
    std::vector<float> other(4);
    const Flat foreign{other.data(), 4, Dtype::kFloat32};
    if (ranks.name() != "alone") {
      EXPECT_THROW(ranks.launch_all_gather(foreign, {}), CollectiveError);
    }
    ranks.barrier();
  });
}

// All ranks are told, at the latest in the next operation.
TEST_P(Parts, ThatAreUnlikeEndAllRanks) {
  if (GetParam().ranks() == 1) return;
  using Launch = std::function<Ticket(Collective&, const Flat&, const std::vector<Part>&)>;
  const Launch scatter = [](Collective& ranks, const Flat& flat, const std::vector<Part>& parts) {
    return ranks.launch_reduce_scatter(flat, parts, Reduction::kSum);
  };
  const Launch gather = [](Collective& ranks, const Flat& flat, const std::vector<Part>& parts) {
    return ranks.launch_all_gather(flat, parts);
  };
  const Launch average = [](Collective& ranks, const Flat& flat, const std::vector<Part>& parts) {
    return ranks.launch_reduce_scatter(flat, parts, Reduction::kAverage);
  };
  const Launch sum = [](Collective& ranks, const Flat& flat, const std::vector<Part>& /*parts*/) {
    return ranks.launch_sum(flat);
  };
  struct Unlike {
    Launch first;
    Launch last;
    bool other_parts = false;
  };
  for (const Unlike& unlike :
       {Unlike{scatter, gather}, Unlike{scatter, sum}, Unlike{gather, sum},
        Unlike{scatter, average}, Unlike{scatter, scatter, true}, Unlike{gather, gather, true}}) {
    run_ranks(options(), [&](Collective& ranks) {
      const auto memory = ranks.allocate(400);
      const bool last = ranks.rank() == ranks.world_size() - 1;
      const Flat flat{memory.get(), 100, Dtype::kFloat32};
      std::vector<Part> parts{{0, 0, 50}, {1, 50, 100}};
      if (last && unlike.other_parts) parts = {{0, 0, 51}, {1, 51, 100}};
      const std::string message = message_of([&] {
        ranks.wait((last ? unlike.last : unlike.first)(ranks, flat, parts));
        ranks.barrier();
      });
      EXPECT_TRUE(says_unlike(message)) << message;
    });
  }
}

TEST_P(Parts, NoticeARankThatDies) {
  if (GetParam().ranks() == 1) return;
  for (const bool gathers : {false, true}) {
    const auto statuses = run_ranks_to_end(options(), [&](Collective& ranks) {
      const auto memory = ranks.allocate(400);
      const Flat flat{memory.get(), 100, Dtype::kFloat32};
      const auto parts = even_parts(ranks.world_size(), 100);
      if (ranks.rank() == 1) ::raise(SIGKILL);
      const std::string message = message_of([&] {
        ranks.wait(gathers ? ranks.launch_all_gather(flat, parts)
                           : ranks.launch_reduce_scatter(flat, parts, Reduction::kSum));
        ranks.barrier();
      });
      EXPECT_TRUE(says_gone(message)) << message;
    });
    for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
      if (rank != 1) {
        EXPECT_EQ(statuses[rank], 0) << "rank " << rank;
      }
    }
  }
}

TEST_P(Parts, AreGivenUpByAReset) {
  if (GetParam().ranks() == 1 || !GetParam().can_reset()) return;
  run_ranks(options(), [](Collective& ranks) {
    const auto memory = ranks.allocate(400);
    auto* const numbers = reinterpret_cast<float*>(memory.get());
    const Flat flat{memory.get(), 100, Dtype::kFloat32};
    const auto parts = even_parts(ranks.world_size(), 100);
    const auto both = [&] {
      std::fill_n(numbers, 100, 1.0F);
      ranks.wait(ranks.launch_reduce_scatter(flat, parts, Reduction::kSum));
      ranks.wait(ranks.launch_all_gather(flat, parts));
    };
    for (int round = 0; round < 10; ++round) {
      if (ranks.rank() != round % ranks.world_size()) {
        const std::string message = message_of(both);
        EXPECT_NE(message.find(" has called reset()"), std::string::npos) << message;
      }
      ranks.reset();
      both();
      EXPECT_EQ(numbers[99], static_cast<float>(ranks.world_size()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, Parts, all_kinds(), name_of_kind);

}  // namespace
}  // namespace ddprun::worker
