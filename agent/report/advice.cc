#include "agent/report/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace ddprun::agent {
namespace {

constexpr int kUsageError = 2;  // of argparse, optparse and click

bool contains(std::string_view line, std::string_view text) {
  return line.find(text) != std::string_view::npos;
}

std::string lower(std::string line) {
  std::transform(line.begin(), line.end(), line.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return line;
}

// The errors of parsers that do not know an argument. They are argparse, click, absl, getopt of C
// and Python, fire, tyro, transformers. And the error of a program that finds no file of that name.
bool is_refusal(std::string_view line) {
  constexpr std::array<std::string_view, 14> kRefusals = {
      "unrecognized", "unrecognised", "unknown",           "no such option", "not recognized",
      "invalid",      "illegal",      "could not consume", "unexpected",     "are not used",
      "unused",       "not accepted", "no such file",      "not allowed"};
  return std::any_of(kRefusals.begin(), kRefusals.end(),
                     [line](std::string_view word) { return contains(line, word); });
}

bool names_local_rank(std::string_view line) {
  return contains(line, "--local-rank") || contains(line, "--local_rank") ||
         contains(line, "'local-rank'") || contains(line, "'local_rank'") ||
         contains(line, "option local-rank");
}

// Returns whether the script did not take the `--local-rank=K` that we handed it. On a terminal its
// words are not known: then the exit code of a wrong usage must do.
bool refused_local_rank(const ReportedWorker& cause) {
  const std::vector<std::string>& words = cause.stderr_end;
  if (words.empty()) return cause.worker.exit.exit_code == kUsageError;
  return std::any_of(words.begin(), words.end(), [](const std::string& said) {
    const std::string line = lower(said);
    return names_local_rank(line) && is_refusal(line);
  });
}

std::string local_rank_advice(const ReportedWorker& cause, const std::string& called) {
  // As PyTorch 2.0 changed the argument's name, scripts have the older one.
  const auto& words = cause.stderr_end;
  const bool takes_underscore =
      std::any_of(words.begin(), words.end(), [](const std::string& line) {
        return contains(line, "[--local_rank") && !is_refusal(lower(line));
      });
  return fmt::format(
      "{} has handed the script --local-rank={}, and {} does not accept it: `{} --use-env …` or "
      "`ddprun …` hand it none, and the script reads the variable LOCAL_RANK{}",
      called, cause.worker.exit.local_rank,
      cause.stderr_end.empty() ? "an exit code of 2 mostly means that it" : "the script", called,
      takes_underscore ? "; or let its parser take both --local-rank and --local_rank" : "");
}

bool lacks_torch(const ReportedWorker& cause) {
  return std::any_of(cause.stderr_end.begin(), cause.stderr_end.end(), [](const std::string& line) {
    return contains(line, "No module named 'torch'") || line.ends_with("No module named torch") ||
           contains(line, "No module named 'torch.distributed'");
  });
}

}  // namespace

std::vector<std::string> advice_for(const ReportedWorker& cause, const AgentConfig& config) {
  std::vector<std::string> advice;
  if (cause.worker.exit.exit_code <= 0) return advice;
  if (config.hands_local_rank && refused_local_rank(cause))
    advice.push_back(local_rank_advice(cause, config.called));
  if (config.torch_advice && lacks_torch(cause)) advice.push_back(config.torch_advice());
  return advice;
}

}  // namespace ddprun::agent
