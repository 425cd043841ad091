#include "worker/reducer/log_record.h"

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace ddprun::worker {

const std::array<PassTimes::Part, 4> PassTimes::kParts{
    {{"forward_compute_time", Moment::kForwardBegins, Moment::kBackwardBegins},
     {"backward_compute_time", Moment::kBackwardBegins, Moment::kBackwardEnds},
     {"backward_comm_time", Moment::kSumsBegin, Moment::kSumsEnd},
     {"backward_compute_comm_overlap_time", Moment::kSumsBegin, Moment::kBackwardEnds}}};

std::string LogRecord::to_json() const {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [key, text] : texts) object[key] = text;
  for (const auto& [key, number] : numbers) object[key] = number;
  // A name may hold any bytes.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void write_environment(LogRecord& record) {
  for (const std::string name :
       {"MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "TORCH_DISTRIBUTED_DEBUG",
        "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_NTHREADS", "NCCL_IB_TIMEOUT"}) {
    const char* value = std::getenv(name.c_str());
    std::string key = name;
    for (char& letter : key) letter = static_cast<char>(std::tolower(letter));
    record.texts[key] = value == nullptr ? "N/A" : value;
  }
}

void PassTimes::mark(Moment moment) {
  if (moment == Moment::kForwardBegins) moments_.fill(0);
  moments_[static_cast<std::size_t>(moment)] =
      std::chrono::steady_clock::now().time_since_epoch().count();
}

void PassTimes::mark_first(Moment moment) {
  if (at(moment) == 0) mark(moment);
}

void PassTimes::count_pass() {
  ++passes_;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    last_[i] = at(kParts[i].end) - at(kParts[i].begin);
    totals_[i] += last_[i];
  }
}

void PassTimes::write(LogRecord& record) const {
  auto& numbers = record.numbers;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    numbers[kParts[i].key] = last_[i];
    numbers[std::string("avg_") + kParts[i].key] = passes_ == 0 ? 0 : totals_[i] / passes_;
  }
  numbers["forward_compute_time_start"] = at(Moment::kForwardBegins);
  numbers["backward_compute_time_start"] = at(Moment::kBackwardBegins);
  numbers["backward_comm_time_start"] = at(Moment::kSumsBegin);
  numbers["backward_compute_time_end"] = at(Moment::kBackwardEnds);
  numbers["backward_comm_time_end"] = at(Moment::kSumsEnd);
}

}  // namespace ddprun::worker
