#include "launcher/doctor/between.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "agent/agent.h"
#include "agent/guardian/guardian.h"
#include "launcher/doctor/peers.h"
#include "launcher/job/command.h"

namespace ddprun::launcher {
namespace {

// The arguments of a worker.
constexpr const char* kDoctorWord = "doctor";
constexpr const char* kPeersWord = "--peers";
// Ours to our workers: what they say of this node, where they write what came out, in which form.
constexpr const char* kSelfVariable = "DDPRUN_DOCTOR_SELF";
constexpr const char* kResultVariable = "DDPRUN_DOCTOR_RESULT";
constexpr const char* kJsonVariable = "DDPRUN_DOCTOR_JSON";

// The user's rendezvous, and nothing of the user's workers.
Options options_of(const Options& job) {
  return {.nodes = job.nodes,
          .node_unit = job.node_unit,
          .workers_per_node = 1,
          .rendezvous = job.rendezvous,
          .endpoint = job.endpoint,
          .port_count = job.port_count,
          .run_id = job.run_id,
          .rendezvous_conf = doctor_rendezvous(job.rendezvous_conf),
          .node_rank = job.node_rank,
          .local_addr = job.local_addr,
          .signals = job.signals,
          .log_dir = "/dev/null",
          .quiet = job.quiet,
          .standby = agent::StandbyMode::kOff,
          .python_hook = false,
          .script = kDoctorWord};
}

std::string own_program() {
  std::array<char, PATH_MAX> path{};
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(length > 0 ? length : 0)};
}

// A file of this node for one word of its worker. It is in no folder, so nothing is left of it
// however this process ends.
class ResultFile {
 public:
  ResultFile() : file_(::memfd_create("ddprun-doctor", MFD_CLOEXEC)) {}
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;
  ~ResultFile() {
    if (file_ >= 0) ::close(file_);
  }
  // As others of this user open it.
  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_); }
  // Nothing if the worker said none.
  std::optional<bool> is_good() const {
    char word = 0;
    if (::pread(file_, &word, 1, 0) != 1) return std::nullopt;
    return word == '0';
  }

 private:
  int file_ = -1;
};

void print(const Findings& found, std::string_view host, bool as_json) {
  const std::string text = as_json ? json_of("between nodes", found) : text_of(found, host);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void write_result(const std::string& path, bool failed) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const auto written = ::write(fd, failed ? "1" : "0", 1);
  ::close(fd);
}

}  // namespace

RendezvousConf doctor_rendezvous(RendezvousConf conf) {
  for (std::chrono::seconds* limit : {&conf.read_timeout, &conf.timeout})
    *limit = std::min(*limit, kRendezvousLimit);
  conf.settings.join_timeout =
      std::min<std::chrono::milliseconds>(conf.settings.join_timeout, kRendezvousLimit);
  return conf;
}

int examine_between(const Options& job, Inheritance inherited, const Peer& self, bool as_json) {
  const ResultFile result;
  inherited.variables.push_back(fmt::format("{}={}", kSelfVariable, write_peer(self)));
  inherited.variables.push_back(fmt::format("{}={}", kResultVariable, result.path()));
  if (as_json) inherited.variables.push_back(fmt::format("{}=1", kJsonVariable));
  const Options options = options_of(job);
  const Command command{.file = own_program(),
                        .head = {std::string(kProgramName), kDoctorWord, kPeersWord},
                        .entry = kDoctorWord};
  const Plan plan = make_plan(options, command, std::move(inherited));
  const agent::GuardedJob guarded{plan.agent.called, plan.agent.job_cookie, plan.agent.signals};
  const int code = agent::run_guarded(guarded, [&plan](const agent::AgentStart& start) {
    return agent::run_agent(plan.agent, start);
  });
  const auto is_good = result.is_good();
  if (!is_good)
    print({{Level::kFailure, "rendezvous",
            fmt::format("the nodes did not meet (exit code {}); stderr has the reason", code),
            "start it on all nodes at once, with one --rdzv-endpoint, --rdzv-id and DDPRUN_TOKEN"}},
          self.host_name, as_json);
  if (code != 0) return code;
  return is_good.value_or(false) ? 0 : 1;
}

bool is_peer(const std::vector<std::string>& args, const EnvLookup& env) {
  return args == std::vector<std::string>{kDoctorWord, kPeersWord} && env(kResultVariable);
}

int run_peers(const EnvLookup& env) {
  const auto worker = decode_worker_env(env);
  if (!worker || !*worker) {
    std::fprintf(stderr, "ddprun: doctor %s: expected to be started by `ddprun doctor`\n",
                 kPeersWord);
    return 2;
  }
  const Peer self = read_peer(env(kSelfVariable).value_or("")).value_or(Peer{});
  auto found = examine_peers(**worker, self);
  if (!found)
    found = Findings{{Level::kFailure, self.host_name, found.error().message(),
                      "let the ports that the kernel gives out through the firewall"}};
  const bool failed = has_failure(*found);
  write_result(env(kResultVariable).value_or(""), failed);
  if ((*worker)->rank == 0) print(*found, {}, env(kJsonVariable).has_value());
  return 0;
}

}  // namespace ddprun::launcher
