#include "worker/training/sharded/unit_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ddprun::worker {

UnitOrder::UnitOrder(std::size_t units) : expected_(units) {
  std::iota(expected_.begin(), expected_.end(), std::size_t{0});
}

std::vector<UnitOrder::Step>::iterator UnitOrder::find(std::size_t unit) {
  return std::ranges::find(pass_, unit, &Step::unit);
}

std::optional<std::size_t> UnitOrder::begin_forward(std::size_t unit, bool trains) {
  if (trains && find(unit) == pass_.end()) pass_.push_back({unit});
  const auto at = std::ranges::find(expected_, unit);
  if (at == expected_.end() || at + 1 == expected_.end()) return std::nullopt;
  return *(at + 1);
}

bool UnitOrder::is_last(std::size_t unit) const {
  return !expected_.empty() && expected_.back() == unit;
}

// A second backward() over the same forward() finds units that this pass does not know. backward()
// comes to them in reverse.
std::optional<std::size_t> UnitOrder::begin_backward(std::size_t unit) {
  auto at = find(unit);
  if (at == pass_.end()) at = pass_.insert(pass_.begin(), Step{unit});
  if (at == pass_.begin()) return std::nullopt;
  return (at - 1)->unit;
}

std::vector<std::size_t> UnitOrder::complete(std::size_t unit) {
  if (const auto at = find(unit); at != pass_.end()) at->complete = true;
  std::vector<std::size_t> sums;
  for (auto step = pass_.rbegin(); step != pass_.rend(); ++step) {
    if (!step->complete) break;
    if (!std::exchange(step->summed, true)) sums.push_back(step->unit);
  }
  return sums;
}

std::vector<std::size_t> UnitOrder::end_backward() {
  std::vector<std::size_t> sums;
  expected_.clear();
  for (const Step& step : pass_) expected_.push_back(step.unit);
  for (auto step = pass_.rbegin(); step != pass_.rend(); ++step) {
    if (!step->summed) sums.push_back(step->unit);
  }
  pass_.clear();
  return sums;
}

}  // namespace ddprun::worker
