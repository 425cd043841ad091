// The flow of units on simulated GPUs. A model of plain arrays says what the shards must be. The
// simulation finds each access to memory that has no order with another one.
#include "worker/training/sharded/unit_flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/collective/nccl/simulated_ranks.h"
#include "worker/collective/nccl/cuda_parts.h"
#include "worker/training/sharded/unit_layout.h"
#include "worker/training/sharded/unit_order.h"

namespace ddprun::worker {
namespace {

using Numbers = std::vector<float>;

constexpr int kTrainedSteps = 4;
// The units' parameters. With several ranks the last shards of some are empty.
constexpr std::int64_t kCounts[] = {33, 5, 48, 16, 20};
constexpr std::size_t kUnits = std::size(kCounts);
constexpr std::int64_t kAlignment = 4;

UnitLayout layout_of(std::size_t unit, int ranks, bool equal_shards) {
  return {std::span(&kCounts[unit], 1), kAlignment, ranks, equal_shards};
}

std::vector<UnitRow> rows_of(int ranks, bool equal_shards) {
  std::vector<UnitRow> rows;
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    const UnitLayout layout = layout_of(unit, ranks, equal_shards);
    UnitRow row{.name = "unit " + std::to_string(unit),
                .elements = static_cast<std::size_t>(layout.length())};
    for (const FlatRange& shard : layout.shards())
      row.parts.push_back({static_cast<int>(row.parts.size()),
                           static_cast<std::size_t>(shard.begin),
                           static_cast<std::size_t>(shard.end)});
    rows.push_back(std::move(row));
  }
  return rows;
}

float first_value(std::size_t unit, std::size_t element) {
  return static_cast<float>(8 * (element % 7) + 2 * unit);
}

// Memory of the simulated GPU, in floats, with what is added to it at first.
class GpuNumbers {
 public:
  explicit GpuNumbers(std::size_t count) : bytes_(std::max<std::size_t>(count, 1) * sizeof(float)) {
    check_cuda(cudaMalloc(&memory_, bytes_), "test memory");
    std::fill_n(get(), count, 0.F);
  }
  GpuNumbers(const GpuNumbers&) = delete;
  GpuNumbers& operator=(const GpuNumbers&) = delete;
  GpuNumbers(GpuNumbers&& other) noexcept
      : bytes_(other.bytes_), memory_(std::exchange(other.memory_, nullptr)) {}
  GpuNumbers& operator=(GpuNumbers&&) = delete;
  ~GpuNumbers() { cudaFree(memory_); }

