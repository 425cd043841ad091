#include "launcher/doctor/gather.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>

#include "agent/processes/orphans.h"
#include "base/bounded.h"
#include "base/duration.h"
#include "base/memory_cgroup.h"
#include "launcher/doctor/endpoint.h"
#include "launcher/doctor/gather_devices.h"
#include "launcher/doctor/port_owner.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// So that what took its whole time is heard of.
constexpr std::chrono::milliseconds kAfterEndpoint{200};

double seconds_since(Clock::time_point begin) { return in_seconds(Clock::now() - begin); }

Space space_of(const std::string& folder) {
  struct statvfs found {};
  if (::statvfs(folder.c_str(), &found) != 0) return {};
  return {.total_bytes = found.f_blocks * found.f_frsize,
          .free_bytes = found.f_bavail * found.f_frsize,
          .is_writable = ::access(folder.c_str(), W_OK) == 0};
}

// File systems whose files are on another host, or behind a program (statfs(2), linux/magic.h).
std::string remote_file_system(const std::string& path) {
  struct statfs found {};
  if (::statfs(path.c_str(), &found) != 0) return {};
  switch (static_cast<std::uint64_t>(found.f_type)) {
    case 0x6969:
      return "nfs";
    case 0x65735546:
      return "fuse";
    case 0x0bd00bd0:
      return "lustre";
    case 0x47504653:
      return "gpfs";
    case 0x00c36400:
      return "ceph";
    case 0xff534d42:
    case 0xfe534d42:
      return "cifs";
    case 0x19830326:
      return "beegfs";
    case 0x01021997:
      return "9p";
    default:
      return {};
  }
}

ScriptFacts read_script(const NodeQuestion& question, const CommandFacts& files) {
  const auto begin = Clock::now();
  std::string path = question.script;
  if (question.mode == Mode::kProgram && path.find('/') == std::string::npos)
    path = files.find_on_path(path).value_or("");
  const FileFacts found = files.inspect(path);
  ScriptFacts facts{.file_system = remote_file_system(path)};
  facts.is_program = question.mode == Mode::kProgram ||
                     (question.mode == Mode::kScript && runs_itself(question.script, found.kind));
  facts.is_usable = facts.is_program ? found.executable && found.kind != FileKind::kDirectory
                                     : ::access(path.c_str(), R_OK) == 0;
  // The content of a pipe can be read only once.
  std::error_code none;
  const int file =
      fs::is_regular_file(path, none) ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1;
  if (file >= 0) {
    std::array<char, 65536> head{};
    facts.is_usable = ::read(file, head.data(), head.size()) >= 0 && facts.is_usable;
    ::close(file);
  }
  facts.seconds = seconds_since(begin);
  return facts;
}

// Those with all of these flags (netdevice(7)).
std::vector<std::string> interface_names(unsigned flags) {
  std::set<std::string> names;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next)
    if ((one->ifa_flags & flags) == flags) names.insert(one->ifa_name);
  ::freeifaddrs(list);
  return {names.begin(), names.end()};
}

std::vector<std::string> infiniband_devices() {
  std::vector<std::string> names;
  std::error_code none;
  for (fs::directory_iterator one("/sys/class/infiniband", none), end; !none && one != end;
       one.increment(none))
    names.push_back(one->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

rlimit limit_of(__rlimit_resource_t what) {
  rlimit limit{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  ::getrlimit(what, &limit);
  return limit;
}

// pids.max of our cgroup (version 2), where it is seen.
std::uint64_t most_pids() {
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (!line.starts_with("0::")) continue;
    std::uint64_t most = 0;
    if (std::ifstream("/sys/fs/cgroup" + line.substr(3) + "/pids.max") >> most) return most;
  }
  return RLIM_INFINITY;
}

ResourceLimits limits() {
  const rlimit files = limit_of(RLIMIT_NOFILE);
  return {.open_files = files.rlim_cur,
          .most_open_files = files.rlim_max,
          .locked_bytes = limit_of(RLIMIT_MEMLOCK).rlim_cur,
          .processes = std::min<std::uint64_t>(limit_of(RLIMIT_NPROC).rlim_cur, most_pids())};
}

std::string kernel_release() {
  utsname system{};
  return ::uname(&system) == 0 ? system.release : "";
}

std::vector<NewCall> missing_calls() {
  std::vector<NewCall> missing;
  for (const NewCallRow& row : kNewCalls)
    if (!has_call(row.call)) missing.push_back(row.call);
  return missing;
}

bool has_ipv6() {
  int off = 1;
  return (std::ifstream("/proc/sys/net/ipv6/conf/all/disable_ipv6") >> off) && off == 0;
}

}  // namespace

std::string own_host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

NodeFacts gather_node(const NodeQuestion& question, const CommandFacts& files,
                      Clock::time_point end) {
  NodeFacts facts;
  facts.host_name = own_host_name();
  facts.kernel = kernel_release();
  facts.missing_calls = missing_calls();
  BoundedQuestion<PythonFacts> python([files, end] { return gather_python(files, end); });
  BoundedQuestion<GpuFacts> gpus([gpus = question.gpus, end] { return gather_gpus(gpus, end); });
  BoundedQuestion<LookUp> own_name([name = facts.host_name] { return look_up(name); });
  std::optional<BoundedQuestion<EndpointFacts>> endpoint;
  if (!question.endpoint_host.empty())
    endpoint.emplace([name = question.endpoint_host, port = question.endpoint_port, end] {
      return gather_endpoint(name, port, end - kAfterEndpoint);
    });
  std::optional<BoundedQuestion<ScriptFacts>> script;
  if (!question.script.empty())
    script.emplace([question, files] { return read_script(question, files); });
  BoundedQuestion<Space> shared([] { return space_of("/dev/shm"); });
  BoundedQuestion<Space> temporary([path = question.temporary_folder] { return space_of(path); });
  BoundedQuestion<std::size_t> orphans(agent::count_orphans);
  facts.interfaces = interface_names(0);
  facts.interfaces_up = interface_names(IFF_UP | IFF_RUNNING);
  facts.infiniband = infiniband_devices();
  facts.limits = limits();
  facts.has_ipv6 = has_ipv6();
  facts.shims = look_at_shims(own_program_folder());
  facts.memory_limit_bytes = memory_left().value_or(0);
  if (question.served_port != 0) facts.port_owner = port_owner(question.served_port);
  facts.python = python.until(end);
  facts.gpus = gpus.until(end);
  facts.own_name = own_name.until(end);
  if (endpoint) facts.endpoint = endpoint->until(end);
  if (script) facts.script = script->until(end);
  facts.shared_memory = shared.until(end);
  facts.temporary = temporary.until(end);
  facts.orphans = orphans.until(end);
  return facts;
}

}  // namespace ddprun::launcher
