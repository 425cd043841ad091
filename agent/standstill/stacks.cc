#include "agent/standstill/stacks.h"

#include <fmt/format.h>
#include <sys/inotify.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "agent/core/clock.h"
#include "agent/processes/process.h"
#include "agent/standstill/process_look.h"
#include "agent/standstill/witness_folder.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kEventBytes = 4096;

std::string program_of(pid_t pid) {
  std::error_code failed;
  return std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), failed).filename();
}

std::string kernel_words(const ProcessLook& look) {
  if (look.wait_channel == "?" || look.wait_channel.empty()) return std::string(1, look.state);
  return fmt::format("{} in {}", look.state, look.wait_channel);
}

}  // namespace

std::string why_no_stack(bool asked, const std::string& program) {
  const bool is_python = program.empty() || program.find("python") != std::string::npos;
  if (asked && is_python) return "its interpreter did not answer: a call of C may hold it";
  if (asked)
    return fmt::format("{} did not answer: it is no Python, or a call of C holds it", program);
  if (!is_python) return fmt::format("it runs {}, which is no Python", program);
  return "it has no witness: it has not imported torch.distributed, or was told to have none";
}

Stacks::Stacks(asio::io_context& loop, const Children& children, Workers workers)
    : loop_(loop),
      children_(children),
      workers_(std::move(workers)),
      events_(kEventBytes, '\0'),
      alarm_(loop, [this] { finish(); }) {}

void Stacks::take(Ranks node, std::vector<int> wanted, Done done) {
  if (waiting_.empty()) {
    first_rank_ = node.first_rank;
    questions_.assign(static_cast<std::size_t>(node.workers), {});
    watch_folder();
    alarm_.set(now() + kAnswerLimit);
  }
  if (wanted.empty()) {
    wanted.resize(questions_.size());
    std::iota(wanted.begin(), wanted.end(), first_rank_);
  }
  for (const int rank : wanted) {
    Question& question = questions_.at(static_cast<std::size_t>(rank - first_rank_));
    if (question.number == 0 && has_witness(workers_.pages(), children_, rank - first_rank_))
      question.number = workers_.pages()->ask_witness(rank - first_rank_);
  }
  waiting_.push_back({std::move(wanted), std::move(done)});
  if (has_all()) alarm_.set(now());  // not within this call: who asks may not expect it
}

// A witness renames its answer when it is whole. Without inotify the answers are read at the limit.
void Stacks::watch_folder() {
  const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (fd < 0) return;
  folder_ = std::make_shared<asio::posix::stream_descriptor>(loop_, fd);
  ::inotify_add_watch(fd, workers_.folder().c_str(), IN_MOVED_TO);
  await_answer();
}

// finish() may come between a read and its handler, and so may the next callers.
void Stacks::await_answer() {
  folder_->async_read_some(
      asio::buffer(events_),
      [this, own = std::weak_ptr(folder_)](const boost::system::error_code& failed, std::size_t) {
        if (failed || own.expired()) return;
        read_answers();
        if (has_all()) return finish();
        await_answer();
      });
}

void Stacks::read_answers() {
  for (std::size_t rank = 0; rank < questions_.size(); ++rank) {
    Question& question = questions_[rank];
    if (question.answer || question.number == 0) continue;
    question.answer = read_witness_answer(workers_.folder(), *workers_.pages(),
                                          static_cast<int>(rank), question.number);
  }
}

bool Stacks::has_all() const {
  return std::ranges::all_of(questions_, [](const Question& question) {
    return question.number == 0 || question.answer.has_value();
  });
}

void Stacks::finish() {
  if (waiting_.empty()) return;
  read_answers();
  alarm_.set(Time::max());
  folder_.reset();
  for (const Waiting& one : std::exchange(waiting_, {})) {
    std::vector<rendezvous::RankStack> stacks;
    for (const int rank : one.wanted) stacks.push_back(stack_of(rank - first_rank_));
    one.done(std::move(stacks));
  }
}

rendezvous::RankStack Stacks::stack_of(int local_rank) const {
  const Question& question = questions_[static_cast<std::size_t>(local_rank)];
  const pid_t pid = children_.pid_of(local_rank);
  rendezvous::RankStack stack{.rank = first_rank_ + local_rank, .pid = pid};
  if (workers_.pages() != nullptr)
    stack.steps = static_cast<std::int64_t>(workers_.pages()->page(local_rank).steps.load());
  if (pid == 0) {
    stack.why = "its process has ended";
    return stack;
  }
  stack.kernel = kernel_words(look_at_process(pid, {}));
  if (!question.answer) {
    stack.why = why_no_stack(question.number != 0, program_of(pid));
    return stack;
  }
  for (const WitnessFrame& frame : question.answer->stack)
    stack.frames.push_back({frame.function, frame.file, frame.line});
  const auto waits =
      std::ranges::find_if(question.answer->groups, &rendezvous::GroupPosition::is_waiting);
  if (waits != question.answer->groups.end())
    stack.waits_in = fmt::format("{} #{}{}", waits->operation, waits->number,
                                 waits->shapes.empty() ? "" : " (" + waits->shapes + ")");
  return stack;
}

}  // namespace ddprun::agent