  float* get() const { return static_cast<float*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

// The tensors of a rank. A unit's gradient comes of its parameters, the rank and the step.
class SimulatedTensors final : public UnitTensors {
 public:
  SimulatedTensors(int rank, const std::vector<UnitRow>& rows,
                   const std::shared_ptr<cudaStream_t>& current)
      : rank_(rank), rows_(rows), current_(current), placed_(rows.size()), gradients_(rows.size()) {
    for (std::size_t unit = 0; unit < rows.size(); ++unit) {
      shards_.emplace_back(own(unit).end - own(unit).begin);
      shard_gradients_.emplace_back(own(unit).end - own(unit).begin);
      for (std::size_t i = own(unit).begin; i < own(unit).end; ++i)
        shards_[unit].get()[i - own(unit).begin] = first_value(unit, i);
    }
  }

  void put_shard(std::size_t unit, std::byte* row) override {
    float* const place = reinterpret_cast<float*>(row) + own(unit).begin;
    const float* const shard = shards_[unit].get();
    run_on(own_count(unit), [=](std::size_t i) { place[i] = shard[i]; }, place,
           {sim::reads(shard)});
  }
  void place(std::size_t unit, std::byte* row) override {
    placed_[unit] = reinterpret_cast<float*>(row);
  }
  void remove(std::size_t unit) override { placed_[unit] = nullptr; }
  void move_gradients(std::size_t unit, std::byte* sums) override {
    const float* const gradients = gradients_[unit]->get();
    auto* const to = reinterpret_cast<float*>(sums);
    run_on(rows_[unit].elements, [=](std::size_t i) { to[i] = gradients[i]; }, to,
           {sim::reads(gradients)});
  }
  void add_average(std::size_t unit, std::byte* sums) override {
    const float* const average = reinterpret_cast<const float*>(sums) + own(unit).begin;
    float* const gradient = shard_gradients_[unit].get();
    run_on(own_count(unit), [=](std::size_t i) { gradient[i] += average[i]; }, gradient,
           {sim::reads(average, own_count(unit) * sizeof(float))});
  }
  StreamMark mark() override { return std::make_shared<Event>(*current_); }
  void hold(const StreamMark& mark) override {
    std::static_pointer_cast<Event>(mark)->hold(*current_);
    if (on_hold) on_hold();
  }
  std::function<void()> on_hold{};  // called after each

  bool is_placed(std::size_t unit) const { return placed_[unit] != nullptr; }
  void forward(std::size_t unit, const GpuNumbers& sum) {
    const float* const row = placed_[unit];
    ASSERT_NE(row, nullptr);
    float* const activation = sum.get();
    run_on(1, [=](std::size_t i) { activation[i] += row[0]; }, activation, {reads_row(unit)});
  }
  void backward(std::size_t unit, int step) {
    const float* const row = placed_[unit];
    ASSERT_NE(row, nullptr);
    gradients_[unit] = &kept_.emplace_back(rows_[unit].elements);
    float* const gradients = gradients_[unit]->get();
    const auto more = static_cast<float>(rank_ + step);
    run_on(rows_[unit].elements, [=](std::size_t i) { gradients[i] = row[i] + more; }, gradients,
           {reads_row(unit)});
  }
  void step() {
    for (std::size_t unit = 0; unit < rows_.size(); ++unit) {
      float* const shard = shards_[unit].get();
      float* const gradient = shard_gradients_[unit].get();
      run_on(own_count(unit),
             [=](std::size_t i) { shard[i] -= std::exchange(gradient[i], 0.F) / 4; }, shard,
             {sim::writes(gradient)});
    }
  }
  // When the stream has come so far.
  Numbers row_of(std::size_t unit) const {
    check_cuda(cudaStreamSynchronize(*current_), "wait for the stream");
    return {placed_[unit], placed_[unit] + rows_[unit].elements};
  }

 private:
  const Part& own(std::size_t unit) const {
    return rows_[unit].parts[static_cast<std::size_t>(rank_)];
  }
  std::size_t own_count(std::size_t unit) const { return own(unit).end - own(unit).begin; }
  sim::Touch reads_row(std::size_t unit) const {
    return sim::reads(placed_[unit], rows_[unit].elements * sizeof(float));
  }
  template <typename Kernel>
  void run_on(std::size_t count, const Kernel& kernel, const float* written,
              std::vector<sim::Touch> touches) const {
    touches.push_back(sim::writes(written, count * sizeof(float)));
    sim::run_on(
        *current_,
        [=] {
          for (std::size_t i = 0; i < count; ++i) kernel(i);
        },
        touches);
  }

  const int rank_;
  const std::vector<UnitRow>& rows_;
  const std::shared_ptr<cudaStream_t> current_;
  std::vector<float*> placed_;
  std::vector<GpuNumbers> shards_, shard_gradients_;
  std::vector<GpuNumbers*> gradients_;  // of the latest backward()
  std::deque<GpuNumbers> kept_;         // those of all
};

// Calls the flow as ShardedTraining does.
class Trainer {
 public:
  Trainer(const std::vector<UnitRow>& rows, Collective& ranks, cudaStream_t stream,
          std::shared_ptr<cudaStream_t> current)
      : tensors_(ranks.rank(), rows, current),
        flow_(rows, ranks, tensors_),
        order_(rows.size()),
        streams_{stream, sim::new_stream()},
        current_(std::move(current)) {}

  void evaluate(const std::vector<std::size_t>& units) { forward(units, false); }
  void pass(const std::vector<std::size_t>& units, int step_number) {
    forward(units, true);
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      use_stream_of(*unit);
      const auto next = order_.begin_backward(*unit);
      flow_.gather(*unit);
      gather_ahead(next);
      need_what_is_computed();
      tensors_.backward(*unit, step_number);
      flow_.release(*unit);
      for (const std::size_t complete : order_.complete(*unit)) flow_.sum(complete);
      computed_ = std::make_unique<Event>(*current_);
    }
    use_stream_of(0);
    need_what_is_computed();
    gather_ahead(std::nullopt);
    for (const std::size_t unit : order_.end_backward()) flow_.sum(unit);
    flow_.finish_sums();
  }
  void step() {
    flow_.begin_step();
    tensors_.step();
    stepped_ = std::make_unique<Event>(*current_);
  }
  Numbers row_of(std::size_t unit) {
    flow_.gather(unit);
    Numbers row = tensors_.row_of(unit);
    flow_.release(unit);
    return row;
  }

 private:
  void forward(const std::vector<std::size_t>& units, bool trains) {
    const GpuNumbers& sum = sums_.emplace_back(1);
    if (stepped_) stepped_->hold(streams_[1]);
    computed_ = nullptr;  // one pass needs nothing of another one
    for (const std::size_t unit : units) {
      use_stream_of(unit);
      const auto next = order_.begin_forward(unit, trains);
      flow_.gather(unit);
      gather_ahead(next);
      need_what_is_computed();
      tensors_.forward(unit, sum);
      if (!trains || !order_.is_last(unit)) flow_.release(unit);
      computed_ = std::make_unique<Event>(*current_);
    }
  }
  void gather_ahead(std::optional<std::size_t> unit) {
    const auto before = std::exchange(ahead_, unit);
    if (before && before != unit && !tensors_.is_placed(*before)) flow_.release(*before);
    if (unit) flow_.gather_ahead(*unit);
  }
  // Every other unit has a stream of its own. The results have an order: one unit needs the
  // other's. The rows' memory has no order but that of the flow.
  void use_stream_of(std::size_t unit) { *current_ = streams_[unit % 2]; }
  void need_what_is_computed() {
    if (computed_) computed_->hold(*current_);
  }

  SimulatedTensors tensors_;
  UnitFlow flow_;
  UnitOrder order_;
  const cudaStream_t streams_[2];
  const std::shared_ptr<cudaStream_t> current_;
  std::deque<GpuNumbers> sums_;      // of what units give, by pass
  std::unique_ptr<Event> computed_;  // the latest of them, in this pass
  std::unique_ptr<Event> stepped_;
  std::optional<std::size_t> ahead_;
};

// The parameters after each step, as one process computes them.
class PlainModel {
 public:
  explicit PlainModel(int ranks) : mean_rank_(static_cast<float>(ranks - 1) / 2) {
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      Numbers& row = rows_.emplace_back();
      for (std::size_t i = 0; i < static_cast<std::size_t>(kCounts[unit]); ++i)
        row.push_back(first_value(unit, i));
    }
  }
  void step(std::size_t unit, int number, int passes) {
    for (float& value : rows_[unit])
      value -= static_cast<float>(passes) * (value + static_cast<float>(number) + mean_rank_) / 4;
  }
  const Numbers& row(std::size_t unit) const { return rows_[unit]; }

