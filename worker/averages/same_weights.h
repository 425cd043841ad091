// Whether all ranks still have the same weights. Where averages are right, they have, unless a rank left out a
// step, loaded other weights, or changed weights or gradients alone. Each pass compares some numbers of each
// parameter, always the same ones. Ranks on unlike processors may round a step in unlike ways: weights count
// as parted where what they have changed by since the pass before is not the same.
//
// On CPU only: on GPUs it would make the host wait. GradientReducer owns it and calls it from the thread that
// runs backward(). All ranks must call it at the same places.
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

// What a rank says of its weights. Lists have one number for each that is compared.
struct WeightsReport {
  std::uint64_t steps = 0;  // calls of DataParallel::step() since the pass before
  std::vector<double> now;
  std::vector<double> before;  // at the pass before; empty: nobody knows
};

// Which ranks have parted, and how: a whole message. Nothing: all have the same weights, but for rounding.
// `name_of`: by number that is compared, the parameter; `rounding`: the step between two numbers of its type
// near 1. Pure.
struct WeightsPlace {
  std::string name;
  double rounding;
};
std::optional<std::string> parted(const std::vector<WeightsReport>& reports,
                                  std::span<const WeightsPlace> places, std::uint64_t pass);

class SameWeights {
 public:
  // The parameters and the collective must outlive this. `alike`: all ranks have the same weights now.
  SameWeights(const std::vector<NamedParameter>& parameters, Collective& collective, bool alike);

  // The sums of a pass are all launched: reads the weights that it was made with.
  void look() { now_ = read(); }
  // The sums are complete. `steps`: see WeightsReport. The message, on all ranks, if they had parted.
  std::optional<std::string> compare(std::uint64_t steps, std::uint64_t pass);

  // Nothing is compared any more. All ranks must call it.
  void stop() { places_.clear(); }

  // The most numbers that are compared of one model, and of one parameter.
  static constexpr std::size_t kNumbersMax = 2048;
  static constexpr std::size_t kNumbersOfOneMax = 4;

 private:
  struct Place {
    std::size_t parameter;
    std::int64_t element;
  };

  std::vector<double> read() const;
  std::vector<WeightsReport> gather(const WeightsReport& mine);

  const std::vector<NamedParameter>& parameters_;
  Collective& collective_;
  std::vector<Place> places_;
  std::vector<double> now_;     // at look()
  std::vector<double> before_;  // in the pass before
};

}  // namespace ddprun::worker
