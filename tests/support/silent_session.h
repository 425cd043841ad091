// A session of a node, for tests, that does nothing and hears nothing. A test overrides what it
// looks at.
#pragma once

#include <cstdint>
#include <optional>

#include "rendezvous/core/rendezvous.h"

namespace ddprun {

class SilentSession : public rendezvous::Session {
 public:
  void join(const rendezvous::NodeSpec& /*node*/) override {}
  void resume(const rendezvous::ResumeRequest& /*node*/) override {}
  void report_failure(std::int64_t /*round*/, const rendezvous::Failure& /*failure*/) override {}
  void report_success(std::int64_t /*round*/) override {}
  void leave(const rendezvous::Failure& /*reason*/) override {}
  void gone() override {}
  std::optional<rendezvous::WaitStatus> wait_status() const override { return std::nullopt; }
};

}  // namespace ddprun