 private:
  const float mean_rank_;
  std::vector<Numbers> rows_;
};

}  // namespace

class UnitFlowTest : public SimulatedGpu {
 protected:
  // The passes before a step, by the units that come. Their order differs, and not all come in
  // each. The last pass has one stream alone.
  static std::vector<std::vector<std::size_t>> passes_of(int step) {
    if (step == 2) return {{1, 0, 4, 2}};
    return {{0, 1, 2, 3, 4}, {1, 3}};
  }

  static void train(Rank& rank, bool equal_shards) {
    const int ranks = rank.collective->world_size();
    const auto rows = rows_of(ranks, equal_shards);
    Trainer trainer(rows, *rank.collective, rank.stream, rank.current);
    PlainModel plain(ranks);
    for (int step = 0; step < kTrainedSteps; ++step) {
      trainer.evaluate({0, 1, 2, 3, 4});
      std::vector<int> passes(kUnits);
      for (const auto& units : passes_of(step)) {
        trainer.pass(units, step);
        for (const std::size_t unit : units) ++passes[unit];
      }
      trainer.evaluate({0});  // the next unit's row is old after the step
      trainer.step();
      for (std::size_t unit = 0; unit < kUnits; ++unit) {
        plain.step(unit, step, passes[unit]);
        Numbers row = trainer.row_of(unit);
        row.resize(plain.row(unit).size());
        EXPECT_EQ(row, plain.row(unit)) << "step " << step << ", unit " << unit;
      }
    }
    rank.collective->barrier();
  }
};

TEST_F(UnitFlowTest, TrainsAsOneProcess) {
  for (const int ranks : {2, 4, 8}) {
    for (const bool equal_shards : {true, false}) {
      SCOPED_TRACE(ranks);
      run({.ranks = ranks}, [=](Rank& rank) { train(rank, equal_shards); });
    }
  }
}

TEST_F(UnitFlowTest, TrainsAsOneProcessWhereStreamsPause) {
  sim::controls().stagger = true;
  run({.ranks = 2}, [](Rank& rank) { train(rank, true); });
}

