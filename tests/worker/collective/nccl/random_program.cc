#include "tests/worker/collective/nccl/random_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>

namespace ddprun::worker {
namespace {

constexpr std::int64_t kExact = std::int64_t{1} << 22;  // with a factor left for float32

std::string_view name_of(StepKind kind) {
  static constexpr std::string_view kNames[] = {"kernel",  "launch",  "wait",   "broadcast",
                                                "send",    "barrier", "gather", "switch stream",
                                                "replace", "compare", "graph",  "split"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::int64_t combine(std::int64_t a, std::int64_t b, Reduction reduction) {
  if (reduction == Reduction::kMin) return std::min(a, b);
  return reduction == Reduction::kMax ? std::max(a, b) : a + b;
}

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : bits_(seed) {}
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(bits_() % limit); }
  bool once_in(std::size_t times) { return below(times) == 0; }

 private:
  std::mt19937_64 bits_;
};

// Parts in any order, some empty, some elements in none.
std::vector<Part> random_parts(Chance& chance, int ranks, std::size_t count) {
  std::vector<Part> parts;
  std::size_t at = 0;
  while (at < count && parts.size() < 6) {
    const std::size_t begin = at + (chance.once_in(4) ? chance.below(3) : 0);
    const std::size_t end = std::min(count, begin + chance.below(count));
    if (begin > end) break;
    parts.push_back({static_cast<int>(chance.below(static_cast<std::size_t>(ranks))), begin, end});
    at = end;
  }
  if (parts.size() > 1 && chance.once_in(2)) std::swap(parts.front(), parts.back());
  return parts;
}

// From the first half of the range into the second one. Some are empty, or give the same elements.
std::vector<Transfer> random_transfers(Chance& chance, int ranks, std::size_t count) {
  const std::size_t half = count / 2;
  std::vector<std::size_t> next(static_cast<std::size_t>(ranks), half);
  std::vector<Transfer> transfers;
  for (std::size_t left = 1 + chance.below(8); left > 0; --left) {
    const std::size_t from = chance.below(next.size());
    const std::size_t to = chance.below(next.size());
    const std::size_t length = chance.below(std::min(half, count - next[to]) + 1);
    const std::size_t begin = chance.below(half - length + 1);
    transfers.push_back(
        {static_cast<int>(from), static_cast<int>(to), begin, begin + length, next[to]});
    next[to] += length;
  }
  return transfers;
}

StepKind random_kind(Chance& chance) {
  using enum StepKind;
  static constexpr StepKind kByWeight[] = {
      kKernel,    kKernel, kKernel,  kLaunch, kLaunch,  kLaunch,       kLaunch,  kWait,    kWait,
      kBroadcast, kSend,   kBarrier, kGather, kReplace, kSwitchStream, kCompare, kCompare, kGraph};
  return chance.once_in(60) ? kSplit : kByWeight[chance.below(std::size(kByWeight))];
}

Step random_step(Chance& chance, const Model& model, int ranks, int number) {
  Step step{.number = number, .kind = random_kind(chance)};
  const auto some_rank = [&] {
    return static_cast<int>(chance.below(static_cast<std::size_t>(ranks)));
  };
  step.buffer = chance.below(kBuffers);
  step.begin = chance.below(kElements);
  step.end = step.begin + 1 + chance.below(kElements - step.begin);
  step.peer = some_rank();
  step.other =
      (step.peer + 1 + static_cast<int>(chance.below(static_cast<std::size_t>(ranks - 1)))) % ranks;
  step.salt = static_cast<int>(chance.below(97));
  step.repeats = 1 + static_cast<int>(chance.below(3));
  static constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kMin, Reduction::kMax};
  step.reduction = kReductions[chance.below(3)];
  if (const auto& open = model.launches(); !open.empty())
    step.launch = open[chance.below(open.size())];
  if (step.kind == StepKind::kLaunch && chance.once_in(4)) {
    step.exchanges = true;
    step.transfers = random_transfers(chance, ranks, step.end - step.begin);
  } else if (step.kind == StepKind::kLaunch && chance.once_in(2)) {
    (chance.once_in(2) ? step.gathers : step.scatters) = true;
    step.parts = random_parts(chance, ranks, step.end - step.begin);
  }
  return step;
}

}  // namespace

