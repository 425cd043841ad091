// Programs of a collective's operations and of kernels, by chance, beside a model that knows what
// memory must hold. Pure: a test runs them. Each rank runs the same steps.
#pragma once

#include <ddprun/collective.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::worker {

// The work of a step. The range [begin, end) is of the elements of a buffer.
enum class StepKind : std::uint8_t {
  kKernel,        // the program writes the range
  kLaunch,        // an all-reduce, reduce-scatter, all-gather or all-to-all of the range
  kWait,          // for the launch of step `launch`, by number
  kBroadcast,     // of the range, from `peer`
  kSend,          // of the range, from `peer` to `other`
  kBarrier,       // of all ranks
  kGather,        // of bytes of the host
  kSwitchStream,  // the program goes on in its other stream
  kReplace,       // the buffer goes, used or not, and a new one comes
  kCompare,       // the buffer holds what the model says
  kGraph,         // a kernel and an all-reduce of the range are captured, and run `repeats` times
  kSplit,         // even and odd ranks sum in groups of their own
};

struct Step {
  int number;  // of a step, for good: also where others are left out
  StepKind kind;
  std::size_t buffer = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  int peer = 0;
  int other = 0;
  int launch = 0;
  int repeats = 1;
  int salt = 0;
  bool gathers = false;
  bool scatters = false;
  bool exchanges = false;
  Reduction reduction = Reduction::kSum;
  std::vector<Part> parts{};
  std::vector<Transfer> transfers{};
};
std::string text_of(const Step& step);

struct Program {
  int ranks = 2;
  std::vector<Step> steps{};
};
std::string text_of(const Program& program);

// The buffers of every program, each of so many elements.
constexpr std::size_t kElements = 48;
constexpr Dtype kBufferTypes[] = {Dtype::kFloat32, Dtype::kInt32, Dtype::kFloat64, Dtype::kInt64};
constexpr std::size_t kBuffers = std::size(kBufferTypes);

// A number of the model. Nothing: unspecified.
using Number = std::optional<std::int64_t>;

// Says whether a kernel looks at nothing that was there before: that of every other salt.
inline bool fills(int salt) { return salt % 2 == 0; }
// Returns the number that a kernel writes in place of `before`.
std::int64_t kernel_value(std::int64_t before, int rank, int salt, std::size_t place);

class Model {
 public:
  explicit Model(int ranks);

  // Takes the step, or answers false if no program may take it now. Somebody works on the memory
  // then, or a number would not be exact in float32.
  bool take(const Step& step);

  const std::vector<Number>& buffer(std::size_t buffer, int rank) const {
    return values_[buffer][static_cast<std::size_t>(rank)];
  }
  bool under_way(std::size_t buffer, std::size_t begin, std::size_t end) const;
  const std::vector<int>& launches() const { return open_; }  // not waited for

 private:
  struct Launched {
    int step;
    std::size_t buffer;
    std::size_t begin;
    std::size_t end;
  };
  bool launch(const Step& step);
  bool reduce(const Step& step);
  void share(const Step& step);
  void exchange(const Step& step);
  void kernel(const Step& step);

  int ranks_;
  std::vector<std::vector<std::vector<Number>>> values_;  // buffer, rank, element
  std::vector<Launched> launched_;
  std::vector<int> open_;
};

// Steps that the model takes, of the seed.
Program random_program(std::uint64_t seed, int ranks, int steps);
// The numbers that a kCompare must find.
struct Expected {
  int step;
  std::vector<std::vector<Number>> by_rank;
};
// Returns those of each kCompare. Nothing if no such program may be.
std::optional<std::vector<Expected>> expected_of(const Program& program);

}  // namespace ddprun::worker
