// ddprun: options -> guardian -> agent -> exit code. Decides nothing itself.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/agent.h"
#include "agent/guardian.h"
#include "agent/processes/job_cookie.h"
#include "launcher/command.h"
#include "launcher/host_facts.h"
#include "launcher/numa_sysfs.h"
#include "launcher/options.h"
#include "launcher/plan.h"
#include "proto/log.h"

namespace ddprun::launcher {
namespace {

// Whether the program was called by its other name. It is for command lines that began with
// `python -m torch.distributed.launch`.
bool is_launch_name(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1) == "ddprun-launch";
}

int fail(const std::string& message, int exit_code) {
  std::fputs((message + "\n").c_str(), stderr);
  return exit_code;
}

std::vector<std::string> process_variables() {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return variables;
}

// If a standard descriptor is closed, the next file that is opened gets its number, and text for
// the console would go into that file. So closed ones lead to /dev/null.
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

// All checks come before run_guarded(): from there on there are two processes to end.
int run(const Options& options, const EnvLookup& env) {
  log::set_level(options.quiet ? log::Level::kError : options.log_level);
  for (const std::string& warning : options.warnings) log::warning(warning);
  const auto command = worker_command(options, env);
  if (!command) return fail("ddprun: " + command.error().message(), 1);
  const auto token = job_token(options, env);
  if (!token) return fail("ddprun: " + token.error().message(), 1);
  Inherited inherited{.variables = process_variables(),
                      .token = *token,
                      .job_cookie = agent::make_job_cookie().text()};
  const Plan plan = make_plan(options, *command, std::move(inherited));
  for (const std::string& notice : plan.notices)
    std::fputs(("ddprun: " + notice + "\n").c_str(), stderr);
  const agent::GuardedJob job{plan.agent.job_cookie, plan.agent.signals};
  return agent::run_guarded(job, [&plan](const agent::AgentStart& guardian) {
    return agent::run_agent(plan.agent, guardian);
  });
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  using namespace ddprun::launcher;  // NOLINT(google-build-using-namespace)
  fill_standard_descriptors();
  // A caller may pass no argv[0] at all (execve(2), NOTES).
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  const ddprun::EnvLookup env = process_environment();
  HostFacts host = real_host_facts(env);
  host.called_as_launch = argc > 0 && is_launch_name(argv[0]);
  const Parsed parsed = parse(args, env, host);
  if (const auto* answer = std::get_if<Answer>(&parsed)) {
    std::fputs(answer->text.c_str(), stdout);
    return 0;
  }
  if (const auto* error = std::get_if<UsageError>(&parsed))
    return fail(error->message, error->exit_code);
  return run(std::get<Options>(parsed), env);
}
