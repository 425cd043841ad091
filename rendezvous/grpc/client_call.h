// A node's gRPC call to the host. Its owner, a session, is told on the loop what the host sends
// (heard()) and how the call ended (finished()). Used by client.cc, and by tests.
#pragma once

#include <grpcpp/client_context.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/grpc/call_writer.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/loop_gate.h"

namespace ddprun::rendezvous {

// One gRPC call: an attempt to connect, which becomes the session if the host lets us in. Lives
// until gRPC is done with it (self_) and the session has dropped it (call_).
template <typename Owner>
class ClientCall final : public grpc::ClientBidiReactor<v4::FromNode, v4::ToNode>,
                         public std::enable_shared_from_this<ClientCall<Owner>> {
 public:
  explicit ClientCall(std::shared_ptr<LoopGate<Owner>> gate) : gate_(std::move(gate)) {}

  // ---- loop's thread ----
  void start(v4::Rendezvous::Stub& stub, const std::string& rdzv_id, const std::string& nonce) {
    self_ = this->shared_from_this();
    context_.AddMetadata(kJobMetadata, rdzv_id);
    context_.AddMetadata(kNonceMetadata, nonce);
    stub.async()->OpenSession(&context_, this);
    // Held until the writer has ended. The loop writes from outside gRPC's callbacks, and without a
    // hold gRPC may free the call meanwhile (grpcpp/support/client_callback.h).
    AddHold();
    StartRead(&in_);
    StartCall();
  }
  void send(v4::FromNode message) { perform(writer_.send(std::move(message))); }
  bool idle() const { return writer_.idle(); }
  bool has_room() const { return writer_.has_room(); }
  // No message follows those that were sent. The host ends the call when it has read a Gone.
  void close() { perform(writer_.close()); }
  // Breaks the call off; what is queued is dropped.
  void cut() {
    context_.TryCancel();
    perform(writer_.abandon());
  }
  // Blocks for at most `limit`. True if gRPC is done with the call and does not touch it any more.
  bool wait_done(std::chrono::milliseconds limit) {
    return done_future_.wait_for(limit) == std::future_status::ready;
  }

  // ---- gRPC's threads ----
  void OnReadDone(bool ok) override {
    if (!ok) return perform(writer_.abandon());
    gate_->post([self = self_, message = decode(in_)](Owner& session) {
      session.on_message(self, message);
    });
    // This is not left to the loop. gRPC tells the end of a call only when nothing is left to read.
    StartRead(&in_);
  }
  void OnWriteDone(bool ok) override { perform(writer_.written(ok)); }
  void OnDone(const grpc::Status& status) override {
    // A copy, because the loop may destroy us before set_value() returns.
    const auto done = done_;
    gate_->post(
        [self = std::move(self_), status](Owner& session) { session.finished(self, status); });
    done->set_value();
  }

 private:
  // Write-through: OnWriteDone() then means that the bytes are in the socket. In a buffer of gRPC
  // they would be lost with this process.
  void perform(CallWriter<v4::FromNode>::Step step) {
    if (step.write != nullptr) StartWrite(step.write, grpc::WriteOptions().set_write_through());
    if (step.end) RemoveHold();
    if (step.overflow) context_.TryCancel();  // the write under way then fails, and the queue too
  }

  const std::shared_ptr<LoopGate<Owner>> gate_;
  grpc::ClientContext context_;
  v4::ToNode in_;
  CallWriter<v4::FromNode> writer_;
  const std::shared_ptr<std::promise<void>> done_ = std::make_shared<std::promise<void>>();
  const std::future<void> done_future_ = done_->get_future();
  std::shared_ptr<ClientCall> self_;
};

}  // namespace ddprun::rendezvous
