#include "agent/report/out_of_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>

#include "base/memory_cgroup.h"
#include "base/numbers.h"

namespace ddprun::agent {
namespace {

// /dev/kmsg gives one record per read and refuses a smaller buffer
// (Documentation/ABI/testing/dev-kmsg).
constexpr std::size_t kRecordBytes = 8192;
// The text between `before` and the next comma or blank. Empty if `before` is not in the line.
std::string_view field(std::string_view line, std::string_view before) {
  const auto at = line.find(before);
  if (at == std::string_view::npos) return {};
  const auto rest = line.substr(at + before.size());
  return rest.substr(0, rest.find_first_of(", "));
}

// The kernel's lines have a unit behind the number ("65536kB").
std::optional<std::uint64_t> kib(std::string_view text) {
  const auto value = leading_number<std::uint64_t>(text);
  return value ? std::optional(*value * 1024) : std::nullopt;
}

// Adds the limit, if there is none yet, and the peak. The peak of the files is better than the use
// that the log told. It is from all of the time.
void read_files(const MemoryFolder& folder, OutOfMemory& record) {
  if (!record.limit_bytes)
    record.limit_bytes =
        read_cgroup_number(folder.path + (folder.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto peak =
      read_cgroup_number(folder.path + (folder.v2 ? "/memory.peak" : "/memory.max_usage_in_bytes"));
  if (peak) record.peak_bytes = peak;
}

struct ChargedCgroup {
  std::string cgroup;
  MemoryFolder folder;
};

// The cgroup to which our memory is charged. It is our own, or the nearest above it that has the
// controller. It may be on for a part of the tree only (version 2, "Controlling Controllers").
std::optional<ChargedCgroup> charged_cgroup() {
  for (std::string cgroup = own_memory_cgroup(); !cgroup.empty();) {
    if (const auto folder = memory_folder(cgroup)) return ChargedCgroup{cgroup, *folder};
    const auto parent = cgroup.rfind('/');
    if (cgroup == "/" || parent == std::string::npos) break;
    cgroup.resize(std::max<std::size_t>(parent, 1));
  }
  return std::nullopt;
}

std::string in_mib(std::uint64_t bytes) {
  constexpr double kMib = 1 << 20;
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMib);
}

// Other constraints mean that the host, or a NUMA node of it, had no memory left.
OutOfMemory record_of(std::string_view kill, std::optional<std::uint64_t> limit,
                      std::optional<std::uint64_t> usage) {
  if (kill.find("CONSTRAINT_MEMCG") == std::string_view::npos) return {};
  return {std::string(field(kill, "oom_memcg=")), limit, usage};
}

// Whether the victim was in `cgroup` or below it. The kernel names cgroups from the host's root,
// and a process of a container from the container's.
bool was_in(std::string_view cgroup, std::string_view victim) {
  if (cgroup == "/") return true;
  return victim.ends_with(cgroup) || victim.find(fmt::format("{}/", cgroup)) != victim.npos;
}

// A kill that the kernel's log tells of.
struct LoggedKill {
  std::optional<std::uint64_t> pid{};
  std::string victim_cgroup{};  // to which the victim's memory was charged
  OutOfMemory record{};         // limit and peak only if the log tells them
};

// The oldest comes first, as in the lines.
std::vector<LoggedKill> logged_kills(const std::vector<std::string>& kernel_lines) {
  std::vector<LoggedKill> kills;
  std::optional<std::uint64_t> usage;
  std::optional<std::uint64_t> limit;
  for (const std::string& line : kernel_lines) {
    // The kernel prints the use and the limit of the cgroup first, then the line with the victim.
    if (line.starts_with("memory: usage ")) {
      usage = kib(field(line, "usage "));
      limit = kib(field(line, "limit "));
    }
    if (!line.starts_with("oom-kill:")) continue;
    kills.push_back({.pid = leading_number<std::uint64_t>(field(line, ",pid=")),
                     .victim_cgroup = std::string(field(line, ",task_memcg=")),
                     .record = record_of(line, limit, usage)});
    // They belonged to that kill. The next one may be of the whole host, and has none.
    usage.reset();
    limit.reset();
  }
  return kills;
}

}  // namespace

std::optional<OutOfMemory> find_out_of_memory(const std::vector<std::string>& kernel_lines,
                                              int pid) {
  const std::vector<LoggedKill> kills = logged_kills(kernel_lines);
  const auto found = std::find_if(kills.begin(), kills.end(), [pid](const LoggedKill& kill) {
    return kill.pid == static_cast<std::uint64_t>(pid);
  });
  return found == kills.end() ? std::nullopt : std::optional(found->record);
}

std::optional<OutOfMemory> last_out_of_memory(const std::vector<std::string>& kernel_lines,
                                              std::string_view cgroup) {
  const std::vector<LoggedKill> kills = logged_kills(kernel_lines);
  const auto found = std::find_if(kills.rbegin(), kills.rend(), [cgroup](const LoggedKill& kill) {
    return was_in(cgroup, kill.victim_cgroup);
  });
  return found == kills.rend() ? std::nullopt : std::optional(found->record);
}

bool is_word_of_a_kill(std::string_view line) {
  constexpr std::array<std::string_view, 8> kWords = {"killed by signal: Killed",
                                                      "SIGKILL",
                                                      "by signal: 9",
                                                      "signal: -9",
                                                      "exit code -9",
                                                      "status -9",
                                                      "exitcode: -9",
                                                      "terminated abruptly"};
  // bash: "train.sh: line 3:    12 Killed   python train.py"
  if (line == "Killed" || line.ends_with(" Killed") || line.find(" Killed  ") != line.npos)
    return true;
  return std::any_of(kWords.begin(), kWords.end(), [line](std::string_view word) {
    return line.find(word) != std::string_view::npos;
  });
}

std::string describe(const OutOfMemory& record) {
  if (record.cgroup.empty()) return "out of memory: the kernel killed it, the host had none left";
  std::string text = fmt::format("out of memory in cgroup {}", record.cgroup);
  if (record.limit_bytes) text += fmt::format(": limit {}", in_mib(*record.limit_bytes));
  if (record.peak_bytes) text += fmt::format(", peak {}", in_mib(*record.peak_bytes));
  return text;
}

// O_NONBLOCK: a read at the end of the log would wait for the next message. SEEK_END goes behind
// the newest message (Documentation/ABI/testing/dev-kmsg).
void KernelLog::open() {
  if (is_open_) return;
  is_open_ = true;
  log_ = FileHandle(::open(path_, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (log_.get() >= 0) ::lseek(log_.get(), 0, SEEK_END);
}

std::vector<std::string> KernelLog::read_new() {
  std::vector<std::string> lines;
  if (log_.get() < 0) return lines;
  std::array<char, kRecordBytes> buffer;
  while (true) {
    const ssize_t got = ::read(log_.get(), buffer.data(), buffer.size());
    // EPIPE: the kernel has overwritten messages that we did not read yet. The next read goes on
    // with the oldest that is left.
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (got <= 0) return lines;
    // A record is "priority,number,time,flags;text". Lines behind the first are a dictionary.
    const std::string_view record(buffer.data(), static_cast<std::size_t>(got));
    const auto head = record.find(';');
    if (head == std::string_view::npos) continue;
    const auto text = record.substr(head + 1);
    lines.emplace_back(text.substr(0, text.find('\n')));
  }
}

std::optional<std::uint64_t> own_cgroup_oom_kills() {
  const auto charged = charged_cgroup();
  if (!charged) return std::nullopt;
  const MemoryFolder& folder = charged->folder;
  std::ifstream file(folder.path + (folder.v2 ? "/memory.events" : "/memory.oom_control"));
  std::string key;
  for (std::uint64_t value = 0; file >> key >> value;) {
    if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

OutOfMemory exhausted_cgroup(MemoryFolder folder, std::string cgroup) {
  OutOfMemory found{.cgroup = cgroup};
  std::optional<std::uint64_t> least_room;
  if (cgroup == "/") cgroup.clear();
  while (true) {
    OutOfMemory here{.cgroup = cgroup.empty() ? "/" : cgroup};
    read_files(folder, here);
    if (here.limit_bytes) {
      const std::uint64_t room =
          *here.limit_bytes - std::min(here.peak_bytes.value_or(0), *here.limit_bytes);
      // The kernel charges pages in batches, so a limit that is met is not used to the last byte.
      // Cgroups above may be full of files: the lowest one that is met is named.
      if (room * 100 <= *here.limit_bytes) return here;
      if (!least_room || room < *least_room) {
        least_room = room;
        found = std::move(here);
      }
    }
    if (cgroup.empty()) return found;
    folder.path.resize(folder.path.rfind('/'));
    cgroup.resize(cgroup.rfind('/'));
  }
}

std::string own_charged_cgroup() {
  const auto charged = charged_cgroup();
  return charged ? charged->cgroup : "/";
}

OutOfMemory own_cgroup_memory() {
  auto charged = charged_cgroup();
  if (!charged) return {.cgroup = own_memory_cgroup()};
  return exhausted_cgroup(std::move(charged->folder), std::move(charged->cgroup));
}

void complete(OutOfMemory& record) {
  const auto folder = record.cgroup.empty() ? std::nullopt : memory_folder(record.cgroup);
  if (folder) read_files(*folder, record);
}

KillExplainer::KillExplainer(KernelLog log, Count oom_kills, Cgroup own_cgroup)
    : log_(std::move(log)), oom_kills_(std::move(oom_kills)), own_cgroup_(std::move(own_cgroup)) {}

// Says less rather than something wrong. Only a record of this pid, or a count that rose in this
// attempt, proves an out-of-memory kill.
std::string KillExplainer::explain(int pid) {
  read_log();
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

bool KillExplainer::has_killed_here() const {
  const auto kills = oom_kills_();
  return kills && kills_before_ && *kills > *kills_before_;
}

void KillExplainer::attempt_started() {
  kills_before_ = oom_kills_();
  read_log();
  lines_before_ = lines_.size();
}

void KillExplainer::read_log() {
  for (std::string& line : log_.read_new()) lines_.push_back(std::move(line));
}

std::optional<OutOfMemory> KillExplainer::last_in_log(std::string_view cgroup) const {
  return last_out_of_memory(
      {lines_.begin() + static_cast<std::ptrdiff_t>(lines_before_), lines_.end()}, cgroup);
}

// Other processes may share our cgroup, and others yet the host. So it is not said whose child it
// was. A count that rose tells of our cgroup, and the kills of others are passed over.
std::string KillExplainer::explain_child(bool says_killed) {
  read_log();
  const auto kills = oom_kills_();
  const bool is_ours = kills && kills_before_ && *kills > *kills_before_;
  if (!is_ours && !says_killed) return {};
  auto record = last_in_log(is_ours ? own_cgroup_() : "/");
  if (record) complete(*record);
  if (!record && is_ours) record = own_cgroup_memory();
  if (!record) return {};
  return "the kernel killed a process beside it in this attempt: " + describe(*record);
}

}  // namespace ddprun::agent
