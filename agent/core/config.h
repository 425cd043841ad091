// What the agent is told to do, decided by the launcher from flags and environment. Plain values,
// no I/O; made once before the agent starts and never changed.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/result.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::agent {

// Nodes that a job may have at most.
inline constexpr int kMaxNodes = rendezvous::kMaxNodes;

// Where one worker's output goes. Redirected: to its file only. Tee'd: to its file and, line by
// line with a prefix, to the console. Neither: it inherits the console.
struct StreamPlan {
  bool redirect_stdout = false;
  bool redirect_stderr = false;
  bool tee_stdout = false;
  bool tee_stderr = false;
  bool shown = true;  // false: --local-ranks-filter keeps it from the console; files have it all

  bool has_files() const { return redirect_stdout || redirect_stderr || tee_stdout || tee_stderr; }
};

// How tee'd lines look, and which of them also go to the node's filtered_{stdout,stderr}.log.
struct OutputPlan {
  // Macros ${role_name}, ${local_rank}, ${rank}, ${hostname}, ${restart}; unknown ones stay.
  std::string prefix_template = "[${role_name}${local_rank}]:";
  // Unset: no filtered file. A line that contains one of the texts is duplicated; the empty text
  // matches every line.
  std::optional<std::vector<std::string>> stdout_filters{};
  std::optional<std::vector<std::string>> stderr_filters{};
  bool fold = false;  // equal lines of several ranks are shown once: "[ranks 1-7] …"
};

// What ends a job, and what a signal turns into on its way to the workers.
struct SignalPlan {
  std::vector<int> stop{SIGTERM, SIGINT, SIGHUP, SIGQUIT};   // each means "end the job"
  std::string stop_names = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // as given, for the workers
  // Received signal -> what it is taken for (--signal-map USR1=TERM).
  std::map<int, int> map{};
};

// Every signal that `plan` gives a meaning to.
std::vector<int> handled_signals(const SignalPlan& plan);

// What a received signal is taken for.
struct SignalMeaning {
  int signo = 0;
  bool is_message = false;  // for the workers; else it ends the job
};
SignalMeaning meaning_of(const SignalPlan& plan, int received);

// Restarts beyond torchrun's plain count.
struct RestartPlan {
  int max_restarts = 0;
  // 0: max_restarts counts over the whole job. Else: over any span of this length.
  std::chrono::milliseconds window{0};
  // Wait before the second restart in a row, doubled for each further one up to `backoff_max`, with
  // jitter; an attempt that ran longer than the window (or backoff_max) is progress and begins
  // anew. 0: no wait.
  std::chrono::milliseconds backoff{0};
  std::chrono::milliseconds backoff_max{0};
};

inline constexpr const char* kHealthPortVariable = "TORCHELASTIC_HEALTH_CHECK_PORT";

// What is watched beside the workers' exits; all of it is off unless a variable asks for it.
struct WatchPlan {
  // The watchdog's FIFO (TORCHELASTIC_ENABLE_FILE_TIMER=1): unset: off; empty: a path of our own.
  std::optional<std::string> timer_file{};
  // A worker in uninterruptible sleep for so long ends the job
  // (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT); 0: off.
  std::chrono::milliseconds most_sleep{0};
  std::optional<std::uint16_t> health_port{};  // kHealthPortVariable
};

// The program of one worker: an executable found (file) and its arguments, argv[0] first.
struct WorkerProgram {
  std::string file;
  std::vector<std::string> argv;
};

// How this node meets the others.
struct RendezvousPlan {
  enum class Kind {
    kAlone,   // one node: in this process, nothing listens for it
    kStatic,  // fixed node ranks; node rank 0 hosts rendezvous and store at host:port
    kC10d,    // the agent on the endpoint's host hosts the rendezvous; node ranks are assigned
  };
  Kind kind = Kind::kAlone;
  int node_count = 1;
  int node_rank = 0;               // kStatic only
  std::string host = "127.0.0.1";  // endpoint, or master address; kAlone: where the store listens
  std::uint16_t port = 0;          // 0: any free port (kAlone)
  std::optional<bool> is_host;     // kC10d: overrides the guess whether this node hosts
  std::string run_id = "none";
  std::string token;       // every control connection carries it; never printed
  std::string local_addr;  // --local-addr; empty: found from the route to the endpoint
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds connect_timeout{60'000};
};

struct AgentConfig {
  std::string called = "ddprun";  // the program's name in its own lines
  RendezvousPlan rendezvous;
  int worker_count = 1;
  std::string role = "default";
  RestartPlan restarts;
  SignalPlan signals;
  std::chrono::nanoseconds grace = std::chrono::seconds(30);
  std::string log_dir;              // empty: a temporary folder; "/dev/null": no files at all
  std::vector<StreamPlan> streams;  // one per local rank
  OutputPlan output;
  // --virtual-local-rank: every worker is told LOCAL_RANK=0 and sees one device, entry [local rank]
  // of this list in CUDA_VISIBLE_DEVICES. Empty: off.
  std::vector<std::string> virtual_devices;
  bool detailed_exit_codes = false;  // docs/torchrun.md, "Exit codes"; else torchrun's
  bool quiet = false;                // no line of our own but errors
  bool console_events = false;       // --event-log-handler=console: JSON lines on stderr
  std::string error_report;          // --error-report: the failure report as JSON; empty: none
  std::string error_file;            // TORCHELASTIC_ERROR_FILE of the launcher; empty: none
  WatchPlan watch;
  std::function<WorkerProgram(int local_rank)> command;
  std::vector<std::string> base_env;  // NAME=value; what workers inherit before their own variables
  std::string job_cookie;  // unique on this host; in every worker's environment as DDPRUN_JOB
  std::string entry;       // the script or program as the user gave it, for the report
};

// Whether the user asked for files of output (--redirects, --tee, filters).
bool wants_files(const AgentConfig& config);

}  // namespace ddprun::agent
