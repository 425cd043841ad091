#include "launcher/job/host_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "base/allowed_cpus.h"
#include "base/random_number.h"
#include "launcher/job/accelerators.h"
#include "launcher/scheduler/cpu_quota.h"
#include "launcher/scheduler/run_child.h"
#include "launcher/scheduler/start_mark.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

// As much as the kernel reads to find a `#!` line (BINPRM_BUF_SIZE).
constexpr std::size_t kHeadBytes = 256;

// CPUs of the affinity mask, as torchrun counts for `cpu` from 2.12 on. Releases before that count
// the machine's. In a part of a machine that is many times too many.
int cpu_count() {
  const int allowed = static_cast<int>(allowed_cpus().size());
  return allowed > 0 ? allowed : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

// The same, and no more than the cgroup's quota.
int allowed_cpu_count() {
  const int count = cpu_count();
  return std::min(count, cpu_quota("/").value_or(count));
}

// A node file: a line for each slot of a job. A larger one is none.
constexpr std::size_t kMaxNodeFileBytes = 16U << 20U;

std::optional<std::string> read_node_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxNodeFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.empty()) return std::nullopt;
  return text;
}

// A resolver asks again after 5 s (resolv.conf(5)); more than one lost question holds up no start.
constexpr std::chrono::seconds kNameLimit{6};

// Flux's programs may start a Python and ask a busy daemon.
constexpr std::chrono::seconds kHostsLimit{10};

std::vector<std::string> variable_names() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A host's name with its domain, as the resolver has it.
std::string canonical_name(const std::string& name) {
  const addrinfo hints{.ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return name;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  return list->ai_canonname == nullptr ? name : list->ai_canonname;
}

// This host's name with its domain (gethostname(2), getaddrinfo(3) with AI_CANONNAME). It is that
// of the hosts file, which a pod with a `subdomain` has, or of DNS. Without any, the name alone.
std::string full_host_name() {
  std::string name(HOST_NAME_MAX + 1, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  name.resize(name.find('\0'));
  return run_child([&name] { return canonical_name(name); },
                   std::chrono::steady_clock::now() + kNameLimit)
      .value_or(name);
}

// A random UUID (RFC 4122, version 4).
std::string make_uuid() {
  std::array<unsigned char, 16> bytes{};
  fill_with_random(bytes.data(), bytes.size());
  // The version (4) and the variant have fixed bits.
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0FU) | 0x40U);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3FU) | 0x80U);
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

// The first bytes of a file; an empty text if it cannot be read. It then counts as Python, and
// Python says why it cannot open it.
std::string read_head(const std::string& path) {
  std::string head(kHeadBytes, '\0');
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const auto got = ::read(fd, head.data(), head.size());
  ::close(fd);
  head.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return head;
}

FileFacts inspect(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (error || !fs::exists(status)) return {FileKind::kMissing, false};
  if (fs::is_directory(status)) return {FileKind::kDirectory, false};
  const bool executable = ::access(path.c_str(), X_OK) == 0;
  // A pipe or /dev/stdin is not read here. Its bytes are for the interpreter, and they can be read
  // only once.
  if (!fs::is_regular_file(status)) return {FileKind::kPlain, executable};
  return {kind_of_head(read_head(path)), executable};
}

// Searches as execvp(3) does. An empty entry of PATH is the current folder.
std::optional<std::string> find_on_path(const std::string& path_variable, const std::string& name) {
  if (name.empty()) return std::nullopt;
  std::string_view rest = path_variable;
  while (true) {
    const auto end = std::min(rest.find(':'), rest.size());
    const auto folder = rest.substr(0, end);
    auto candidate = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    const FileFacts found = inspect(candidate);
    if (found.executable && found.kind != FileKind::kDirectory) return candidate;
    if (end == rest.size()) return std::nullopt;
    rest.remove_prefix(end + 1);
  }
}

bool is_environment(const fs::path& place) {
  std::error_code error;
  return fs::exists(place / "pyvenv.cfg", error) || fs::is_directory(place / "conda-meta", error);
}

// Returns whether the environment was made for one tool. pipx and `uv tool` leave a file in it.
// Those of uvx and `pipx run` lie in a cache.
bool is_of_a_tool(const fs::path& place) {
  std::error_code error;
  for (const char* mark : {"pipx_metadata.json", "uv-receipt.toml", "pipx_expires_in"}) {
    if (fs::exists(place / mark, error)) return true;
  }
  const std::string above = place.parent_path().filename();
  return above.starts_with("archive-v") || above.starts_with("environments-v");
}

// Returns whether a folder of packages below `place` holds torch. Debian calls it dist-packages,
// and has one for all of its Pythons.
bool has_torch_below(const fs::path& place) {
  std::error_code error;
  for (const char* library : {"lib", "lib64", "local/lib"}) {
    for (fs::directory_iterator at(place / library, error), end; !error && at != end;
         at.increment(error)) {
      const std::string name = at->path().filename();
      if (!name.starts_with("python3") && !name.starts_with("pypy3")) continue;
      for (const char* packages : {"site-packages/torch", "dist-packages/torch"}) {
        std::error_code absent;
        if (fs::is_directory(at->path() / packages, absent)) return true;
      }
    }
  }
  return false;
}

