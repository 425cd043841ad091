#include "launcher/doctor/judge.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "base/net/address.h"
#include "base/new_calls.h"
#include "base/numbers.h"
#include "launcher/doctor/judge_devices.h"

namespace ddprun::launcher {
namespace {

constexpr std::uint64_t kMiB = 1ULL << 20U;

std::string bytes_text(std::uint64_t bytes) {
  if (bytes >= 1024 * kMiB)
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1U << 30U));
  if (bytes >= kMiB || bytes == 0) return fmt::format("{} MiB", bytes / kMiB);
  return fmt::format("{} KiB", bytes >> 10U);
}

std::string list_text(const std::vector<std::string>& words) {
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

Finding ok(std::string what, std::string fact) {
  return {Level::kOk, std::move(what), std::move(fact)};
}

// Returns whether the release is one that tests look at: "4.18.0-553.el8" is.
bool is_tested(std::string_view release) {
  constexpr std::pair kOldest{4, 18};
  const auto dot = release.find('.');
  const auto major = leading_number<int>(release);
  const auto minor = dot == std::string_view::npos ? std::optional<int>()
                                                   : leading_number<int>(release.substr(dot + 1));
  return major && minor && std::pair(*major, *minor) >= kOldest;
}

// No missing call is a reason to warn: there is another way without each.
Finding judge_kernel(const NodeFacts& facts) {
  std::string fact = "Linux " + facts.kernel;
  for (const NewCall call : facts.missing_calls) {
    const NewCallRow& row = kNewCalls[static_cast<std::size_t>(call)];
    fact += fmt::format("; without {} ({})", row.name, row.effect);
  }
  if (is_tested(facts.kernel)) return ok("kernel", fact);
  return {Level::kWarning, "kernel", fact, "a kernel from 4.18 on: nobody has tried an older one"};
}

Finding judge_python(const NodeQuestion& question, const NodeFacts& facts) {
  constexpr const char* kWhat = "python";
  if (is_program(facts)) return ok(kWhat, "not needed: the script is a program");
  if (!facts.python)
    return {Level::kFailure, kWhat, "looking for it takes too long",
            "`echo $PATH`, and `stat -f` of each folder: the file system of one of them hangs"};
  const PythonFacts& python = *facts.python;
  // Without a script nobody knows whether one is needed.
  if (python.path.empty())
    return {question.script.empty() && question.mode != Mode::kModule ? Level::kWarning
                                                                      : Level::kFailure,
            kWhat, "no python3 on PATH",
            "activate the environment, or set PYTHON_EXEC=/path/to/python"};
  if (python.hangs)
    return {Level::kFailure, kWhat, python.path + " hangs: it did not answer in time",
            "run it by hand: a slow file system, or a sitecustomize that hangs"};
  if (python.version.empty())
    return {Level::kFailure, kWhat, python.path + " does not run",
            fmt::format("`{} -c 1` says why", python.path)};
  const std::string found = fmt::format("{} {}", python.path, python.version);
  if (python.torch.empty())
    return {Level::kWarning, kWhat, found + ", without torch",
            fmt::format("`{} -m pip install torch`, or activate the environment that has it",
                        python.path)};
  return ok(kWhat, fmt::format("{}, torch {}", found, python.torch));
}

// Docker gives a container 64 MiB, and data loaders and NCCL pass their tensors through it.
Finding judge_shared_memory(const NodeFacts& facts) {
  constexpr std::uint64_t kEnough = 512 * kMiB;
  constexpr const char* kWhat = "shared memory";
  constexpr const char* kRemedy =
      "`docker run --shm-size=8g …`, or in a pod an emptyDir of medium Memory at /dev/shm";
  if (!facts.shared_memory || facts.shared_memory->total_bytes == 0)
    return {Level::kFailure, kWhat, "no /dev/shm", "`mount -t tmpfs tmpfs /dev/shm`"};
  const Space& space = *facts.shared_memory;
  const std::string fact = fmt::format("/dev/shm has {} of {} free", bytes_text(space.free_bytes),
                                       bytes_text(space.total_bytes));
  if (!space.is_writable)
    return {Level::kFailure, kWhat, "/dev/shm cannot be written", "`chmod 1777 /dev/shm`"};
  if (space.total_bytes < kEnough) return {Level::kFailure, kWhat, fact, kRemedy};
  if (space.free_bytes < kEnough)
    return {Level::kWarning, kWhat, fact, "`ls -l /dev/shm`: remove what dead programs left"};
  return ok(kWhat, fact);
}

Finding judge_temporary(const NodeQuestion& question, const NodeFacts& facts) {
  constexpr const char* kWhat = "temporary files";
  if (!facts.temporary || !facts.temporary->is_writable)
    return {Level::kFailure, kWhat, question.temporary_folder + " cannot be written",
            "set TMPDIR to a folder that can"};
  const std::string fact = fmt::format("{} has {} free", question.temporary_folder,
                                       bytes_text(facts.temporary->free_bytes));
  if (facts.temporary->free_bytes < 64 * kMiB)
    return {Level::kWarning, kWhat, fact, "make room, or set TMPDIR to another folder"};
  return ok(kWhat, fact);
}

Finding judge_open_files(const NodeQuestion& question, const NodeFacts& facts) {
  // Ranks and their data loaders open so many files, and one connection for each rank of the job.
  // The usual soft limit of 1024 is enough for small ones.
  const std::uint64_t enough = 512 + static_cast<std::uint64_t>(question.workers) *
                                         static_cast<std::uint64_t>(question.nodes);
  const ResourceLimits& limits = facts.limits;
  if (limits.open_files >= enough)
    return ok("open files", limits.open_files == RLIM_INFINITY
                                ? std::string("no limit")
                                : fmt::format("{} may be open", limits.open_files));
  const bool is_soft = limits.most_open_files >= enough;
  return {limits.open_files < 256 ? Level::kFailure : Level::kWarning, "open files",
          fmt::format("{} may be open", limits.open_files),
          is_soft ? fmt::format("`ulimit -n {}`", enough)
                  : fmt::format("`ulimit -Hn {}` as root; in Docker `--ulimit nofile={}`", enough,
                                enough)};
}

// Cards for InfiniBand read and write memory that must not move.
Finding judge_locked_memory(const NodeFacts& facts) {
  constexpr const char* kWhat = "locked memory";
  const bool is_unlimited = facts.limits.locked_bytes == RLIM_INFINITY;
  constexpr const char* kRemedy =
      "`ulimit -l unlimited`; under Slurm PropagateResourceLimitsExcept=MEMLOCK; in Docker "
      "`--ulimit memlock=-1`";
  const std::string fact =
      is_unlimited ? "no limit" : bytes_text(facts.limits.locked_bytes) + " may be locked";
  if (!is_unlimited && !facts.infiniband.empty())
    return {Level::kFailure, kWhat,
            fmt::format("{}, and {} needs it without a limit", fact, facts.infiniband.front()),
            kRemedy};
  // The kernel itself gives so much (Linux 5.16 on); older ones gave 64 KiB.
  if (facts.limits.locked_bytes < 8 * kMiB) return {Level::kWarning, kWhat, fact, kRemedy};
  return ok(kWhat, fact);
}

Finding judge_processes(const NodeQuestion& question, const NodeFacts& facts) {
  // Threads count, too: a process of PyTorch has some dozens.
  const auto wanted = static_cast<std::uint64_t>(question.workers) * 64;
  const std::string fact = facts.limits.processes == RLIM_INFINITY
                               ? std::string("no limit")
                               : fmt::format("{} may run", facts.limits.processes);
  if (facts.limits.processes >= wanted) return ok("processes", fact);
  return {
      Level::kWarning, "processes",
      fmt::format("{}; {} want {}", fact,
                  question.workers == 1 ? "1 worker" : fmt::format("{} workers", question.workers),
                  wanted),
      fmt::format("`ulimit -u {}`, or more pids for the cgroup", wanted)};
}

Finding judge_own_name(const NodeQuestion& question, const NodeFacts& facts) {
  constexpr const char* kWhat = "own name";
  if (!facts.own_name)
    return {Level::kWarning, kWhat, fmt::format("looking up {} takes too long", facts.host_name),
            fmt::format("put `ADDRESS {}` into /etc/hosts", facts.host_name)};
  const auto& addresses = facts.own_name->addresses;
  if (addresses.empty())
    return {Level::kWarning, kWhat, facts.host_name + " has no address",
            fmt::format("put `ADDRESS {}` into /etc/hosts", facts.host_name)};
  const std::string fact = fmt::format("{} is {}", facts.host_name, list_text(addresses));
  if (question.nodes > 1 && std::all_of(addresses.begin(), addresses.end(), is_loopback))
    return {Level::kWarning, kWhat, fact + ", which other nodes cannot reach",
            fmt::format("give {} its address towards the others in /etc/hosts, or set "
                        "GLOO_SOCKET_IFNAME",
                        facts.host_name)};
  return ok(kWhat, fact);
}

Finding judge_endpoint(const NodeQuestion& question, const NodeFacts& facts) {
  constexpr const char* kWhat = "endpoint";
  constexpr double kSlow = 0.5;
  const std::string& host = question.endpoint_host;
  if (!facts.endpoint)
    return {Level::kFailure, kWhat, fmt::format("looking up {} takes too long", host),
            fmt::format("check the servers in /etc/resolv.conf, or put {} into /etc/hosts", host)};
  const EndpointFacts& endpoint = *facts.endpoint;
  if (endpoint.found.addresses.empty())
    return {Level::kFailure, kWhat, fmt::format("no such host: {}", host),
            fmt::format("check the name, or put `ADDRESS {}` into /etc/hosts", host)};
  const std::string fact = fmt::format("{} is {}", host, list_text(endpoint.found.addresses));
  if (endpoint.probe == ProbeResult::kSilent)
    return {Level::kFailure, kWhat,
            fmt::format("{}, and port {} cannot be reached: {}", fact, question.endpoint_port,
                        endpoint.error),
            fmt::format("let port {} through the firewall, or give all nodes the name of a node "
                        "that is up",
                        question.endpoint_port)};
  if (endpoint.found.seconds > kSlow)
    return {Level::kWarning, kWhat, fmt::format("{}, after {:.1f} s", fact, endpoint.found.seconds),
            "check the servers in /etc/resolv.conf"};
  if (endpoint.probe == ProbeResult::kAnswered)
    return ok(kWhat, fmt::format("{}, and port {} answers", fact, question.endpoint_port));
  if (endpoint.probe == ProbeResult::kRefused)
    return ok(kWhat,
              fmt::format("{}, where nobody serves port {} yet", fact, question.endpoint_port));
  return ok(kWhat, fact);
}

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

// A name with addresses of both kinds is reached by the other one.
Finding judge_ipv6(const NodeFacts& facts) {
  if (facts.has_ipv6) return ok("IPv6", "on");
  std::vector<const LookUp*> names;
  if (facts.own_name) names.push_back(&*facts.own_name);
  if (facts.endpoint) names.push_back(&facts.endpoint->found);
  for (const LookUp* name : names) {
    const auto& all = name->addresses;
    if (all.empty() || !std::all_of(all.begin(), all.end(), is_v6)) continue;
    return {Level::kFailure, "IPv6",
            fmt::format("off, and a name has no other address than {}", list_text(all)),
            "`sysctl net.ipv6.conf.all.disable_ipv6=0`, or give it an IPv4 address in /etc/hosts"};
  }
  return ok("IPv6", "off, and no name needs it");
}

Finding judge_port(std::uint16_t port, const std::string& owner) {
  if (owner.empty()) return ok("port", fmt::format("{} is free", port));
  return {Level::kFailure, "port", fmt::format("{} is taken by {}", port, owner),
          "end that program, or give all nodes another port"};
}

// The port of a rendezvous that is here because its endpoint is. Another ddprun of the job may
// serve it: then it is met there.
void judge_own_endpoint(const NodeQuestion& question, const NodeFacts& facts, Findings& found) {
  const bool is_asked = question.may_serve_endpoint && question.endpoint_port != 0;
  if (!is_asked || !facts.endpoint || !facts.endpoint->is_here) return;
  const std::string& owner = facts.endpoint->port_owner;
  if (owner.find("(ddprun") == std::string::npos)
    found.push_back(judge_port(question.endpoint_port, owner));
}

Finding judge_processors(const NodeQuestion& question) {
  const int available =
      std::min(question.allowed_cpus, question.quota.value_or(question.allowed_cpus));
  const int threads = question.threads > 0 ? question.threads : question.allowed_cpus;
  const std::string fact =
      fmt::format("{} here, workers take {} × {}", available, question.workers, threads);
  if (question.workers * threads <= available) return ok("processors", fact);
  const int fair = std::max(1, available / question.workers);
  if (fair * question.workers > available)
    return {Level::kWarning, "processors", fact,
            fmt::format("`--nproc-per-node={}`, or more processors", available)};
  return {Level::kWarning, "processors", fact, fmt::format("`export OMP_NUM_THREADS={}`", fair)};
}

// Judges the memory that a worker needs to import PyTorch and to have a small model.
Finding judge_memory(const NodeQuestion& question, const NodeFacts& facts) {
  constexpr std::uint64_t kForEach = 512 * kMiB;
  const auto wanted = static_cast<std::uint64_t>(question.workers) * kForEach;
  const std::string fact = fmt::format("{} for {} worker{}", bytes_text(facts.memory_limit_bytes),
                                       question.workers, question.workers == 1 ? "" : "s");
  if (facts.memory_limit_bytes >= wanted || is_program(facts)) return ok("memory", fact);
  return {Level::kWarning, "memory", fact,
          fmt::format("ask for {}: `srun --mem=…`, `docker run --memory=…`, a pod's "
                      "resources.limits.memory",
                      bytes_text(wanted))};
}

Finding judge_orphans(const NodeFacts& facts) {
  constexpr const char* kWhat = "orphans";
  if (!facts.orphans)
    return {Level::kWarning, kWhat, "a process does not answer",
            "`ps -eo pid,stat,wchan:30,cmd | grep ' D'`"};
  if (*facts.orphans == 0) return ok(kWhat, "none");
  return {Level::kWarning, kWhat,
          fmt::format("{} of a job whose launcher is gone",
                      *facts.orphans == 1 ? std::string("1 process")
                                          : fmt::format("{} processes", *facts.orphans)),
          "`ddprun true` ends them, as each start does"};
}

Finding judge_script(const NodeQuestion& question, const NodeFacts& facts) {
  constexpr double kSlow = 0.2;
  if (!facts.script)
    return {Level::kFailure, "script", question.script + " does not answer",
            "its file system hangs: `stat -f` says which one, and copy the script to a local one"};
  const std::string where = facts.script->file_system.empty() ? std::string("a local file system")
                                                              : facts.script->file_system;
  if (!facts.script->is_usable)
    return {Level::kFailure, "script",
            fmt::format("{} cannot be {}", question.script,
                        facts.script->is_program ? "executed" : "read"),
            "check its path and its mode"};
  const std::string fact = fmt::format("{} on {}, read in {:.0f} ms", question.script, where,
                                       facts.script->seconds * 1e3);
  if (facts.script->seconds < kSlow) return ok("script", fact);
  return {Level::kWarning, "script", fact,
          "copy the program and its Python environment to a local disk of each node"};
}

// Looks at the link that `ddprun shims on` has made. An installer may put torch's own back.
void judge_shims(const ShimFacts& shims, Findings& found) {
  const std::string shim = (shims.folder / kShim).string();
  if (shims.torchrun == Torchrun::kOurs) {
    found.push_back(ok("torchrun", shim + " is ddprun"));
  } else if (shims.is_kept) {
    found.push_back({Level::kWarning, "torchrun",
                     shims.torchrun == Torchrun::kOther
                         ? shim + " is torch's again: an installer has put it back"
                         : shim + " is gone: an installer has removed it",
                     "`ddprun shims on`, or `ddprun shims off`"});
  }
}

}  // namespace

Findings judge_node(const NodeQuestion& question, const NodeFacts& facts) {
  Findings found = {judge_python(question, facts)};
  if (!question.script.empty()) found.push_back(judge_script(question, facts));
  judge_shims(facts.shims, found);
  judge_gpus(question, facts, found);
  judge_variables(question, facts, found);
  found.push_back(judge_shared_memory(facts));
  found.push_back(judge_temporary(question, facts));
  found.push_back(judge_open_files(question, facts));
  found.push_back(judge_locked_memory(facts));
  found.push_back(judge_processes(question, facts));
  found.push_back(judge_processors(question));
  found.push_back(judge_memory(question, facts));
  found.push_back(judge_kernel(facts));
  found.push_back(judge_own_name(question, facts));
  if (!question.endpoint_host.empty()) found.push_back(judge_endpoint(question, facts));
  found.push_back(judge_ipv6(facts));
  if (question.served_port != 0) {
    found.push_back(judge_port(question.served_port, facts.port_owner));
  } else {
    judge_own_endpoint(question, facts, found);
  }
  found.push_back(judge_orphans(facts));
  return found;
}

}  // namespace ddprun::launcher
