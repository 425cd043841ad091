// The facts that the doctor sees of one node, as plain values, and the question about it. Nearly no
// logic: gather.h fills them in, judge.h says what they mean. Copyable.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/new_calls.h"
#include "launcher/options/options.h"
#include "launcher/shims/shims.h"

namespace ddprun::launcher {

// The job that shall run here, as far as it matters.
struct NodeQuestion {
  int workers = 1;
  int nodes = 1;          // the most of the job
  int gpus = 0;           // NVIDIA's that the launcher counts: those of a container, and not hidden
  Accelerators others{};  // of other kinds, as the launcher counts them
  Mode mode = Mode::kScript;        // what `script` is
  std::string script{};             // path, or name on PATH; empty: not named, or a module
  std::string endpoint_host{};      // of the rendezvous, where it is another host's name
  std::uint16_t endpoint_port = 0;  // 0: none is asked for an answer
  bool may_serve_endpoint = true;   // where that is this node; else another program is there
  std::uint16_t served_port = 0;    // that this node must be able to bind; 0: any
  std::string temporary_folder = "/tmp";
  int threads = 0;             // OMP_NUM_THREADS as workers get it; 0: each takes all processors
  std::optional<int> quota{};  // processors by the cgroup; nothing: no limit
  int allowed_cpus = 1;        // by affinity
  // NCCL_… and GLOO_… as workers inherit them.
  std::map<std::string, std::string> variables{};
};

struct PythonFacts {
  std::string path{};  // of the workers' interpreter; empty: none was found
  bool hangs = false;  // it did not end in time
  std::string version{};
  std::string torch{};  // empty: not found
  std::string cuda{};   // that torch was built for; empty: none
};

struct GpuRow {
  std::string index{}, name{}, driver{}, persistence{}, ecc_errors{}, remap_pending{},
      remap_failed{};
};

// Two GPUs of which nvidia-smi says that they cannot read each other's memory.
struct RefusedPair {
  std::string one{}, other{}, word{};  // "GPU0", "GPU1", "CNS"

  bool operator==(const RefusedPair&) const = default;
};

// How GPUs reach each other's memory.
struct PeerAccessFacts {
  int gpus_asked = 0;  // rows of nvidia-smi's table; 0: no answer
  std::vector<RefusedPair> refused{};
  std::string iommu{};  // the name of one that translates addresses of a GPU; empty: none does
  std::vector<std::string> redirecting{};  // PCI addresses of bridges with ACS on, above a GPU
  bool is_acs_hidden = false;              // this user may not read it, of a bridge or more
};

struct GpuFacts {
  int listed = 0;          // in /proc/driver/nvidia/gpus: all of this host's
  bool can_open = false;   // /dev/nvidiactl, by this user
  bool has_query = false;  // nvidia-smi answered
  std::vector<GpuRow> rows{};
  std::vector<std::string> xids{};  // lines of the kernel's log, of the last hour
  PeerAccessFacts peers{};
};

struct Space {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool is_writable = false;
};

struct LookUp {
  std::vector<std::string> addresses{};  // numeric; none: no such name
  double seconds = 0;
};

// The result of a connection to the endpoint.
enum class ProbeResult {
  kNotTried,  // it is this node, or has no address
  kAnswered,
  kRefused,  // the host is there, and nobody listens yet
  kSilent,
};

struct EndpointFacts {
  LookUp found{};
  bool is_here = false;      // an address is one of this node
  std::string port_owner{};  // with is_here: another program that has the port
  ProbeResult probe = ProbeResult::kNotTried;
  std::string error{};  // with kSilent
};

struct ScriptFacts {
  std::string file_system{};  // "nfs", "fuse", …; empty: a local one
  bool is_program = false;    // no Python is needed
  bool is_usable = false;     // can be read; a program: executed
  double seconds = 0;         // to find it, and to read its beginning
};

// Soft limits, which workers inherit. RLIM_INFINITY: no limit.
struct ResourceLimits {
  std::uint64_t open_files = 0;
  std::uint64_t most_open_files = 0;  // up to which `ulimit -n` may go
  std::uint64_t locked_bytes = 0;
  std::uint64_t processes = 0;  // the smaller one of the user's limit and the cgroup's
};

// Nothing in place of a value if there was no answer in time.
struct NodeFacts {
  std::string host_name{};
  std::string kernel{};                  // its release, as uname(2) says
  std::vector<NewCall> missing_calls{};  // of Linux, in the order of NewCall
  std::optional<PythonFacts> python{};
  std::optional<GpuFacts> gpus{};
  std::vector<std::string> interfaces{};
  std::vector<std::string> interfaces_up{};  // those of them that are
  std::vector<std::string> infiniband{};     // its devices
  std::optional<Space> shared_memory{};
  std::optional<Space> temporary{};
  ResourceLimits limits{};
  std::optional<LookUp> own_name{};
  std::optional<EndpointFacts> endpoint{};
  bool has_ipv6 = true;
  std::string port_owner{};              // who has served_port; empty: it is free
  std::uint64_t memory_limit_bytes = 0;  // of the cgroup, or the machine's memory
  std::optional<std::size_t> orphans{};
  std::optional<ScriptFacts> script{};
  ShimFacts shims{};
};

// False also where the script gave no answer.
inline bool is_program(const NodeFacts& facts) { return facts.script && facts.script->is_program; }

}  // namespace ddprun::launcher
