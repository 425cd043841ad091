#include "agent/report/out_of_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <utility>

namespace ddprun::agent {
namespace {

// /dev/kmsg gives one record per read and refuses a smaller buffer
// (Documentation/ABI/testing/dev-kmsg).
constexpr std::size_t kRecordBytes = 8192;
// A memory limit above this stands for "none" (cgroup v1 rounds LONG_MAX down to a page).
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// The text between `before` and the next comma or blank; empty where `before` does not occur.
std::string_view field(std::string_view line, std::string_view before) {
  const auto at = line.find(before);
  if (at == std::string_view::npos) return {};
  const auto rest = line.substr(at + before.size());
  return rest.substr(0, rest.find_first_of(", "));
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> kib(std::string_view text) {
  const auto value = number(text);
  return value ? std::optional(*value * 1024) : std::nullopt;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  const auto value = number(text);  // "max": no limit
  return value && *value < kNoLimit ? value : std::nullopt;
}

std::string in_mib(std::uint64_t bytes) {
  constexpr double kMib = 1 << 20;
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMib);
}

// A memory controller's folder, and its file names: version 1 or 2.
struct MemoryFolder {
  std::string path;
  bool v2 = false;
};

// Where the controller may be mounted (systemd's layouts; cgroups(7)).
std::optional<MemoryFolder> memory_folder(const std::string& cgroup) {
  for (const char* root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    const std::string path = root + cgroup;
    if (::access((path + "/memory.limit_in_bytes").c_str(), R_OK) == 0)
      return MemoryFolder{path, false};
    if (::access((path + "/memory.max").c_str(), R_OK) == 0) return MemoryFolder{path, true};
  }
  return std::nullopt;
}

// This process's memory cgroup: version 1's line names the controller, version 2's has none
// (cgroups(7), /proc/pid/cgroup).
std::string own_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string unified;
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (("," + controllers + ",").find(",memory,") != std::string::npos)
      return line.substr(second + 1);
    if (controllers.empty()) unified = line.substr(second + 1);
  }
  return unified;
}

}  // namespace

std::optional<OutOfMemory> find_out_of_memory(const std::vector<std::string>& kernel_lines,
                                              int pid) {
  std::optional<std::uint64_t> usage;
  std::optional<std::uint64_t> limit;
  for (const std::string& line : kernel_lines) {
    if (line.starts_with("memory: usage ")) {  // of the cgroup whose kill follows
      usage = kib(field(line, "usage "));
      limit = kib(field(line, "limit "));
    }
    if (!line.starts_with("oom-kill:")) continue;
    if (number(field(line, ",pid=")) == static_cast<std::uint64_t>(pid)) {
      OutOfMemory found;
      if (line.find("CONSTRAINT_MEMCG") != std::string::npos) {
        found = {std::string(field(line, "oom_memcg=")), limit, usage};
      }
      return found;
    }
    usage.reset();
    limit.reset();
  }
  return std::nullopt;
}

std::string describe(const OutOfMemory& record) {
  if (record.cgroup.empty()) return "out of memory: the kernel killed it, the host had none left";
  std::string text = fmt::format("out of memory in cgroup {}", record.cgroup);
  if (record.limit_bytes) text += fmt::format(": limit {}", in_mib(*record.limit_bytes));
  if (record.peak_bytes) text += fmt::format(", peak {}", in_mib(*record.peak_bytes));
  return text;
}

KernelLog::KernelLog(const char* path) : log_(::open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (log_.get() >= 0) ::lseek(log_.get(), 0, SEEK_END);
}

std::vector<std::string> KernelLog::read_new() {
  std::vector<std::string> lines;
  if (log_.get() < 0) return lines;
  std::array<char, kRecordBytes> buffer;
  while (true) {
    const ssize_t got = ::read(log_.get(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: some were overwritten
    if (got <= 0) return lines;
    const std::string_view record(buffer.data(), static_cast<std::size_t>(got));
    const auto head = record.find(';');
    if (head == std::string_view::npos) continue;
    const auto text = record.substr(head + 1);
    lines.emplace_back(text.substr(0, text.find('\n')));
  }
}

std::optional<std::uint64_t> own_cgroup_oom_kills() {
  const auto folder = memory_folder(own_cgroup());
  if (!folder) return std::nullopt;
  std::ifstream file(folder->path + (folder->v2 ? "/memory.events" : "/memory.oom_control"));
  std::string key;
  for (std::uint64_t value = 0; file >> key >> value;) {
    if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

OutOfMemory own_cgroup_memory() {
  OutOfMemory record{.cgroup = own_cgroup()};
  complete(record);
  return record;
}

void complete(OutOfMemory& record) {
  const auto folder = record.cgroup.empty() ? std::nullopt : memory_folder(record.cgroup);
  if (!folder) return;
  if (!record.limit_bytes)
    record.limit_bytes =
        read_number(folder->path + (folder->v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto peak =
      read_number(folder->path + (folder->v2 ? "/memory.peak" : "/memory.max_usage_in_bytes"));
  if (peak) record.peak_bytes = peak;
}

KillExplainer::KillExplainer(KernelLog log, Count oom_kills)
    : log_(std::move(log)), oom_kills_(std::move(oom_kills)), kills_before_(oom_kills_()) {}

std::string KillExplainer::explain(int pid) {
  for (std::string& line : log_.read_new()) lines_.push_back(std::move(line));
  if (auto record = find_out_of_memory(lines_, pid)) {
    complete(*record);
    return describe(*record);
  }
  const auto kills = oom_kills_();
  const bool counted = kills && kills_before_;
  if (counted && *kills > *kills_before_) return describe(own_cgroup_memory());
  if (!counted && !log_.can_be_read())
    return "sent by another process, or by the out-of-memory killer: neither the kernel's log nor "
           "a cgroup counter can be read here";
  return "sent by another process; no record of the out-of-memory killer";
}

}  // namespace ddprun::agent
