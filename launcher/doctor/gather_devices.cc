#include "launcher/doctor/gather_devices.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "launcher/doctor/gather_peer_access.h"
#include "launcher/scheduler/deadlines.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

// A program that hangs is ended before this process goes on without its answer.
std::chrono::milliseconds left_for_program(Clock::time_point end) {
  constexpr std::chrono::milliseconds kToEndIt{300};
  return std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()) - kToEndIt;
}

std::string python_of(const CommandFacts& files) {
  if (files.python_exec && !files.python_exec->empty())
    return files.find_on_path(*files.python_exec).value_or(*files.python_exec);
  const auto found = find_python(files);
  return found ? *found : files.python_exec.value_or("");
}

// Prints the version of Python, then those of torch and of the CUDA that it was built for.
constexpr const char* kFindTorch = R"(
import importlib.util, os, sys
print(sys.version.split()[0])
spec = importlib.util.find_spec("torch")
if spec and spec.submodule_search_locations:
    found = {}
    with open(os.path.join(list(spec.submodule_search_locations)[0], "version.py")) as file:
        exec(file.read(), found)
    print(found.get("__version__", "?"))
    print(found.get("cuda") or "")
)";

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(at), text.size());
    std::string_view part = text.substr(0, end);
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    parts.emplace_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::vector<GpuRow> rows_of(std::string_view csv) {
  std::vector<GpuRow> rows;
  for (const std::string& line : split(csv, '\n')) {
    const std::vector<std::string> columns = split(line, ',');
    if (columns.size() != 7) continue;
    rows.push_back({.index = columns[0],
                    .name = columns[1],
                    .driver = columns[2],
                    .persistence = columns[3],
                    .ecc_errors = columns[4],
                    .remap_pending = columns[5],
                    .remap_failed = columns[6]});
  }
  return rows;
}

// Returns whether a record of the kernel's log, `6,1234,5678901,-;text`, is of the last hour. Its
// third field counts microseconds after boot (Documentation/ABI/testing/dev-kmsg).
bool is_recent(std::string_view record) {
  constexpr std::int64_t kHour = 3600;
  auto at = record.find(',');
  if (at != std::string_view::npos) at = record.find(',', at + 1);
  if (at == std::string_view::npos) return false;
  std::int64_t microseconds = 0;
  std::from_chars(record.data() + at + 1, record.data() + record.size(), microseconds);
  timespec up{};
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  return up.tv_sec - microseconds / 1'000'000 < kHour;
}

// Returns the errors that NVIDIA's driver wrote. Nothing where we may not read the log.
std::vector<std::string> recent_xids() {
  constexpr std::string_view kMark = "NVRM: Xid";
  constexpr int kMostRecords = 100'000;
  std::vector<std::string> found;
  const int log = ::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return found;
  std::array<char, 8192> record{};
  for (int i = 0; i < kMostRecords; ++i) {
    const auto got = ::read(log, record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;  // overwritten while we read
    if (got <= 0) break;
    const std::string_view text(record.data(), static_cast<std::size_t>(got));
    const auto at = text.find(kMark);
    if (at == std::string_view::npos || !is_recent(text)) continue;
    found.emplace_back(text.substr(at, std::min(text.find('\n', at), at + 160) - at));
  }
  ::close(log);
  return found;
}

}  // namespace

PythonFacts gather_python(const CommandFacts& files, Clock::time_point end) {
  PythonFacts found{.path = python_of(files)};
  if (found.path.empty()) return found;
  const auto limit = left_for_program(end);
  const auto begin = Clock::now();
  const auto printed = run_program({found.path, "-c", kFindTorch}, limit);
  if (!printed) {
    found.hangs = Clock::now() - begin >= limit;
    return found;
  }
  std::vector<std::string> lines = split(*printed, '\n');
  lines.resize(3);
  found.version = lines[0];
  found.torch = lines[1];
  found.cuda = lines[2];
  return found;
}

GpuFacts gather_gpus(int counted, Clock::time_point end) {
  GpuFacts gpus;
  std::error_code none;
  for (fs::directory_iterator one("/proc/driver/nvidia/gpus", none), last; !none && one != last;
       one.increment(none))
    ++gpus.listed;
  if (gpus.listed == 0 && counted == 0) return gpus;
  const int control = ::open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  gpus.can_open = control >= 0;
  if (control >= 0) ::close(control);
  gpus.xids = recent_xids();
  const auto csv = run_program(
      {"nvidia-smi",
       "--query-gpu=index,name,driver_version,persistence_mode,"
       "ecc.errors.uncorrected.volatile.total,remapped_rows.pending,remapped_rows.failure",
       "--format=csv,noheader,nounits"},
      left_for_program(end));
  gpus.has_query = csv.has_value();
  if (csv) gpus.rows = rows_of(*csv);
  if (gpus.rows.size() < 2) return gpus;
  gpus.peers = gather_peer_paths("/");
  if (const auto table = run_program({"nvidia-smi", "topo", "-p2p", "r"}, left_for_program(end)))
    read_peer_table(*table, gpus.peers);
  return gpus;
}

}  // namespace ddprun::launcher
