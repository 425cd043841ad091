#include "worker/training/data_parallel/pass_times.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace ddprun::worker {

const std::array<PassTimes::Part, 4> PassTimes::kParts{
    {{"forward_compute_time", PassMoment::kForwardBegins, PassMoment::kBackwardBegins},
     {"backward_compute_time", PassMoment::kBackwardBegins, PassMoment::kBackwardEnds},
     {"backward_comm_time", PassMoment::kSumsBegin, PassMoment::kSumsEnd},
     {"backward_compute_comm_overlap_time", PassMoment::kSumsBegin, PassMoment::kBackwardEnds}}};

PassTimes::PassTimes(c10::Device device, const Collective& ranks) {
  if (!device.is_cpu()) events_.emplace(device, ranks);
}

void PassTimes::begin_pass() {
  moments_.fill(0);
  if (events_) events_->begin_pass();
  mark(PassMoment::kForwardBegins);
}

void PassTimes::mark(PassMoment moment) {
  moments_[static_cast<std::size_t>(moment)] =
      std::chrono::steady_clock::now().time_since_epoch().count();
  if (events_) events_->mark(moment);
}

void PassTimes::mark_first(PassMoment moment) {
  if (at(moment) == 0) mark(moment);
}

void PassTimes::end_pass() {
  const bool whole = std::ranges::find(moments_, 0) == moments_.end();
  if (events_)
    events_->end_pass(whole);
  else if (whole)
    add([this](PassMoment begin, PassMoment end) { return at(end) - at(begin); });
}

void PassTimes::write(LogRecord& record) {
  if (events_) {
    events_->take([this](const PassEvents::Pass& pass) {
      add([&pass](PassMoment begin, PassMoment end) { return pass.between(begin, end); });
    });
  }
  auto& numbers = record.numbers;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    numbers[kParts[i].key] = last_[i];
    numbers[std::string("avg_") + kParts[i].key] = passes_ == 0 ? 0 : totals_[i] / passes_;
  }
  numbers["forward_compute_time_start"] = at(PassMoment::kForwardBegins);
  numbers["backward_compute_time_start"] = at(PassMoment::kBackwardBegins);
  numbers["backward_comm_time_start"] = at(PassMoment::kSumsBegin);
  numbers["backward_compute_time_end"] = at(PassMoment::kBackwardEnds);
  numbers["backward_comm_time_end"] = at(PassMoment::kSumsEnd);
}

}  // namespace ddprun::worker
