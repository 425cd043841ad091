// Our side of bench/allreduce. It forks the ranks, sums float32 buffers of several sizes and prints
// one line of JSON for each size. It has the time of one sum on rank 0 in microseconds. That time
// goes from launch to complete, as a training step sees it.
//   bench-allreduce [--hosts NAMESPACE=ADDRESS,… | --bound] [--wire bfloat16]
//                   [--operation NAME] RANKS BYTES:REPETITIONS…
// NAME is all_reduce, reduce_scatter, all_gather or all_to_all. BYTES are those of the whole.
// Each rank gives them to a reduce_scatter or an all_to_all, or gets them of an all_gather.
// RANKS are those of a host. With --hosts each host is a network namespace (ip-netns(8)) with that
// address. The lines have the bytes that host 0 sent for one sum. With --bound the ranks do a
// rank's additions of a sum, all at once. Each has memory of its own (of the same kind) and nobody
// to wait for. A repetition begins on all ranks together, and its time is that of the slowest.
#include <ddprun/process.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/core/split.h"
#include "worker/collective/hierarchical/hierarchical_collective.h"
#include "worker/collective/kernels/copy_kernels.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/kernels/sum_kernels.h"
#include "worker/startup/pipe_exchange.h"

namespace {

using ddprun::Collective;
using ddprun::CollectiveError;
using ddprun::Result;
using ddprun::worker::PipeExchange;
using Clock = std::chrono::steady_clock;

// The first sums are not counted: they touch the pages and fill the caches.
constexpr int kWarmUps = 5;

// The limit of one wait for the other ranks.
constexpr std::chrono::seconds kTimeout{60};

// The limit of the whole life of a rank. SIGALRM kills a rank that hangs, so that waitpid() below
// ends.
constexpr unsigned kLifeSeconds = 240;

struct Size {
  std::size_t bytes = 0;
  std::size_t repetitions = 0;
};

struct Host {
  std::string name;  // of its network namespace
  std::string address;
};

enum class Work : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };

std::optional<Work> work_of(std::string_view name) {
  constexpr std::array kNames{"all_reduce", "reduce_scatter", "all_gather", "all_to_all"};
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Work>(found - kNames.begin());
}

struct Options {
  std::vector<Host> hosts;
  bool bound = false;
  Work work = Work::kAllReduce;
  ddprun::Wire wire = ddprun::Wire::kExact;
  int local_ranks = 0;
  std::vector<Size> sizes;

  int ranks() const { return local_ranks * std::max<int>(1, static_cast<int>(hosts.size())); }
};

template <typename Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_size(std::string_view text, Size& size) {
  const auto colon = text.find(':');
  return colon != std::string_view::npos && parse(text.substr(0, colon), size.bytes) &&
         parse(text.substr(colon + 1), size.repetitions) && size.repetitions > 0;
}

bool parse_hosts(std::string_view text, std::vector<Host>& hosts) {
  while (!text.empty()) {
    const auto end = std::min(text.find(','), text.size());
    const auto one = text.substr(0, end);
    const auto equals = one.find('=');
    if (equals == std::string_view::npos) return false;
    hosts.push_back({std::string(one.substr(0, equals)), std::string(one.substr(equals + 1))});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return hosts.size() > 1;
}

std::optional<Options> parse_command(std::vector<std::string_view> words) {
  Options options;
  while (!words.empty() && words.front().starts_with("--")) {
    const bool has_value = words.size() > 1;
    if (words.front() == "--bound") {
      options.bound = true;
      words.erase(words.begin());
    } else if (has_value && words.front() == "--wire" && words[1] == "bfloat16") {
      options.wire = ddprun::Wire::kBFloat16;
      words.erase(words.begin(), words.begin() + 2);
    } else if (has_value && words.front() == "--operation" && work_of(words[1])) {
      options.work = *work_of(words[1]);
      words.erase(words.begin(), words.begin() + 2);
    } else if (has_value && words.front() == "--hosts" && parse_hosts(words[1], options.hosts)) {
      words.erase(words.begin(), words.begin() + 2);
    } else {
      return std::nullopt;
    }
  }
  if (words.size() < 2 || !parse(words[0], options.local_ranks)) return std::nullopt;
  for (const std::string_view word : std::span(words).subspan(1)) {
    if (!parse_size(word, options.sizes.emplace_back())) return std::nullopt;
  }
  const bool fits = options.local_ranks >= 1 && options.ranks() <= 64;
  return fits ? std::optional(options) : std::nullopt;
}

// Bytes that this network namespace has sent, but for loopback (proc_pid_net(5), dev).
std::uint64_t bytes_sent() {
  std::ifstream table("/proc/thread-self/net/dev");
  std::string line;
  std::uint64_t sum = 0;
  while (std::getline(table, line)) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).ends_with(" lo")) continue;
    std::uint64_t value = 0;
    const char* rest = line.c_str() + colon + 1;
    for (int column = 0; column < 9; ++column) {
      char* end = nullptr;
      value = std::strtoull(rest, &end, 10);
      rest = end;
    }
    sum += value;
  }
  return sum;
}

