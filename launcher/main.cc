// ddprun: options -> a job (plan, guardian, agent), the doctor or a report -> exit code. Decides
// nothing itself.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/agent.h"
#include "agent/guardian/guardian.h"
#include "agent/report/error_record.h"
#include "agent/report/record_file.h"
#include "base/allowed_cpus.h"
#include "base/environment.h"
#include "base/limit_hint.h"
#include "base/log.h"
#include "base/net/resolvers.h"
#include "base/shown_text.h"
#include "launcher/doctor/between.h"
#include "launcher/doctor/doctor.h"
#include "launcher/job/command.h"
#include "launcher/job/host_facts.h"
#include "launcher/job/inheritance.h"
#include "launcher/job/numa_sysfs.h"
#include "launcher/job/plan.h"
#include "launcher/options/options.h"
#include "launcher/report/report.h"
#include "launcher/shims/shims.h"
#include "proto/token_file.h"

namespace ddprun::launcher {
namespace {

// The last part of argv[0]: a link to ddprun may have another name, and our lines then say that
// one. A caller may pass no argv[0] at all (execve(2), NOTES).
std::string called_name(int argc, char** argv) {
  const std::string_view path = argc > 0 ? argv[0] : "";
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  return std::string(name.empty() ? kProgramName : name);
}

// The needs of every failure of the launcher itself: the name to say it under, and the file for it.
// A cluster reads that file (TORCHELASTIC_ERROR_FILE, as torchrun's @record has it).
struct Failures {
  std::string called;
  std::string error_file;

  int fail(const Error& error, int exit_code) const {
    std::fprintf(stderr, "%s: %s\n", called.c_str(), shown_text(error.message()).c_str());
    if (error_file.empty()) return exit_code;
    const agent::ErrorRecord record{.message = error.message(), .unix_seconds = std::time(nullptr)};
    if (const auto written = agent::write_record(error_file, write_error_record(record)); !written)
      std::fprintf(stderr, "%s: %s\n", called.c_str(),
                   shown_text(written.error().message()).c_str());
    return exit_code;
  }
};

// If a standard descriptor is closed, the next file that is opened gets its number. Text for the
// console would go into that file. So closed ones lead to /dev/null.
void fill_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open(2) gives out the lowest free number, and that is `fd`.
    if (::open("/dev/null", O_RDWR) < 0) return;
  }
}

// The workers' command, bound to CPUs if that is asked for. /sys is read only then.
Result<Command> worker_command(const Options& options, const EnvLookup& env) {
  const CommandFacts facts = real_command_facts(env);
  auto command = build_command(options, facts);
  if (!command || !options.numa_binding) return command;
  const auto numa = read_numa_facts("/", allowed_cpus(), env("CUDA_VISIBLE_DEVICES"));
  if (!numa) return Error(numa.error().code(), "--numa-binding: " + numa.error().message());
  return bind_to_cpus(*std::move(command), options, *numa, facts);
}

// Returns the name of this node if several nodes may share a console. Lines begin with it.
std::string shown_host(const Options& options, const Examination& node) {
  return options.nodes.max == 1 ? std::string() : node.self.host_name;
}

// The questions of the doctor about this machine, and since when.
struct Machine {
  const EnvLookup& env;
  const HostFacts& host;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
};

Examination examine(const Options& options, const std::string& script, const Machine& machine) {
  const NodeQuestion question =
      node_question(options, script, machine.env, machine.host.accelerators());
  return examine_node(question, real_command_facts(machine.env), machine.begin + kNodeLimit);
}

// `ddprun doctor`: the answer is for people, or for programs, on stdout.
int run_doctor(const Options& options, const DoctorCall& call, const Machine& machine,
               const Failures& failures) {
  const Examination node = examine(options, call.script, machine);
  const std::string text = call.json ? json_of(node.self.host_name, node.findings)
                                     : text_of(node.findings, shown_host(options, node));
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  const int code = has_failure(node.findings) ? 1 : 0;
  if (options.nodes.max == 1 || !can_meet(node.findings)) return code;
  auto inherited = take_inheritance(options, machine.env, failures.called);
  if (!inherited) return failures.fail(inherited.error(), 1);
  return std::max(code, examine_between(options, *std::move(inherited), node.self, call.json));
}

