// The settings of the agent. Plain values, no I/O. The launcher checks flags and environment and
// makes these values from them, before the agent starts. Nobody changes them afterwards, so any
// thread may read them.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/exit_plan.h"
#include "base/result.h"
#include "rendezvous/core/keep_alive.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/election/etcd_plan.h"

namespace ddprun::agent {

// The most nodes of one job.
inline constexpr int kMaxNodes = rendezvous::kMaxNodes;

// The streams of one worker, and where each goes. Redirected: to the worker's file only. Tee'd: to
// the file and, line by line with a prefix, to the console. With neither, it goes to the console,
// byte for byte. agent/output/worker_files.h has the full table.
struct StreamPlan {
  bool redirect_stdout = false;
  bool redirect_stderr = false;
  bool tee_stdout = false;
  bool tee_stderr = false;
  // If it is false, --local-ranks-filter keeps the worker from the console. Its files still get
  // everything.
  bool shown = true;

  bool has_files() const { return redirect_stdout || redirect_stderr || tee_stdout || tee_stderr; }
};

// How tee'd lines look, and which of them also go to the node's filtered_{stdout,stderr}.log.
struct OutputPlan {
  // Macros ${role_name}, ${local_rank}, ${rank}, ${hostname}, ${restart}. Unknown macros stay in
  // the text as they are.
  std::string prefix_template = "[${role_name}${local_rank}]:";
  // If it is unset, there is no filtered file. Otherwise a line that contains one of these texts is
  // copied to it. The empty text is in every line.
  std::optional<std::vector<std::string>> stdout_filters{};
  std::optional<std::vector<std::string>> stderr_filters{};
  bool fold = false;  // the console shows equal lines of several ranks once: "[ranks 1-7] …"
};

// The signals that end the job, and those that the workers get as a message.
struct SignalPlan {
  std::vector<int> stop{SIGTERM, SIGINT, SIGHUP, SIGQUIT};   // each means "end the job"
  std::string stop_names = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // as the user wrote it; workers get it
  // Received signal -> what it is taken for (--signal-map USR1=TERM).
  std::map<int, int> map{};
  std::vector<int> notice{};  // --preempt-signal: each means "save, the job ends soon"
};

// Every signal for which ddprun needs a handler, each once.
std::vector<int> handled_signals(const SignalPlan& plan);

// The meaning of a received signal.
struct SignalMeaning {
  int signo = 0;            // after `map`
  bool is_message = false;  // true: pass it to the workers; false: it ends the job
  bool is_notice = false;   // it ends the job, after a step (docs/preemption.md)
};
SignalMeaning meaning_of(const SignalPlan& plan, int received);

// How often and how soon a failed job is restarted. torchrun has `max_restarts` only. The rules are
// those of rendezvous/core/restart_budget.h.
struct RestartPlan {
  int max_restarts = 0;
  // 0: max_restarts counts over the whole job. Otherwise it counts over any span of this length.
  std::chrono::milliseconds window{0};
  // The wait before the second restart in a row. Each further restart waits twice as long, up to
  // `backoff_max`; the waits have a random part. An attempt counts as progress if it ran at least
  // as long as the longest of `window`, `backoff` and `backoff_max`. Then the row begins anew. 0:
  // no wait, until rendezvous::kFreeRestarts attempts in a row were short.
  std::chrono::milliseconds backoff{0};
  std::chrono::milliseconds backoff_max{0};
  // The job ends after so many attempts in a row without progress (rendezvous/core/progress.h). 0:
  // never for that.
  int most_without_progress = 3;
  // The user gave that number. Then attempts count from the first one on, and otherwise from the
  // first step of the job on.
  bool counts_from_the_first = false;
  std::string progress_file{};  // the program writes its step there; empty: none

  rendezvous::StrikeRules strikes{.most = 0, .half_life = std::chrono::hours(1)};
  std::string strike_file{};  // carries strikes from job to job; empty: none

