#include "worker/startup/init_method/own_store.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/blocking_wait.h"
#include "proto/job_ports.h"
#include "store/client.h"
#include "store/server.h"

namespace ddprun::worker {
namespace {

// Says whose store it is: another job may serve one at a port of ours.
constexpr const char* kJobKey = "/ddprun/mpi_job";
constexpr std::chrono::milliseconds kOneTry{300};

std::uint16_t port_number(const WorkerEnv& world, int next) {
  return static_cast<std::uint16_t>(world.master_port + next);
}

// Rank 0's. The program has no loop of its own.
class Rank0Store final : public OwnStore {
 public:
  Rank0Store() = default;
  Rank0Store(const Rank0Store&) = delete;
  Rank0Store& operator=(const Rank0Store&) = delete;
  ~Rank0Store() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }
  store::asio::io_context& loop() { return loop_; }
  void serve(store::asio::ip::tcp::acceptor acceptor) {
    server_.serve(std::move(acceptor));
    thread_ = std::thread([this] { loop_.run(); });
  }

 private:
  store::asio::io_context loop_{1};  // outlives the server
  store::Server server_{loop_};
  std::thread thread_;
};

Result<std::unique_ptr<OwnStore>> serve_job_port(WorkerEnv& world) {
  auto store = std::make_unique<Rank0Store>();
  // Other hosts may know this one under another address.
  const std::string address = world.master_addr == "127.0.0.1" ? world.master_addr : "::";
  std::optional<Error> last;
  for (int next = 0; next < kJobPorts; ++next) {
    auto acceptor = bind_listener(store->loop(), address, port_number(world, next), "port");
    if (!acceptor) {
      last = acceptor.error();
      continue;
    }
    world.master_port = port_number(world, next);
    store->serve(std::move(*acceptor));
    // Through the loopback, where it listens in both cases.
    auto client = store::Client::connect("127.0.0.1", world.master_port, std::chrono::seconds(10));
    if (!client) return client.error();
    if (auto said = client->set(kJobKey, world.run_id); !said) return said.error();
    if (auto done = client->ping(); !done) return done.error();
    return std::unique_ptr<OwnStore>(std::move(store));
  }
  return *last;
}

// Nothing if it is. Otherwise why not.
std::optional<Error> is_not_store_of(const WorkerEnv& world, std::uint16_t port) {
  auto client = store::Client::connect(world.master_addr, port, kOneTry);
  if (!client) return client.error();
  const auto job = client->get(kJobKey);
  if (!job) return job.error();
  if (*job == world.run_id) return std::nullopt;
  return Error(ErrorCode::kRejected, fmt::format("another job has port {}", port));
}

Result<std::unique_ptr<OwnStore>> find(WorkerEnv& world, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  BlockingWait wait;
  std::string why;
  while (std::chrono::steady_clock::now() < end) {
    for (int next = 0; next < kJobPorts; ++next) {
      if (auto wrong = is_not_store_of(world, port_number(world, next))) {
        if (next == 0) why = wrong->message();
        wait.tell([&] {
          return fmt::format("rank {} looks for the store of rank 0 at {}, ports {} to {}: {}",
                             world.rank, world.master_addr, world.master_port,
                             port_number(world, kJobPorts - 1), why);
        });
        continue;
      }
      world.master_port = port_number(world, next);
      return std::make_unique<OwnStore>();
    }
  }
  return Error(
      ErrorCode::kTimedOut,
      fmt::format("rank 0 serves no store at {}, ports {} to {}, in {} s: is {} the host of "
                  "rank 0? Start the program with ddprun, or name that host in MASTER_ADDR",
                  world.master_addr, world.master_port, port_number(world, kJobPorts - 1),
                  limit.count(), world.master_addr));
}

}  // namespace

Result<std::unique_ptr<OwnStore>> OwnStore::open(WorkerEnv& world, std::chrono::seconds limit) {
  return world.rank == 0 ? serve_job_port(world) : find(world, limit);
}

Result<std::unique_ptr<OwnStore>> OwnStore::serve(WorkerEnv& world) {
  auto store = std::make_unique<Rank0Store>();
  const bool all_here = world.local_world_size == world.world_size;
  auto acceptor = bind_listener(store->loop(), all_here ? "127.0.0.1" : "::", 0, "port");
  if (!acceptor) return acceptor.error();
  world.master_port = acceptor->local_endpoint().port();
  store->serve(std::move(*acceptor));
  return std::unique_ptr<OwnStore>(std::move(store));
}

}  // namespace ddprun::worker
