// The order of a model's units, and its consequences: which one is gathered ahead, and whose
// gradients are summed now. All ranks must come to the same sums in the same order. So it follows
// forward(), and not the order in which gradients are ready. Pure: units are numbers.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace ddprun::worker {

class UnitOrder {
 public:
  // Until a pass has shown another order, the units come in that of their numbers.
  explicit UnitOrder(std::size_t units);

  // forward() of a unit begins. `trains`: a backward() may follow. Returns the unit that comes
  // next, if one does.
  std::optional<std::size_t> begin_forward(std::size_t unit, bool trains);
  // Returns whether backward() begins with this unit: then its parameters stay.
  bool is_last(std::size_t unit) const;

  // backward() comes to a unit. Returns the one that it comes to next, if one does.
  std::optional<std::size_t> begin_backward(std::size_t unit);
  // All gradients of the unit are there. Returns what to sum now, in this order.
  std::vector<std::size_t> complete(std::size_t unit);
  // backward() is over. Returns what is left to sum: units without all gradients, and what waited
  // for them.
  std::vector<std::size_t> end_backward();

 private:
  struct Step {
    std::size_t unit;
    bool complete = false;
    bool summed = false;
  };
  std::vector<Step>::iterator find(std::size_t unit);

  std::vector<std::size_t> expected_;  // of the latest pass
  std::vector<Step> pass_;             // by the first forward() of each unit
};

}  // namespace ddprun::worker
