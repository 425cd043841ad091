#include "daemon/ctl_local.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/shown_text.h"
#include "rendezvous/control/local_socket.h"
#include "rendezvous/control/node_socket.h"

namespace ddprun::daemon {
namespace {

using rendezvous::ControlAnswer;
using rendezvous::ControlOutcome;
using rendezvous::JobSnapshot;

// A ddprun answers in milliseconds, one that is stopped never. Stacks are waited for by the node.
constexpr std::chrono::milliseconds kJobLimit{2'000};
constexpr std::chrono::milliseconds kStacksLimit{10'000};

struct JobsHere {
  std::vector<JobSnapshot> jobs;
  std::vector<std::string> sockets;  // of the job at the same place
  std::string silent;                // the pids of those that gave no answer
};

// `fd`: of connect_to_node().
ControlAnswer asked(int fd, const rendezvous::ControlQuestion& question,
                    std::chrono::milliseconds limit) {
  if (fd == rendezvous::kBusyNode)
    return {ControlOutcome::kUnreachable, "its ddprun does not answer"};
  if (fd < 0) return {ControlOutcome::kUnreachable, "the job has ended"};
  return rendezvous::ask_node(fd, question, limit);
}

JobsHere jobs_here() {
  JobsHere here;
  for (const rendezvous::NodeSocketName& one : rendezvous::node_sockets_of_host()) {
    const int fd = rendezvous::connect_to_node(one.name);
    if (fd < 0 && fd != rendezvous::kBusyNode) continue;
    ControlAnswer answer = asked(fd, {.verb = rendezvous::ShowJobs{}}, kJobLimit);
    if (answer.outcome != ControlOutcome::kDone || answer.jobs.size() != 1) {
      here.silent += fmt::format("{}{}", here.silent.empty() ? "" : ", ", one.pid);
      continue;
    }
    here.jobs.push_back(std::move(answer.jobs.front()));
    here.sockets.push_back(one.name);
  }
  return here;
}

bool is_named(const JobSnapshot& job, const std::string& word, const std::string& folder) {
  if (job.job == word || fmt::format("{}", job.pid) == word) return true;
  if (job.log_folder.empty()) return false;
  return job.log_folder == folder ||
         std::filesystem::path(job.log_folder).filename().string() == word;
}

std::string list_of(const std::vector<JobSnapshot>& jobs, const std::vector<std::size_t>& some) {
  std::string list;
  for (const std::size_t one : some)
    list += fmt::format(
        "{}{} ({})", list.empty() ? "" : ", ", jobs[one].pid,
        shown_text(jobs[one].log_folder.empty() ? jobs[one].job : jobs[one].log_folder));
  return list;
}

std::string without_links(const std::string& word) {
  std::error_code failed;
  const std::filesystem::path path = std::filesystem::canonical(word, failed);
  return failed ? std::string() : path.string();
}

ControlAnswer one_job(const CtlOptions& options, const JobsHere& here) {
  const auto found =
      choose_job(here.jobs, options.question.job, without_links(options.question.job));
  if (!found) {
    std::string why = found.error().message();
    if (!here.silent.empty())
      why += fmt::format("; the ddprun with pid {} does not answer", here.silent);
    const bool is_none = found.error().code() == ErrorCode::kNotFound;
    return {is_none ? ControlOutcome::kUnknown : ControlOutcome::kRefused, why};
  }
  if (options.command != CtlCommand::kStacks) return {.jobs = {here.jobs[*found]}};
  const int fd = rendezvous::connect_to_node(here.sockets[*found]);
  return asked(fd, options.question, kStacksLimit);
}

}  // namespace

Result<std::size_t> choose_job(const std::vector<JobSnapshot>& jobs, const std::string& word,
                               const std::string& folder) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    if (word.empty() || is_named(jobs[i], word, folder)) found.push_back(i);
  if (found.size() == 1) return found.front();
  if (found.empty())
    return Error(ErrorCode::kNotFound,
                 word.empty() ? "no job of this user runs on this host"
                              : fmt::format("no job of this user on this host has the id, the pid "
                                            "or the log folder {}",
                                            word));
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{} jobs are meant; name one by its pid: {}", found.size(),
                           list_of(jobs, found)));
}

ControlAnswer ask_this_host(const CtlOptions& options) {
  JobsHere here = jobs_here();
  const bool wants_all = options.question.job.empty() && options.command != CtlCommand::kStacks;
  if (wants_all && (!here.jobs.empty() || options.command == CtlCommand::kJobs))
    return {.jobs = std::move(here.jobs)};
  return one_job(options, here);
}

}  // namespace ddprun::daemon