// The host goes on beside a gather, and so does the unit before.
TEST_F(UnitFlowTest, GathersAheadBesideTheUnitBefore) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto rows = rows_of(2, true);
    SimulatedTensors tensors(rank.rank, rows, rank.current);
    UnitFlow flow(rows, *rank.collective, tensors);
    const GpuNumbers sum(1);
    flow.gather(0);
    flow.gather_ahead(1);
    tensors.forward(0, sum);
    const int before = sim::host_waits();
    sim::Gate computing(rank.stream);  // unit 0 is not done
    const cudaStream_t other = sim::new_stream();
    *rank.current = other;
    flow.gather(1);
    EXPECT_EQ(sim::host_waits(), before);
    EXPECT_EQ(tensors.row_of(1)[0], first_value(1, 0));
    *rank.current = rank.stream;
    computing.open();
    flow.release(0);
    flow.release(1);
    rank.collective->barrier();
  });
}

// Another unit came than was expected. The next row may not overtake the one that comes.
TEST_F(UnitFlowTest, UsesTheMemoryOfARowThatWasGivenUpBehindIt) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto rows = rows_of(2, true);
    SimulatedTensors tensors(rank.rank, rows, rank.current);
    UnitFlow flow(rows, *rank.collective, tensors);
    rank.collective->barrier();
    sim::controls().hang = true;
    flow.gather_ahead(0);
    flow.release(0);
    flow.gather_ahead(1);
    sim::controls().hang = false;
    flow.gather(1);
    EXPECT_EQ(tensors.row_of(1)[0], first_value(1, 0));
    flow.release(1);
    rank.collective->barrier();
  });
}

TEST_F(UnitFlowTest, KeepsMemoryForTwoRowsAndOneSum) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto rows = rows_of(2, true);
    Trainer trainer(rows, *rank.collective, rank.stream, rank.current);
    trainer.pass({0, 1, 2, 3, 4}, 0);
    rank.collective->barrier();
    const int before = sim::controls().blocks;
    rank.collective->barrier();
    for (int step = 1; step < kTrainedSteps; ++step) {
      trainer.pass({0, 1, 2, 3, 4}, step);
      trainer.step();
    }
    rank.collective->barrier();
    // The test keeps what each pass computes.
    constexpr int kOfAPass = static_cast<int>(kUnits) + 1;
    EXPECT_EQ(sim::controls().blocks, before + 2 * (kTrainedSteps - 1) * kOfAPass);
    rank.collective->barrier();
  });
}

// A kernel of another stream than the current one still reads a row that was released there.
TEST_F(UnitFlowTest, DropsItsMemoryBehindItsUseOnEachStream) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto rows = rows_of(2, true);
    const GpuNumbers sum(1);
    const cudaStream_t other = sim::new_stream();
    SimulatedTensors tensors(rank.rank, rows, rank.current);
    auto flow = std::make_optional<UnitFlow>(rows, *rank.collective, tensors);
    *rank.current = other;
    flow->gather(0);
    sim::Gate computing(other);
    tensors.forward(0, sum);
    flow->release(0);
    *rank.current = rank.stream;
    // The kernel ends when the current stream comes behind it. Without that the memory goes first.
    bool is_open = false;
    tensors.on_hold = [&] {
      if (!std::exchange(is_open, true)) computing.open();
    };
    flow.reset();
    EXPECT_TRUE(is_open);
    if (!is_open) computing.open();
    cudaStreamSynchronize(other);
    cudaStreamSynchronize(rank.stream);
    rank.collective->barrier();
  });
}

// As where backward() has thrown: a unit is placed, one is gathered ahead, and a sum is under way.
TEST_F(UnitFlowTest, GoesInTheMiddleOfAPass) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto rows = rows_of(2, true);
    const GpuNumbers sum(1);
    SimulatedTensors tensors(rank.rank, rows, rank.current);
    {
      UnitFlow flow(rows, *rank.collective, tensors);
      flow.gather(0);
      tensors.forward(0, sum);
      tensors.backward(0, 0);
      flow.release(0);
      flow.sum(0);
      flow.gather(1);
      flow.gather_ahead(2);
      tensors.forward(1, sum);
    }
    cudaStreamSynchronize(rank.stream);
    rank.collective->barrier();
  });
}

// A group that fails on a GPU lets all communicators there fail: the program hears of it in any.
TEST_F(UnitFlowTest, AGatherThatHangsIsAFailureOfTheProgramsRanks) {
  run({.ranks = 2, .timeout = std::chrono::milliseconds(300)}, [](Rank& rank) {
    const auto rows = rows_of(2, true);
    SimulatedTensors tensors(rank.rank, rows, rank.current);
    UnitFlow flow(rows, *rank.collective, tensors);
    sim::controls().hang = true;
    flow.gather(0);
    EXPECT_NE(failure_of(*rank.collective), "");
    EXPECT_NE(message_of([&] { flow.gather(1); }), "");
  });
}

}  // namespace ddprun::worker
