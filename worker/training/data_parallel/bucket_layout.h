// How the layout of the buckets comes about. The first pass has a plan by sizes alone, and learns
// the order in which gradients become ready. The buckets of all later passes follow that order.
// Pure: it knows neither memory nor ranks. GradientReducer owns it and calls it from the training
// thread and the autograd thread, never from both at once.
#pragma once

#include <ddprun/log_record.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "worker/training/data_parallel/bucket_plan.h"

namespace ddprun::worker {

class BucketLayout {
 public:
  explicit BucketLayout(BucketPlan first) : first_(std::move(first)) {}

  // A pass begins. The order that the last one has learned is forgotten, unless it was used.
  void begin_pass();
  // The hook of a parameter runs.
  void hook_ran(std::size_t parameter) { hook_order_.push_back(parameter); }
  // Its gradient became ready, too.
  void became_ready(std::size_t parameter) {
    if (!rebuilt_) ready_order_.push_back(parameter);
  }
  // All became ready in the order of registration.
  void all_ready(std::size_t parameters);
  // The pass was given up.
  void forget();

  // A pass has learned an order, and the buckets do not follow it yet.
  bool waits_for_rebuild() const { return !rebuilt_ && !ready_order_.empty(); }
  // All parameters in the order that was learned. A static graph may leave parameters out; they
  // come last.
  std::vector<std::size_t> whole_order(std::size_t parameters) const;
  // The buckets are rebuilt, or restored. Happens once.
  void set_rebuilt();
  bool rebuilt() const { return rebuilt_; }

  // The parameters whose hooks ran in the latest pass, in their order; one may come twice.
  const std::vector<std::size_t>& hook_order() const { return hook_order_; }

  // Adds the sizes of the first buckets, and sizes and parameters of the rebuilt ones. `plan`: the
  // one that is in use.
  void write(LogRecord& record, const BucketPlan& plan, std::span<const ParameterSize> sizes) const;

 private:
  BucketPlan first_;
  bool rebuilt_ = false;
  std::vector<std::size_t> ready_order_;  // empty once rebuilt
  std::vector<std::size_t> hook_order_;
};

}  // namespace ddprun::worker
