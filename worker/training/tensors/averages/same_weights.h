// Whether all ranks still have the same weights, and step by the same settings. If averages are
// right, they have. They have not if a rank left out a step, loaded other weights, or changed
// weights or gradients alone. Each pass compares some numbers of each parameter, always the same
// ones. Ranks on unlike processors may round a step in unlike ways. Weights count as parted if they
// have changed by unlike amounts since the pass before.
//
// It works on CPU only. On GPUs it would make the host wait. GradientReducer owns it and calls it
// from the thread that runs backward(). All ranks must call it at the same places.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/collective/core/equal_word.h"
#include "worker/training/tensors/averages/named_parameter.h"
#include "worker/training/tensors/averages/step_settings.h"

namespace ddprun::worker {

// The weights of a rank, as it tells them. Lists have one number for each that is compared.
struct WeightsReport {
  std::uint64_t steps = 0;  // calls of DataParallel::step() since the pass before
  std::uint64_t forwards =
      0;  // of which gradients were to be averaged, likewise; for messages only
  std::vector<double> now = {};
  std::vector<double> before = {};    // at the pass before; empty: nobody knows
  std::vector<double> settings = {};  // of those steps: StepSettings::named()
  std::uint64_t counts = 0;           // StepSettings::counts()
  double rounding = 0;                // rounding_kind()
};

// A number that is compared.
struct WeightsPlace {
  std::string name;  // of its parameter
  double rounding;   // the step between two numbers of its type near 1
};

// A whole message on which ranks have parted, and how. Nothing if all have the same weights, but
// for rounding. `settings` are those of rank 0, or of another rank that has as many. Pure.
std::optional<std::string> parted(const std::vector<WeightsReport>& reports,
                                  std::span<const WeightsPlace> places,
                                  std::span<const StepSetting> settings, std::uint64_t pass);

class SameWeights {
 public:
  // The calls of a rank since the pass before.
  struct CallCounts {
    std::uint64_t steps = 0;
    std::uint64_t forwards = 0;
    StepSettings settings = {};  // of the steps
  };

  // The parameters and the collective must outlive this. `alike`: all ranks have the same weights.
  SameWeights(std::span<const NamedParameter> parameters, Collective& collective, bool alike);

  // A forward() has ended whose gradients are to be averaged.
  void count_forward();
  // The program has made a step, or is about to make one by this optimizer.
  void count_step() { ++done_.steps; }
  void add_settings(const torch::optim::Optimizer& optimizer);

  // A forward() under NoSync begins. `any_silent`: some gradient was made under NoSync, and no sum
  // has taken it since. Returns the name of a parameter that was changed after such gradients twice
  // in a row. Empty if there is none. A forward() that averages ends the row.
  std::string changed_silently(bool any_silent);

  // The pass launches its sums. Tells the other ranks its weights, and the events before it, by a
  // sum that travels with those. `name`: of that sum.
  void tell(const OperationName& name);
  // The sums are complete. Returns whether the ranks still have the same weights; all get the same
  // answer. Forwards, steps and settings count anew.
  [[nodiscard]] bool compare(std::uint64_t pass);
  // The message, if they had parted.
  const std::optional<std::string>& how_parted() const { return parted_; }
  // The sums were given up. Forwards, steps and settings count anew.
  void drop();

  // Nothing is compared any more, or again: all ranks have the same weights now. All must call
  // them.
  void stop() { stopped_ = true; }
  void start();

  // The most numbers that are compared of one model, and of one parameter.
  static constexpr std::size_t kNumbersMax = 2048;
  static constexpr std::size_t kNumbersOfOneMax = 4;

 private:
  // The numbers of one parameter.
  struct Part {
    std::size_t parameter;
    std::size_t count;
    std::array<std::int64_t, kNumbersOfOneMax> elements;
    // Their addresses when they were read last, for read_into().
    mutable std::array<const void*, kNumbersOfOneMax> places = {};
  };

  bool compares() const { return !parts_.empty() && !stopped_; }
  void forget_done();
  std::vector<double> read() const;
  void read_into(std::vector<double>& numbers) const;
  std::string changed(const std::vector<double>& left, const std::vector<double>& right) const;
  std::vector<WeightsReport> gather(const WeightsReport& mine);
  std::optional<std::string> explain(std::uint64_t pass);

  std::span<const NamedParameter> parameters_;
  Collective& collective_;
  std::vector<Part> parts_;
  std::optional<EqualWord> same_;  // where something is compared
  bool stopped_ = false;
  std::vector<double> now_;     // at tell()
  std::vector<double> before_;  // in the pass before
  CallCounts done_;
  std::optional<std::string> parted_;
  std::vector<double> before_silent_;  // before the last forward() under NoSync
  int silent_changes_ = 0;             // in a row
};

}  // namespace ddprun::worker