std::string text_of(const Step& step) {
  std::string text = fmt::format("{} {}: buffer {} [{}, {})", step.number, name_of(step.kind),
                                 step.buffer, step.begin, step.end);
  if (step.gathers) text += " all-gather";
  if (step.scatters) text += " reduce-scatter";
  for (const Part& part : step.parts)
    text += fmt::format(" {}:{}-{}", part.owner, part.begin, part.end);
  if (step.exchanges) text += " all-to-all";
  for (const Transfer& one : step.transfers)
    text += fmt::format(" {}:{}-{}>{}:{}", one.from, one.begin, one.end, one.to, one.target);
  return text + fmt::format(" peer {} other {} launch {} repeats {} salt {} reduction {}",
                            step.peer, step.other, step.launch, step.repeats, step.salt,
                            static_cast<int>(step.reduction));
}

std::string text_of(const Program& program) {
  std::string text = fmt::format("{} ranks", program.ranks);
  for (const Step& step : program.steps) text += "\n  " + text_of(step);
  return text;
}

std::int64_t kernel_value(std::int64_t before, int rank, int salt, std::size_t place) {
  const std::int64_t mixed =
      (fills(salt) ? 0 : 3 * before) + 7 * rank + salt + static_cast<std::int64_t>(place);
  return ((mixed % 97) + 97) % 97;
}

Model::Model(int ranks)
    : ranks_(ranks),
      values_(kBuffers,
              std::vector(static_cast<std::size_t>(ranks), std::vector<Number>(kElements, 0))) {}

bool Model::under_way(std::size_t buffer, std::size_t begin, std::size_t end) const {
  return std::ranges::any_of(launched_, [=](const Launched& one) {
    return one.buffer == buffer && one.begin < end && begin < one.end;
  });
}

void Model::kernel(const Step& step) {
  for (int rank = 0; rank < ranks_; ++rank) {
    auto& values = values_[step.buffer][static_cast<std::size_t>(rank)];
    for (std::size_t i = step.begin; i < step.end; ++i) {
      if (values[i] || fills(step.salt))
        values[i] = kernel_value(values[i].value_or(0), rank, step.salt, i);
    }
  }
}

// All ranks get the result of the range.
bool Model::reduce(const Step& step) {
  auto& ranks = values_[step.buffer];
  for (std::size_t i = step.begin; i < step.end; ++i) {
    Number all = ranks.front()[i];
    for (std::size_t rank = 1; rank < ranks.size() && all; ++rank) {
      const Number& value = ranks[rank][i];
      all = value ? Number(combine(*all, *value, step.reduction)) : std::nullopt;
    }
    if (all && std::abs(*all) > kExact) return false;
    for (auto& rank : ranks) rank[i] = all;
  }
  return true;
}

// Each part goes from its owner to all, or its result to its owner alone.
void Model::share(const Step& step) {
  auto& ranks = values_[step.buffer];
  const auto before = ranks;
  if (step.scatters) reduce(step);
  const auto reduced = ranks;
  ranks = before;
  for (const Part& part : step.parts) {
    const auto owner = static_cast<std::size_t>(part.owner);
    for (std::size_t i = step.begin + part.begin; i < step.begin + part.end; ++i) {
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (step.gathers) ranks[rank][i] = before[owner][i];
        if (step.scatters) ranks[rank][i] = rank == owner ? reduced[rank][i] : std::nullopt;
      }
    }
  }
}

void Model::exchange(const Step& step) {
  auto& ranks = values_[step.buffer];
  const auto before = ranks;
  for (const Transfer& one : step.transfers) {
    for (std::size_t i = 0; i < one.end - one.begin; ++i)
      ranks[static_cast<std::size_t>(one.to)][step.begin + one.target + i] =
          before[static_cast<std::size_t>(one.from)][step.begin + one.begin + i];
  }
}