struct Times {
  double first = 0;         // of the first sum in this memory
  std::vector<double> all;  // of each repetition
  std::uint64_t sent = 0;   // bytes on the link for one sum
};

template <typename Act>
double microseconds(Act act) {
  const auto start = Clock::now();
  act();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Each rank has as many elements in a row.
std::vector<ddprun::Part> even_parts(std::size_t count, int ranks) {
  const std::size_t block = count / static_cast<std::size_t>(ranks);
  std::vector<ddprun::Part> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t begin = block * static_cast<std::size_t>(rank);
    parts.push_back({rank, begin, begin + block});
  }
  return parts;
}

// From the first half of 2·count elements into the second one.
std::vector<ddprun::Transfer> even_transfers(std::size_t count, int ranks) {
  std::vector<ddprun::Transfer> transfers;
  for (const ddprun::Part& from : even_parts(count, ranks)) {
    for (const ddprun::Part& to : even_parts(count, ranks))
      transfers.push_back({from.owner, to.owner, to.begin, to.end, count + from.begin});
  }
  return transfers;
}

ddprun::Ticket launch(Collective& collective, Work work, const ddprun::Flat& flat) {
  const int ranks = collective.world_size();
  switch (work) {
    case Work::kReduceScatter:
      return collective.launch_reduce_scatter(flat, even_parts(flat.count, ranks),
                                              ddprun::Reduction::kSum);
    case Work::kAllGather:
      return collective.launch_all_gather(flat, even_parts(flat.count, ranks));
    case Work::kAllToAll:
      return collective.launch_all_to_all(flat, even_transfers(flat.count / 2, ranks));
    case Work::kAllReduce:
      break;
  }
  return collective.launch_sum(flat);
}

// The ranks need no barrier between two sums. A sum is complete on one rank only when all have
// added their chunks.
Times time_operations(Collective& collective, Work work, const Size& size) {
  const std::size_t bytes = work == Work::kAllToAll ? 2 * size.bytes : size.bytes;
  const auto memory = collective.allocate(bytes);
  const ddprun::Flat flat{memory.get(), bytes / sizeof(float), ddprun::Dtype::kFloat32};
  const auto act = [&] { collective.wait(launch(collective, work, flat)); };
  Times times;
  collective.barrier();
  times.first = microseconds(act);
  for (int i = 1; i < kWarmUps; ++i) act();
  collective.barrier();
  const std::uint64_t before = bytes_sent();
  for (std::size_t i = 0; i < size.repetitions; ++i) times.all.push_back(microseconds(act));
  collective.barrier();
  times.sent = (bytes_sent() - before) / size.repetitions;
  return times;
}

// For each repetition the time of the rank that took longest: a sum is complete when the slowest
// has added.
void take_slowest(Collective& all, std::vector<double>& times) {
  const std::size_t bytes = times.size() * sizeof(double);
  const auto memory = all.allocate(bytes);
  std::memcpy(memory.get(), times.data(), bytes);
  all.wait(
      all.launch({memory.get(), times.size(), ddprun::Dtype::kFloat64}, ddprun::Reduction::kMax));
  std::memcpy(times.data(), memory.get(), bytes);
}

// A rank's own work on its chunk of all ranks' buffers.
void do_own_work(Work work, const std::vector<std::byte*>& buffers, std::size_t chunk) {
  using namespace ddprun::worker;
  const std::size_t count = chunk / sizeof(float);
  switch (work) {
    case Work::kAllReduce:
      return sum_to_all(buffers, count, ddprun::Dtype::kFloat32, Rounding::kEach);
    case Work::kReduceScatter:
      return reduce_to_one(buffers[0], buffers, count, ddprun::Dtype::kFloat32,
                           ddprun::Reduction::kSum);
    case Work::kAllGather:
      return copy_first_to_all(buffers, chunk);
    case Work::kAllToAll:
      break;
  }
  const std::size_t half = buffers.size() / 2;
  for (std::size_t from = 0; from < half; ++from)
    copy_bytes(buffers[half + from], buffers[from], chunk);
}

// Measures a rank's own work. All begin together, each time.
Times time_bound(Collective& all, Work work, const Size& size) {
  const int ranks = all.world_size();
  const std::size_t chunk = size.bytes / static_cast<std::size_t>(ranks);
  PipeExchange nobody(1);
  const auto alone = ddprun::worker::join_shm({0, 1, kTimeout}, nobody).value();
  std::vector<std::shared_ptr<std::byte>> memory;
  std::vector<std::byte*> buffers;
  for (int i = 0; i < (work == Work::kAllToAll ? 2 * ranks : ranks); ++i) {
    memory.push_back(alone->allocate(chunk));
    buffers.push_back(memory.back().get());
  }
  const auto act = [&] { do_own_work(work, buffers, chunk); };
  Times times;
  all.barrier();
  times.first = microseconds(act);
  for (int i = 1; i < kWarmUps; ++i) act();
  for (std::size_t i = 0; i < size.repetitions; ++i) {
    all.barrier();
    times.all.push_back(microseconds(act));
  }
  take_slowest(all, times.all);
  return times;
}

