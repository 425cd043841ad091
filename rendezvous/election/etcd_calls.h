// The calls of etcd's API as gRPC has them, each as "ask, then one answer", and a watch. Internal
// to etcd_client.cc. A function that runs on gRPC's threads says so.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "proto/etcd.grpc.pb.h"

namespace ddprun::rendezvous {

// One member, by its services.
struct EtcdStubs {
  explicit EtcdStubs(const std::shared_ptr<grpc::Channel>& channel)
      : kv(v3::KV::NewStub(channel)),
        lease(v3::Lease::NewStub(channel)),
        watch(v3::Watch::NewStub(channel)),
        auth(v3::Auth::NewStub(channel)) {}
  std::unique_ptr<v3::KV::Stub> kv;
  std::unique_ptr<v3::Lease::Stub> lease;
  std::unique_ptr<v3::Watch::Stub> watch;
  std::unique_ptr<v3::Auth::Stub> auth;
};

// The parts that every call has, whatever it asks.
struct EtcdCall {
  grpc::ClientContext context;
  std::promise<void> done;  // set when gRPC touches the call no more
  std::future<void> is_done = done.get_future();

  EtcdCall() = default;
  EtcdCall(const EtcdCall&) = delete;
  EtcdCall& operator=(const EtcdCall&) = delete;
  virtual ~EtcdCall() = default;
};

template <typename Request, typename Response>
struct EtcdQuestion final : EtcdCall {
  explicit EtcdQuestion(Request one) : request(std::move(one)) {}
  const Request request;
  Response response;
};

// Called on one of gRPC's threads.
using WhenDone = std::function<void(grpc::Status)>;

inline void start(EtcdStubs& stubs, EtcdQuestion<v3::TxnRequest, v3::TxnResponse>& one,
                  WhenDone done) {
  stubs.kv->async()->Txn(&one.context, &one.request, &one.response, std::move(done));
}

inline void start(EtcdStubs& stubs,
                  EtcdQuestion<v3::LeaseGrantRequest, v3::LeaseGrantResponse>& one, WhenDone done) {
  stubs.lease->async()->LeaseGrant(&one.context, &one.request, &one.response, std::move(done));
}

inline void start(EtcdStubs& stubs,
                  EtcdQuestion<v3::AuthenticateRequest, v3::AuthenticateResponse>& one,
                  WhenDone done) {
  stubs.auth->async()->Authenticate(&one.context, &one.request, &one.response, std::move(done));
}

// etcd has keep-alives as a stream. Ours has one message each way. It frees itself.
class KeepAliveCall final
    : public grpc::ClientBidiReactor<v3::LeaseKeepAliveRequest, v3::LeaseKeepAliveResponse> {
 public:
  KeepAliveCall(EtcdStubs& stubs,
                EtcdQuestion<v3::LeaseKeepAliveRequest, v3::LeaseKeepAliveResponse>& one,
                WhenDone done)
      : done_(std::move(done)) {
    stubs.lease->async()->LeaseKeepAlive(&one.context, this);
    StartWriteLast(&one.request, grpc::WriteOptions());
    StartRead(&one.response);
    StartCall();
  }

 private:
  // ---- gRPC's threads ----
  void OnReadDone(bool ok) override { is_answered_ = ok; }
  void OnDone(const grpc::Status& status) override {
    const bool is_lost = status.ok() && !is_answered_;
    done_(is_lost ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the call ended") : status);
    delete this;
  }

  const WhenDone done_;
  bool is_answered_ = false;
};

inline void start(EtcdStubs& stubs,
                  EtcdQuestion<v3::LeaseKeepAliveRequest, v3::LeaseKeepAliveResponse>& one,
                  WhenDone done) {
  new KeepAliveCall(stubs, one, std::move(done));
}

// Tells of the first change, and of the end; etcd may end a watch whose revisions it compacted
// away. Lives until gRPC is done with it.
class WatchCall final : public EtcdCall,
                        public grpc::ClientBidiReactor<v3::WatchRequest, v3::WatchResponse>,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  // Both are called on gRPC's threads. `ended` is the last call.
  WatchCall(v3::WatchRequest request, std::function<void()> changed, std::function<void()> ended)
      : request_(std::move(request)), changed_(std::move(changed)), ended_(std::move(ended)) {}

  void start(EtcdStubs& stubs) {
    self_ = shared_from_this();
    stubs.watch->async()->Watch(&context, this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

 private:
  // ---- gRPC's threads ----
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.canceled()) return context.TryCancel();
    if (!response_.created()) changed_();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& /*status*/) override {
    const auto self = std::move(self_);
    ended_();
    done.set_value();
  }

  const v3::WatchRequest request_;
  v3::WatchResponse response_;
  const std::function<void()> changed_;
  const std::function<void()> ended_;
  std::shared_ptr<WatchCall> self_;
};

}  // namespace ddprun::rendezvous