bool Model::launch(const Step& step) {
  if (under_way(step.buffer, step.begin, step.end)) return false;
  if (step.scatters || !(step.gathers || step.exchanges)) {
    Model summed = *this;
    if (!summed.reduce(step)) return false;
  }
  if (step.exchanges) {
    exchange(step);
  } else if (step.gathers || step.scatters) {
    share(step);
  } else {
    reduce(step);
  }
  launched_.push_back({step.number, step.buffer, step.begin, step.end});
  open_.push_back(step.number);
  return true;
}

bool Model::take(const Step& step) {
  using enum StepKind;
  auto& ranks = values_[step.buffer];
  const bool touches =
      step.kind == kKernel || step.kind == kBroadcast || step.kind == kSend || step.kind == kGraph;
  if (touches && under_way(step.buffer, step.begin, step.end)) return false;
  switch (step.kind) {
    case kKernel:
      kernel(step);
      return true;
    case kLaunch:
      return launch(step);
    case kWait: {
      const auto found = std::ranges::find(open_, step.launch);
      if (found == open_.end()) return false;
      open_.erase(open_.begin(), found + 1);
      std::erase_if(launched_, [&](const Launched& one) { return one.step <= step.launch; });
      return true;
    }
    case kBroadcast:
    case kSend:
      for (int rank = 0; rank < ranks_; ++rank) {
        if (step.kind == kSend && rank != step.other) continue;
        const auto& from = ranks[static_cast<std::size_t>(step.peer)];
        auto& to = ranks[static_cast<std::size_t>(rank)];
        std::copy(from.begin() + static_cast<std::ptrdiff_t>(step.begin),
                  from.begin() + static_cast<std::ptrdiff_t>(step.end),
                  to.begin() + static_cast<std::ptrdiff_t>(step.begin));
      }
      return true;
    case kReplace:
      std::erase_if(launched_, [&](const Launched& one) { return one.buffer == step.buffer; });
      for (auto& rank : ranks) rank.assign(kElements, 0);
      return true;
    case kCompare:
      return !under_way(step.buffer, 0, kElements);
    case kGraph:
      for (int i = 0; i < step.repeats; ++i) {
        kernel(step);
        if (!reduce(step)) return false;
      }
      return true;
    case kBarrier:
    case kGather:
    case kSwitchStream:
    case kSplit:
      break;
  }
  return true;
}

Program random_program(std::uint64_t seed, int ranks, int steps) {
  Chance chance(seed);
  Model model(ranks);
  Program program{.ranks = ranks};
  for (int number = 1; number <= steps; ++number) {
    Step step = random_step(chance, model, ranks, number);
    Model after = model;
    if (!after.take(step)) continue;
    model = std::move(after);
    program.steps.push_back(std::move(step));
  }
  // At the end all is waited for, and compared.
  if (!model.launches().empty())
    program.steps.push_back(
        {.number = steps + 1, .kind = StepKind::kWait, .launch = model.launches().back()});
  for (std::size_t buffer = 0; buffer < kBuffers; ++buffer)
    program.steps.push_back({.number = steps + 2 + static_cast<int>(buffer),
                             .kind = StepKind::kCompare,
                             .buffer = buffer});
  return program;
}

std::optional<std::vector<Expected>> expected_of(const Program& program) {
  Model model(program.ranks);
  std::vector<Expected> all;
  for (const Step& step : program.steps) {
    if (!model.take(step)) return std::nullopt;
    if (step.kind != StepKind::kCompare) continue;
    Expected expected{step.number, {}};
    for (int rank = 0; rank < program.ranks; ++rank)
      expected.by_rank.push_back(model.buffer(step.buffer, rank));
    all.push_back(std::move(expected));
  }
  return all;
}

}  // namespace ddprun::worker