// --check: before a job, on stderr.
Result<void> check_node(const Options& options, const Machine& machine) {
  const Examination node = examine(options, options.script, machine);
  std::fputs(text_of(node.findings, shown_host(options, node)).c_str(), stderr);
  if (!has_failure(node.findings)) return {};
  std::string text = "--check: a check of this node failed";
  if (options.nodes.max > 1)
    text +=
        "; the other nodes wait for it, unless their scheduler ends them (`srun "
        "--kill-on-bad-exit=1`)";
  return Error(ErrorCode::kUnavailable, text);
}

// A job: plan, guardian, agent. All checks come before run_guarded(): from there on there are two
// processes to end.
int run_job(const Options& options, const Machine& machine, const Failures& failures) {
  const EnvLookup& env = machine.env;
  if (options.check) {
    if (const auto checked = check_node(options, machine); !checked)
      return failures.fail(checked.error(), 1);
  }
  const auto command = worker_command(options, env);
  if (!command) return failures.fail(command.error(), 1);
  auto inherited = take_inheritance(options, env, failures.called);
  if (!inherited) return failures.fail(inherited.error(), 1);
  Plan plan = make_plan(options, *command, *std::move(inherited));
  if (command->runs_python)
    plan.agent.torch_advice = [&env] { return torch_advice(real_command_facts(env)); };
  for (const std::string& notice : plan.notices)
    std::fprintf(stderr, "%s: %s\n", failures.called.c_str(), shown_text(notice).c_str());
  // Alone it holds no secret, and its user may want to look into it.
  if (plan.agent.rendezvous.kind != agent::RendezvousPlan::Kind::kAlone) hide_memory();
  const agent::GuardedJob job{plan.agent.called, plan.agent.job_cookie, plan.agent.signals};
  return agent::run_guarded(
      job, [&plan](const agent::AgentStart& start) { return agent::run_agent(plan.agent, start); });
}

// `ddprun report`: on stdout.
int tell_report(const ReportCall& call, const Failures& failures) {
  const auto text = run_report(call);
  if (!text) return failures.fail(text.error(), 1);
  std::fputs(text->c_str(), stdout);
  // A full disk must not look like success.
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// Chooses the command: `ddprun doctor`, `ddprun report`, or a job.
int run_command(const Options& options, const Machine& machine, const Failures& failures) {
  log::set_level(options.quiet ? log::Level::kError : options.log_level);
  for (const std::string& warning : options.warnings) log::warning(warning);
  const CommandFacts files = real_command_facts(machine.env);
  if (const auto report = report_call(options, files))
    return *report ? tell_report(**report, failures) : failures.fail(report->error(), 2);
  const auto call = doctor_call(options, files, machine.begin + kFileLimit);
  if (!call) return run_job(options, machine, failures);
  if (!*call) return failures.fail(call->error(), 2);
  return run_doctor(options, **call, machine, failures);
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  using namespace ddprun::launcher;  // NOLINT(google-build-using-namespace)
  fill_standard_descriptors();
  ddprun::use_own_resolvers();
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  const ddprun::EnvLookup env = ddprun::process_environment();
  if (is_peer(args, env)) return run_peers(env);
  HostFacts host = real_host_facts(env);
  host.called = called_name(argc, argv);
  ddprun::end_where_a_limit_is_hit(host.called);
  const Failures failures{host.called, env("TORCHELASTIC_ERROR_FILE").value_or("")};
  if (const auto call = shims_call(args)) {
    if (!*call) return failures.fail(call->error(), 2);
    const auto done = run_shims(**call, env);
    return done ? 0 : failures.fail(done.error(), 1);
  }
  const ParseResult parsed = parse(args, env, host);
  if (const auto* answer = std::get_if<Answer>(&parsed)) {
    std::fputs(answer->text.c_str(), stdout);
    return 0;
  }
  if (const auto* wrong = std::get_if<UsageError>(&parsed)) {
    const ddprun::Error error(ddprun::ErrorCode::kInvalidArgument, wrong->message);
    return failures.fail(error, wrong->exit_code);
  }
  return run_command(std::get<Options>(parsed), {.env = env, .host = host}, failures);
}