// The environment that a virtual one is made from, if it uses those packages as well. pyvenv.cfg
// has `home = …/bin` and `include-system-site-packages = true`. Empty if there is none.
fs::path environment_below(const fs::path& place) {
  std::ifstream file(place / "pyvenv.cfg");
  fs::path home;
  bool is_open = false;
  for (std::string line; std::getline(file, line);) {
    const auto sign = line.find('=');
    if (sign == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" =", sign) + 1);
    const auto from = line.find_first_not_of(' ', sign + 1);
    const std::string value = from == std::string::npos ? "" : line.substr(from);
    if (key == "home") home = fs::path(value).parent_path();
    if (key == "include-system-site-packages") is_open = value == "true";
  }
  return is_open ? home : fs::path();
}

PythonPlace python_place(const fs::path& python, std::string found_by) {
  // Links are not resolved: the python3 of a virtual environment is a link to another one's.
  std::error_code no_working_directory;
  const fs::path place = fs::absolute(python, no_working_directory).parent_path().parent_path();
  const fs::path below = environment_below(place);
  return {.path = python,
          .found_by = std::move(found_by),
          .has_torch = has_torch_below(place) || (!below.empty() && has_torch_below(below)),
          .is_of_a_tool = is_of_a_tool(place)};
}

// Empty if this program's file is gone.
fs::path own_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

// Returns the interpreter of the Python environment in whose bin folder ddprun lies, as with its
// torchrun. It does so, too, if the environment is not activated and PATH has another python3. A
// virtual environment has a pyvenv.cfg, one of conda a folder conda-meta.
std::optional<PythonPlace> python_beside_us() {
  const fs::path folder = own_folder();
  if (folder.empty() || !is_environment(folder.parent_path())) return std::nullopt;
  const std::string python = folder / "python3";
  if (!inspect(python).executable) return std::nullopt;
  return python_place(python, "the environment of ddprun");
}

// The entries of `path` but our own folder: uvx puts that in front of PATH.
std::string without_own_folder(std::string_view path) {
  const fs::path own = own_folder();
  std::string kept;
  while (true) {
    const auto end = std::min(path.find(':'), path.size());
    std::error_code error;
    const bool is_own = end > 0 && fs::equivalent(path.substr(0, end), own, error);
    if (!is_own) kept += std::string(path.substr(0, end)) + ':';
    if (end == path.size()) break;
    path.remove_prefix(end + 1);
  }
  if (!kept.empty()) kept.pop_back();
  return kept;
}

std::vector<PythonPlace> users_pythons(const EnvLookup& env, const std::string& path) {
  std::vector<PythonPlace> found;
  const fs::path own = own_folder();
  const auto add = [&](const std::string& python, const char* found_by) {
    std::error_code error;
    if (fs::equivalent(fs::path(python).parent_path(), own, error)) return;
    for (const PythonPlace& other : found) {
      if (fs::equivalent(fs::path(python).parent_path(), fs::path(other.path).parent_path(), error))
        return;
    }
    if (!inspect(python).executable) return;
    found.push_back(python_place(python, found_by));
    found.back().is_active = std::string_view(found_by) != "PATH";
  };
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const auto place = env(variable);
    if (place && !place->empty()) add(*place + "/bin/python3", variable);
  }
  if (const auto python = find_on_path(without_own_folder(path), "python3")) add(*python, "PATH");
  return found;
}

}  // namespace

HostFacts real_host_facts(const EnvLookup& env) {
  return {.cpu_count = cpu_count,
          .accelerators = [env] { return count_accelerators("/", env); },
          .make_run_id = make_uuid,
          .allowed_cpu_count = allowed_cpu_count,
          .scheduler_inputs = {.read_file = read_node_file,
                               .full_host_name = full_host_name,
                               .slurm_step_above = slurm_step_above,
                               .is_typed_at_terminal = is_typed_at_terminal,
                               .ask =
                                   [](const std::vector<std::string>& words) {
                                     return run_program(words, kHostsLimit);
                                   },
                               .variable_names = variable_names},
          .ask = [](const std::vector<std::string>& words) { return run_program(words); }};
}

CommandFacts real_command_facts(const EnvLookup& env) {
  // execvp(3) takes these two folders if PATH is not set (confstr(3), _CS_PATH).
  const std::string path = env("PATH").value_or("/bin:/usr/bin");
  return {inspect, [path](const std::string& name) { return find_on_path(path, name); },
          env("PYTHON_EXEC"), python_beside_us, [env, path] { return users_pythons(env, path); }};
}

}  // namespace ddprun::launcher
