// The answers to callers that are refused: a gRPC status to them, and sometimes a line of the log.
// Loop's thread; owned by Service.
#pragma once

#include <fmt/format.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <string>

#include "base/log.h"
#include "base/rate_limiter.h"
#include "base/result.h"

namespace ddprun::rendezvous {

// The time between two warnings about refused connections.
inline constexpr std::chrono::seconds kRefusalWarningEvery{10};

class Refusals {
 public:
  static grpc::Status status_of(const Error& refusal) {
    return {refusal.code() == ErrorCode::kRejected ? grpc::StatusCode::UNAUTHENTICATED
                                                   : grpc::StatusCode::FAILED_PRECONDITION,
            refusal.message()};
  }
  // `address`: of the caller.
  void refused(const std::string& address, const std::string& reason) {
    warn(fmt::format("refused a connection from {}: {}", address, reason));
  }
  // Warns, within the rate limit, of what unauthenticated peers can make happen as often as they
  // like.
  void warn(const std::string& what) {
    if (const auto line = warnings_.line("rendezvous: " + what, std::chrono::steady_clock::now()))
      log::warning(*line);
  }

 private:
  RateLimiter warnings_{kRefusalWarningEvery};
};

}  // namespace ddprun::rendezvous