  // Returns whether the user asked for that end by one of the two. Otherwise it is only said.
  bool ends_without_progress() const { return counts_from_the_first || !progress_file.empty(); }
};

inline constexpr const char* kHealthPortVariable = "TORCHELASTIC_HEALTH_CHECK_PORT";
// The path of a file that appears when the workers should save and end.
inline constexpr const char* kNoticeVariable = "DDPRUN_NOTICE";
inline constexpr const char* kStoreUsersVariable = "DDPRUN_STORE_USERS";
// AgentConfig::check_replicas, for a worker's Python hook.
inline constexpr const char* kCheckReplicasVariable = "DDPRUN_CHECK_REPLICAS";

// The watches that run beside the workers' exits. Everything is off until a variable asks for it.
struct WatchPlan {
  // Path of the watchdog's FIFO (TORCHELASTIC_ENABLE_FILE_TIMER=1). If it is unset, there is no
  // watchdog. If it is empty, the agent chooses the path.
  std::optional<std::string> timer_file{};
  // The job ends if a worker stays in uninterruptible sleep for so long: no signal could end that
  // worker (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT). 0: off.
  std::chrono::milliseconds most_sleep{0};
  std::optional<std::uint16_t> health_port{};  // kHealthPortVariable; unset: no port
  // All users of this host may use the store. If it is false, those as which the job's processes
  // run.
  bool any_store_user = false;  // kStoreUsersVariable=any
};

// The program of one worker. `file` is a path, already looked up in PATH. `argv` begins with
// argv[0].
struct WorkerProgram {
  std::string file;
  std::vector<std::string> argv;
};

// Paths of PEM files; empty: no TLS. All three or none.
struct TlsPlan {
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  bool is_mixed = false;  // the host takes nodes in clear as well

  bool operator==(const TlsPlan&) const = default;
};

// How this node meets the others.
struct RendezvousPlan {
  enum class Kind {
    kAlone,   // one node: the rendezvous is in this process, and no port is opened for it
    kStatic,  // the user gives each node its rank; node rank 0 hosts rendezvous and store
    kC10d,    // the agent on the endpoint's host hosts the rendezvous, which assigns node ranks
    kEtcd,    // as kC10d, but the nodes elect who hosts, and again when it is lost
  };
  Kind kind = Kind::kAlone;
  int min_nodes = 1;
  int max_nodes = 1;
  int node_rank = 0;               // kStatic: this node's; otherwise preferred, -1: any
  rendezvous::EtcdPlan etcd;       // kEtcd only
  std::string host = "127.0.0.1";  // of the endpoint, or the master address; not by kAlone, kEtcd
  std::uint16_t port = 0;          // 0: any free port; not used by kAlone
  // kC10d: ports from `port` on. The host takes the first one that is free, and others look for it.
  // Above 1 where a scheduler's variables, and no flags, say where nodes meet.
  int port_count = 1;
  bool by_scheduler() const { return port_count > 1; }
  // kC10d: true or false says whether this node hosts. If it is unset, it does if `host` is its own
  // address.
  std::optional<bool> is_host;
  std::string run_id = "none";
  // Node and host prove that they know it; never printed, never sent. Empty if there is none.
  std::string token;
  // Nobody asked for it: nodes that do not know it are let in as where there is none.
  bool token_is_optional = false;
  TlsPlan tls{};
  std::string local_addr;  // --local-addr; empty: our address on the route to the endpoint
  // The job's rounds. Nodes wait up to `join_timeout` for the address of `host` and for etcd, too.
  rendezvous::RoundSettings settings;
  // When the host takes a silent node for lost. The host's hold for all nodes.
  rendezvous::KeepAlive keep_alive;
  // A node whose connection breaks keeps its workers and comes back (rendezvous/recovery).
  bool resumes = true;
  // Workers use the store that this node serves. If it is false, the one with rank 0 serves its
  // own, at a port that is free (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1). Not by kStatic.
  bool shares_store = true;
  // How long this node tries to reach the host.
  std::chrono::milliseconds connect_timeout{60'000};
};

// --http: where this node tells of itself.
struct HttpPlan {
  std::string address;     // numeric; empty: loopback
  std::uint16_t port = 0;  // 0: the kernel's choice

