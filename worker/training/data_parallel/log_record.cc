#include "worker/training/data_parallel/log_record.h"

#include <ddprun/log_record.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

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

}  // namespace ddprun::worker
