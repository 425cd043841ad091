// Answers operators over gRPC (proto/control.proto), on the server of a Service:
// ServiceOptions::more. It decides nothing: each question goes to the JobControl of its job. On the
// loop's thread; gRPC's threads reach it through a LoopGate only. The owner of the Service owns it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/control/job_control.h"
#include "rendezvous/trust/node_authenticator.h"

namespace grpc {
class ServerBuilder;
}

namespace ddprun::rendezvous {

inline constexpr std::size_t kPageBytes = std::size_t{8} * 1024 * 1024;

enum class InheritedJob { kRuns, kSucceeded, kFailed };

class ControlService {
 public:
  struct Options {
    // The token that an operator of this job must prove to know. Nothing, or an empty one, if no
    // operator may. The id is empty where all jobs are asked for, or the only one.
    std::function<std::optional<HostToken>(const std::string& rdzv_id)> token{};
    // Only operators of this host's own socket come here (local_operators.h): they prove nothing,
    // and `token` is not asked.
    bool is_local = false;
    // Every job that is here.
    std::function<std::vector<JobControl*>()> jobs;
    // A job that a leader before this one left, and that is not here.
    std::function<std::optional<InheritedJob>(const std::string& rdzv_id)> inherited{};
    // Called when the caller of this connection (gRPC's name for it) has proved that it knows the
    // token.
    std::function<void(const std::string& peer)> on_admitted{};
    // The size of an answer that shows all jobs. The job that passes it is the last one of its
    // page.
    std::size_t page_bytes = kPageBytes;
    // Returns why this host answers no question now, because another process may lead. Returns an
    // empty text if it answers.
    std::function<std::string()> turns_away{};
  };

  // `loop` must outlive it, and it must outlive the Service.
  ControlService(boost::asio::io_context& loop, Options options);
  ControlService(const ControlService&) = delete;
  ControlService& operator=(const ControlService&) = delete;
  ~ControlService();

  // Before the server starts.
  void add_to(grpc::ServerBuilder& builder);
  // The jobs go to another process: tells so those who wait for the end of one.
  void let_go();
  // Answers no more, and tells so those who wait. Call it before the Service ends, which would wait
  // for them.
  void end();

 private:
  class Calls;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ddprun::rendezvous