  bool operator==(const HttpPlan&) const = default;
};

// --standby.
enum class StandbyMode {
  kAuto,  // where a restart can come, and memory is left
  kOff,
  kOn,  // also where memory is short
};

// --share-imports.
enum class SharedImports {
  kAuto,  // two workers or more, and a script that looks as if it imported much
  kOff,
  kOn,  // every plain Python program
};

// The answer to a verdict that ranks stand still (docs/standstill.md). kOff: nobody looks. kRestart
// and kEnd kill the rank to blame; after kEnd the job ends.
enum class OnHang { kOff, kReport, kRestart, kEnd };
inline bool ends_ranks(OnHang mode) { return mode == OnHang::kRestart || mode == OnHang::kEnd; }

struct AgentConfig {
  std::string called = "ddprun";  // the program's name in its own lines
  RendezvousPlan rendezvous;
  int worker_count = 1;  // of this node
  std::string role = "default";
  RestartPlan restarts;
  SignalPlan signals;
  // How long workers have between the request to end and SIGKILL.
  std::chrono::nanoseconds grace = std::chrono::seconds(30);
  // And between a notice and SIGKILL.
  std::chrono::nanoseconds notice_deadline = std::chrono::seconds(30);
  std::string notice_file{};            // --preempt-file; empty: none
  std::optional<int> exit_preempted{};  // --exit-preempted; unset: as for any signal
  // A worker that has recorded its error and still lives after so long counts as failed. 0: off.
  std::chrono::milliseconds teardown_timeout = std::chrono::seconds(15);
  OnHang on_hang = OnHang::kReport;
  int check_replicas = 0;           // compares replicas every so many optimizer steps; 0: never
  std::string log_dir;              // empty: a temporary folder; "/dev/null": no files at all
  std::vector<StreamPlan> streams;  // one per local rank
  OutputPlan output;
  bool python_hook = true;  // Python workers get agent/standby/python/
  StandbyMode standby = StandbyMode::kAuto;
  SharedImports share_imports = SharedImports::kAuto;
  // --virtual-local-rank: every worker gets LOCAL_RANK=0. It sees one device only: entry
  // [local rank] of this list, in each of `device_variables`. Empty: off.
  std::vector<std::string> virtual_devices;
  std::vector<std::string> device_variables{"CUDA_VISIBLE_DEVICES"};
  bool detailed_exit_codes = false;  // docs/torchrun.md, "Exit codes"; false: torchrun's codes
  ExitPlan exits{};
  // How long a new attempt waits for devices that others hold (agent/processes/device_holders.h).
  // 0: it does not look. After that time it begins, or the job ends.
  std::chrono::milliseconds device_timeout{30'000};
  bool device_timeout_ends_job = false;
  bool quiet = false;           // ddprun prints no line of its own but errors
  bool console_events = false;  // --event-log-handler=console: JSON lines on stderr
  std::string error_report;     // --error-report: path of the JSON report; empty: none
  std::string error_file;       // TORCHELASTIC_ERROR_FILE of the launcher; empty: none
  WatchPlan watch;
  std::optional<HttpPlan> http;  // --http; unset: nothing listens
  // Answers the program of one worker. The agent calls it at every attempt.
  std::function<WorkerProgram(int local_rank)> command;
  std::vector<std::string> base_env;  // NAME=value: workers inherit these; their own override them
  std::string job_cookie;         // names the job on this host; every worker has it as DDPRUN_JOB
  std::string entry;              // the script or program as the user gave it, for the report
  bool hands_local_rank = false;  // the script's first argument is --local-rank=K
  // A hint for a worker that found no torch. It says which Python it ran with, and what to type.
  // Unset: no Python.
  std::function<std::string()> torch_advice{};
};

// Returns whether workers can start once more after this attempt. `restart_count`: of its round.
// Elastic jobs start their workers anew for a newcomer too, and that costs no restart.
bool may_restart(const AgentConfig& config, int restart_count);

// Returns whether restarts may be left unspent that cannot help (agent/report/repeated_deaths.h).
// Not if the user asked for a wait between them, which may be there for a file that comes late. Not
// if attempts are counted by their progress. Not if the job can go on without this node.
bool may_give_up_restarts(const AgentConfig& config);

// Returns whether the user asked for files of the workers' output (--redirects, --tee).
bool wants_files(const AgentConfig& config);

}  // namespace ddprun::agent
