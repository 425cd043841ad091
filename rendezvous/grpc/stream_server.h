// Serves the nodes' calls (OpenSession). It has some completion queues of gRPC, a thread for each,
// and gRPC's view of a call's life.
//
// gRPC's callback API would need less of this. But it has one queue for the whole process, and
// Debian builds gRPC without NDEBUG. Each operation that ends is searched in a list of all that its
// queue has under way. With 10,000 nodes that search took a third of the host's time. Here a queue
// serves some 1,000 nodes.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "proto/rendezvous.grpc.pb.h"

namespace ddprun::rendezvous {

inline constexpr int kNodesPerQueue = 1024;
inline constexpr int kMaxQueues = 16;

class StreamServer;

// One call. It is made before its node calls, and lives until gRPC is done with it. Owned by
// itself, and by others that hold it.
class ServerStream : public std::enable_shared_from_this<ServerStream> {
 public:
  ServerStream() = default;
  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;
  virtual ~ServerStream() = default;

 protected:
  // ---- events, on the thread of the call's queue ----
  virtual void opened() = 0;  // a node calls; the first event
  virtual void read(bool ok) = 0;
  virtual void written(bool ok) = 0;
  virtual void cancelled() = 0;  // the call broke, or was broken off
  virtual void done() = 0;       // the last event; comes after finish() and all operations

  // ---- any thread, from opened() until finish() ----
  // One read and one write at a time. finish() must be called once, while no write is under way.
  // An argument must stay in place until the event.
  void start_read(v4::FromNode* message) {
    ++under_way_;
    wire_->stream.Read(message, &read_);
  }
  void start_write(const v4::ToNode& message, grpc::WriteOptions options) {
    ++under_way_;
    wire_->stream.Write(message, options, &written_);
  }
  void finish(const grpc::Status& status) { wire_->stream.Finish(status, &finished_); }
  void cancel() { wire_->context.TryCancel(); }
  const grpc::ServerContext& context() const { return wire_->context; }

 private:
  friend class StreamServer;

  // The parts of a call that gRPC keeps. It ends before gRPC's server does, whoever still holds the
  // stream.
  struct Wire {
    Wire() : stream(&context) {}

    grpc::ServerContext context;
    grpc::ServerAsyncReaderWriter<v4::ToNode, v4::FromNode> stream;
  };
  struct Tag {
    ServerStream* stream;
    void (ServerStream::*happened)(bool ok);
  };

  void await_call(StreamServer& server, grpc::ServerCompletionQueue& queue);
  void release();

  void on_opened(bool ok);
  void on_read(bool ok) {
    read(ok);
    one_less();
  }
  void on_written(bool ok) {
    written(ok);
    one_less();
  }
  void on_finished(bool /*ok*/) { one_less(); }
  void on_over(bool /*ok*/) {
    if (wire_->context.IsCancelled()) cancelled();
    one_less();
  }
  void one_less() {
    if (--under_way_ > 0) return;
    done();
    release();
  }

  Tag opened_{this, &ServerStream::on_opened};
  Tag read_{this, &ServerStream::on_read};
  Tag written_{this, &ServerStream::on_written};
  Tag finished_{this, &ServerStream::on_finished};
  Tag over_{this, &ServerStream::on_over};
  // The events that are to come. Every call has these two: finish() is done, and the call is over.
  std::atomic<int> under_way_ = 2;
  std::optional<Wire> wire_;
  StreamServer* server_ = nullptr;
  grpc::ServerCompletionQueue* queue_ = nullptr;
  std::shared_ptr<ServerStream> self_;  // until release()
};

class StreamServer {
 public:
  // Makes the stream of a call that is to come. Any thread.
  using Make = std::function<std::shared_ptr<ServerStream>()>;

  // Serves about so many nodes, by a server as `builder` describes it.
  StreamServer(grpc::ServerBuilder& builder, int nodes, Make make) : make_(std::move(make)) {
    builder.RegisterService(&service_);
    const int queues = std::clamp((nodes + kNodesPerQueue - 1) / kNodesPerQueue, 1, kMaxQueues);
    for (int i = 0; i < queues; ++i) queues_.push_back(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    if (!server_) return;
    for (const auto& queue : queues_) {
      await_call(*queue);
      threads_.emplace_back([&queue = *queue] { run(queue); });
    }
  }
  StreamServer(const StreamServer&) = delete;
  StreamServer& operator=(const StreamServer&) = delete;
  // After shut_down(), or if the server never started.
  ~StreamServer() {
    for (const auto& queue : queues_) queue->Shutdown();
    threads_.clear();
    for (const auto& queue : queues_) run(*queue);  // gRPC wants a queue to be read to its end
  }

  // Null if gRPC could not start it.
  grpc::Server* server() { return server_.get(); }

  // Sets the answer of gRPC's health service, if there is one.
  void set_serving(bool is_serving) {
    auto* const health = server_->GetHealthCheckService();
    if (health != nullptr) health->SetServingStatus(is_serving);
  }

  // Lets no call in any more, and breaks those off that still run at the end of `limit`. Waits for
  // the end of all.
  void shut_down(std::chrono::milliseconds limit) {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now() + limit);
    std::unique_lock lock(mutex_);
    all_left_.wait(lock, [this] { return streams_ == 0; });
  }

 private:
  friend class ServerStream;

  static void run(grpc::CompletionQueue& queue) {
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
      const auto* happened = static_cast<ServerStream::Tag*>(tag);
      (happened->stream->*happened->happened)(ok);
    }
  }
  void await_call(grpc::ServerCompletionQueue& queue) {
    {
      const std::lock_guard lock(mutex_);
      ++streams_;
    }
    make_()->await_call(*this, queue);
  }
  void left() {
    const std::lock_guard lock(mutex_);
    if (--streams_ == 0) all_left_.notify_all();
  }

  const Make make_;
  v4::Rendezvous::AsyncService service_;
  std::mutex mutex_;
  std::condition_variable all_left_;
  int streams_ = 0;  // that are not released
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::jthread> threads_;
};

inline void ServerStream::await_call(StreamServer& server, grpc::ServerCompletionQueue& queue) {
  self_ = shared_from_this();
  server_ = &server;
  queue_ = &queue;
  wire_.emplace();
  wire_->context.AsyncNotifyWhenDone(&over_);
  server.service_.RequestOpenSession(&wire_->context, &wire_->stream, &queue, &queue, &opened_);
}

// If it is not ok, the server shuts down, and there was no call.
inline void ServerStream::on_opened(bool ok) {
  if (!ok) return release();
  server_->await_call(*queue_);
  opened();
}

inline void ServerStream::release() {
  wire_.reset();
  server_->left();
  self_.reset();  // may destroy this
}

}  // namespace ddprun::rendezvous
