#include "agent/standby/fork_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "agent/standby/python_program.h"
#include "agent/standby/standby_socket.h"
#include "base/log.h"
#include "proto/standby.h"

namespace ddprun::agent {
namespace {

// Workers wait for the imports no longer.
constexpr std::chrono::seconds kLongestImports{60};
// A request is short. A process that does not take it is stopped, or hangs.
constexpr std::chrono::milliseconds kRequestLimit{1000};
// The file that it writes is short. The end of a job does not wait for a slow disk.
constexpr std::chrono::milliseconds kRememberLimit{200};
constexpr std::size_t kRoomBytes = 4096;
constexpr std::size_t kScriptBytes = std::size_t{1} << 20;

// A program that names none of these starts in some 20 ms. A fork server would make that longer.
constexpr std::array kLargePackages = {"torch", "numpy",  "tensorflow", "jax",   "lightning",
                                       "scipy", "pandas", "sklearn",    "keras", "transformers"};

std::string beginning_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kScriptBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// The file of `python -m NAME`, below the current folder.
std::string file_of_module(std::string name) {
  std::ranges::replace(name, '.', '/');
  std::error_code ignored;
  return std::filesystem::exists(name + ".py", ignored) ? name + ".py" : name + "/__main__.py";
}

bool names_a_large_package(const WorkerProgram& program) {
  const auto script = script_of(program);
  if (!script) return false;
  const std::string text =
      beginning_of(script->is_module ? file_of_module(script->name) : script->name);
  return std::ranges::any_of(
      kLargePackages, [&](const char* package) { return text.find(package) != std::string::npos; });
}

bool is_elf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> magic{};
  return file.read(magic.data(), magic.size()) &&
         std::string_view(magic.data(), magic.size()) == "\177ELF";
}

}  // namespace

bool is_worth_sharing(const AgentConfig& config, const WorkerProgram& program) {
  if (config.share_imports == SharedImports::kOff) return false;
  for (int rank = 1; rank < config.worker_count; ++rank) {
    const WorkerProgram other = config.command(rank);
    if (other.file != program.file || other.argv != program.argv) return false;
  }
  // A wrapper might not come to the hook, and would run the user's program.
  if (!is_elf(program.file) || !script_of(program)) return false;
  if (config.share_imports == SharedImports::kOn) return true;
  return config.worker_count > 1 && names_a_large_package(program);
}

SpawnSpec fork_server_program(const AgentConfig& config) {
  const WorkerProgram program = config.command(0);
  const rendezvous::Round round{.world_size = config.worker_count * config.rendezvous.min_nodes,
                                .node_count = config.rendezvous.min_nodes,
                                .master_addr = config.rendezvous.host,
                                .master_port = config.rendezvous.port};
  const LocalFacts facts{.seat = {.role_world_size = round.world_size}};
  Variables env = worker_variables(config, round, 0, facts);
  // /proc/<pid>/environ of a worker has its variables here, as far as they are longer or new.
  env.push_back("DDPRUN_ROOM=" + std::string(kRoomBytes, '.'));
  return {.file = program.file, .argv = program.argv, .env = std::move(env)};
}

ForkServer::ForkServer(asio::io_context& loop, Children& children, std::function<void()> changed)
    : children_(children),
      changed_(std::move(changed)),
      socket_(loop),
      imports_end_(loop, [this] { end("its imports take too long"); }) {}

Result<void> ForkServer::start(SpawnSpec program) {
  auto connection = connect_standby(socket_);
  if (!connection) return connection.error();
  program.control = std::move(*connection);
  const auto pid = children_.spawn_standby(program, -1);
  if (!pid) return pid.error();
  pid_ = *pid;
  state_ = State::kImporting;
  imports_end_.set(now() + kLongestImports);
  hear();
  return {};
}

void ForkServer::hear() {
  socket_.async_read_some(asio::buffer(said_),
                          [this, alive = std::weak_ptr(alive_)](
                              const boost::system::error_code& error, std::size_t read) {
                            if (alive.expired() || state_ == State::kNone) return;
                            const std::string_view said(said_.data(), read);
                            const bool is_idle = said == "n";
                            if (error || !(is_idle || said == "w" || said == "l"))
                              return end(said.starts_with('!') ? said.substr(1) : "it has ended");
                            imports_end_.set(Time::max());
                            state_ = is_idle ? State::kIdle : State::kReady;
                            hear();
                            changed_();
                          });
}

void ForkServer::make(const std::vector<Order>& orders, int cgroup_fd) {
  const std::size_t most = kMostDescriptors - 1;
  for (std::size_t begin = 0; begin < orders.size(); begin += most) {
    std::string text = cgroup_fd < 0 ? "fork" : "fork in cgroup";
    std::vector<int> descriptors;
    if (cgroup_fd >= 0) descriptors.push_back(cgroup_fd);
    for (std::size_t i = begin; i < std::min(begin + most, orders.size()); ++i) {
      text += "\n" + orders[i].page;
      descriptors.push_back(orders[i].connection);
    }
    say(text, descriptors);
  }
}

void ForkServer::learn(const std::vector<std::string>& pages) {
  say_pages("learn", pages);
  if (is_ready()) state_ = State::kLearning;
}

void ForkServer::remember(const std::vector<std::string>& pages) {
  if (!can_learn()) return;
  boost::system::error_code ignored;
  socket_.cancel(ignored);
  say_pages("remember", pages);
  if (can_learn()) await_answer(socket_.native_handle(), said_.size(), now() + kRememberLimit);
  end();
}

void ForkServer::say_pages(std::string text, const std::vector<std::string>& pages) {
  for (const std::string& page : pages) text += "\n" + page;
  say(text, {});
}

void ForkServer::say(const std::string& text, const std::vector<int>& descriptors) {
  if (!can_learn()) return;
  const int socket = socket_.native_handle();
  if (!send_head(socket, text.size(), descriptors) ||
      !send_all(socket, text, now() + kRequestLimit))
    end("it hangs");
}

void ForkServer::end(std::string_view why) {
  if (state_ == State::kNone) return;
  log::info(fmt::format("imports are not shared: {}", why));
  end();
  changed_();
}

void ForkServer::end() {
  state_ = State::kNone;
  imports_end_.set(Time::max());
  children_.end_standby(pid_);
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace ddprun::agent
