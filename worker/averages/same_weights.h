// Whether all ranks still have the same weights. If averages are right, they have, unless a rank
// left out a step, loaded other weights, or changed weights or gradients alone. Each pass compares
// some numbers of each parameter, always the same ones. Ranks on unlike processors may round a step
// in unlike ways: weights count as parted if they have changed by unlike amounts since the pass
// before.
//
// On CPU only: on GPUs it would make the host wait. GradientReducer owns it and calls it from the
// thread that runs backward(). All ranks must call it at the same places.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/averages/named_parameter.h"
#include "worker/collective/collective.h"

namespace ddprun::worker {

// The weights of a rank, as it tells them. Lists have one number for each that is compared.
struct WeightsReport {
  std::uint64_t steps = 0;  // calls of DataParallel::step() since the pass before
  std::uint64_t forwards =
      0;  // of which gradients were to be averaged, likewise; only for messages
  std::vector<double> now;
  std::vector<double> before;  // at the pass before; empty: nobody knows
};

// A number that is compared.
struct WeightsPlace {
  std::string name;  // of its parameter
  double rounding;   // the step between two numbers of its type near 1
};

// A whole message on which ranks have parted, and how. Nothing: all have the same weights, but for
// rounding. Pure.
std::optional<std::string> parted(const std::vector<WeightsReport>& reports,
                                  std::span<const WeightsPlace> places, std::uint64_t pass);

class SameWeights {
 public:
  // The parameters and the collective must outlive this. `alike`: all ranks have the same weights.
  SameWeights(const std::vector<NamedParameter>& parameters, Collective& collective, bool alike);

  // Some numbers of the weights, as they are compared.
  std::vector<double> read() const;
  // The name of the parameter in which two lists of them differ; empty: in none.
  std::string changed(const std::vector<double>& left, const std::vector<double>& right) const;

  // The sums of a pass are all launched: reads the weights that it was made with.
  void look() { now_ = read(); }
  // The sums are complete. `steps`, `forwards`: see WeightsReport. The message, on all ranks, if
  // they had parted.
  std::optional<std::string> compare(std::uint64_t steps, std::uint64_t forwards,
                                     std::uint64_t pass);

  // Nothing is compared any more, or again: all ranks have the same weights now. All must call
  // them.
  void stop() { stopped_ = true; }
  void start();

  // The most numbers that are compared of one model, and of one parameter.
  static constexpr std::size_t kNumbersMax = 2048;
  static constexpr std::size_t kNumbersOfOneMax = 4;

 private:
  struct Place {
    std::size_t parameter;
    std::int64_t element;
  };

  std::vector<WeightsReport> gather(const WeightsReport& mine);

  const std::vector<NamedParameter>& parameters_;
  Collective& collective_;
  std::vector<Place> places_;
  bool stopped_ = false;
  std::vector<double> now_;     // at look()
  std::vector<double> before_;  // in the pass before
};

}  // namespace ddprun::worker
