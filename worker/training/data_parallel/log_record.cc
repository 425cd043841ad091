#include "worker/training/data_parallel/log_record.h"

#include <ddprun/log_record.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace ddprun {

std::string LogRecord::to_json() const {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [key, text] : texts) object[key] = text;
  for (const auto& [key, number] : numbers) object[key] = number;
  // A name may hold any bytes.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ddprun

namespace ddprun::worker {

const std::array<PassTimes::Part, 4> PassTimes::kParts{
    {{"forward_compute_time", Moment::kForwardBegins, Moment::kBackwardBegins},
     {"backward_compute_time", Moment::kBackwardBegins, Moment::kBackwardEnds},
     {"backward_comm_time", Moment::kSumsBegin, Moment::kSumsEnd},
     {"backward_compute_comm_overlap_time", Moment::kSumsBegin, Moment::kBackwardEnds}}};

namespace {

// A key, and the variable it has; some have an older name. In PyTorch those of NCCL and Gloo are
// there where it is used.
struct VariableKey {
  const char* key;
  const char* variable;
  const char* older = nullptr;
};
constexpr std::array kVariables{
    VariableKey{"master_addr", "MASTER_ADDR"},
    VariableKey{"master_port", "MASTER_PORT"},
    VariableKey{"cuda_visible_devices", "CUDA_VISIBLE_DEVICES"},
    VariableKey{"torch_distributed_debug", "TORCH_DISTRIBUTED_DEBUG"},
    VariableKey{"nccl_socket_ifname", "NCCL_SOCKET_IFNAME"},
    VariableKey{"nccl_blocking_wait", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"},
    VariableKey{"nccl_async_error_handling", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                "NCCL_ASYNC_ERROR_HANDLING"},
    VariableKey{"nccl_debug", "NCCL_DEBUG"},
    VariableKey{"nccl_nthreads", "NCCL_NTHREADS"},
    VariableKey{"nccl_ib_timeout", "NCCL_IB_TIMEOUT"},
    VariableKey{"gloo_socket_ifname", "GLOO_SOCKET_IFNAME"},
    VariableKey{"gloo_device_transport", "GLOO_DEVICE_TRANSPORT"},
};

}  // namespace

void write_environment(LogRecord& record) {
  for (const auto& [key, variable, older] : kVariables) {
    // NOLINTBEGIN(concurrency-mt-unsafe): no thread changes the environment
    const char* value = std::getenv(variable);
    if (value == nullptr && older != nullptr) value = std::getenv(older);
    // NOLINTEND(concurrency-mt-unsafe)
    record.texts[key] = value == nullptr ? "N/A" : value;
  }
  record.numbers["gloo_num_threads"] = 0;  // bytes move in the training thread
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