void print(const Options& options, const Size& size, Times times) {
  std::ranges::sort(times.all);
  const auto quantile = [&](double q) {
    return times.all[static_cast<std::size_t>(q * static_cast<double>(times.all.size() - 1))];
  };
  const std::string sent =
      options.hosts.empty() ? "" : fmt::format(", \"sent_bytes\": {}", times.sent);
  fmt::print(
      "{{\"bytes\": {}, \"first_us\": {:.2f}, \"p10_us\": {:.2f}, \"median_us\": {:.2f}, "
      "\"p90_us\": {:.2f}{}}}\n",
      size.bytes, times.first, quantile(0.1), quantile(0.5), quantile(0.9), sent);
}

// How the ranks find each other; made before they are forked.
struct Exchanges {
  explicit Exchanges(const Options& options) : all(options.ranks()) {
    for (std::size_t host = 0; host < options.hosts.size(); ++host)
      hosts.push_back(std::make_unique<PipeExchange>(options.local_ranks));
    for (int local = 0; !options.hosts.empty() && local < options.local_ranks; ++local)
      peers.push_back(std::make_unique<PipeExchange>(static_cast<int>(options.hosts.size())));
  }
  PipeExchange all;
  std::vector<std::unique_ptr<PipeExchange>> hosts;  // the ranks of each host
  std::vector<std::unique_ptr<PipeExchange>> peers;  // those with the same local rank
};

// From here on this process is on that host.
void move_to(const Host& host) {
  const std::string path = "/run/netns/" + host.name;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0)
    throw CollectiveError("enter network namespace " + host.name + ": it takes root");
  ::close(fd);
}

Result<std::unique_ptr<Collective>> join_hosts(int rank, const Options& options,
                                               Exchanges& exchanges) {
  using namespace ddprun::worker;
  const int hosts = static_cast<int>(options.hosts.size());
  const int host = rank / options.local_ranks;
  const int local = rank % options.local_ranks;
  const Host& here = options.hosts[static_cast<std::size_t>(host)];
  move_to(here);
  const auto job = [&](int one, int of) {
    return TcpJob{.rank = one,
                  .ranks = of,
                  .address = here.address,
                  .host = here.name,
                  .timeout = kTimeout,
                  .wire = options.wire};
  };
  HierarchicalParts parts;
  parts.all = join_tcp(job(rank, options.ranks()), exchanges.all).value();
  if (options.local_ranks == 1) return std::unique_ptr<Collective>(std::move(parts.all));
  parts.peers =
      join_tcp(job(host, hosts), *exchanges.peers[static_cast<std::size_t>(local)]).value();
  parts.host = join_shm({local, options.local_ranks, kTimeout},
                        *exchanges.hosts[static_cast<std::size_t>(host)])
                   .value();
  return make_hierarchical_collective(std::move(parts));
}

Result<std::unique_ptr<Collective>> join(int rank, const Options& options, Exchanges& exchanges) {
  if (!options.hosts.empty()) return join_hosts(rank, options, exchanges);
  return ddprun::worker::as_collective(
      ddprun::worker::join_shm({rank, options.ranks(), kTimeout}, exchanges.all));
}

int run_rank(int rank, const Options& options, Exchanges& exchanges) {
  try {
    auto collective = join(rank, options, exchanges).value();
    for (const Size& size : options.sizes) {
      Times times = options.bound ? time_bound(*collective, options.work, size)
                                  : time_operations(*collective, options.work, size);
      if (rank == 0) print(options, size, std::move(times));
    }
  } catch (const ddprun::LoggedError&) {
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-allreduce: {}\n", error.what());
    return 1;
  }
  return 0;
}

int run_ranks(const Options& options) {
  Exchanges exchanges(options);
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks(); ++rank) {
    const pid_t child = ::fork();
    if (child > 0) children.push_back(child);
    if (child != 0) continue;
    ::alarm(kLifeSeconds);
    // The script kills this program at a deadline; its ranks shall not live on.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int status = run_rank(rank, options, exchanges);
    // _exit, since the parent's objects (the pipes' owner, for example) are not ours to destroy. It
    // does not flush.
    std::fflush(stdout);
    ::_exit(status);
  }
  int failed = std::ssize(children) == options.ranks() ? 0 : 1;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = parse_command({argv + 1, argv + argc});
  if (!options) {
    fmt::print(stderr,
               "usage: bench-allreduce [--hosts NAMESPACE=ADDRESS,… | --bound] [--wire bfloat16] "
               "[--operation NAME] RANKS BYTES:REPETITIONS…\n");
    return 2;
  }
  return run_ranks(*options);
}
