#include "daemon/ctl_stacks.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "base/number_ranges.h"
#include "base/shown_text.h"

namespace ddprun::daemon {
namespace {

using rendezvous::RankStack;
using rendezvous::StackFrame;

// A package's file is known by its name there.
std::string_view short_path(std::string_view path) {
  for (const std::string_view packages : {"/site-packages/", "/dist-packages/"}) {
    const std::size_t found = path.rfind(packages);
    if (found != std::string_view::npos) return path.substr(found + packages.size());
  }
  return path;
}

// All but the ranks: equal texts are one.
std::string text_of(const RankStack& stack) {
  if (stack.frames.empty()) {
    const std::string kernel = stack.kernel.empty() ? "" : "; its process is " + stack.kernel;
    return fmt::format(": no stack: {}{}\n", shown_text(stack.why), shown_text(kernel));
  }
  std::string text = stack.waits_in.empty() ? "" : " in " + shown_text(stack.waits_in);
  text += ":\n";
  for (const StackFrame& frame : stack.frames)
    text += fmt::format("  {} ({}:{})\n", shown_text(frame.function),
                        shown_text(short_path(frame.file)), frame.line);
  return text;
}

}  // namespace

std::string stacks_text(const std::vector<RankStack>& stacks) {
  std::map<std::string, std::vector<int>> ranks;  // with this text
  std::vector<std::string> with_frames;
  std::vector<std::string> without;
  for (const RankStack& stack : stacks) {
    const std::string text = text_of(stack);
    const auto [found, is_new] = ranks.try_emplace(text);
    if (is_new) (stack.frames.empty() ? without : with_frames).push_back(text);
    found->second.push_back(stack.rank);
  }
  std::string all;
  for (const auto* texts : {&with_frames, &without}) {
    for (const std::string& text : *texts)
      all += fmt::format("{}rank{} {}{}", all.empty() ? "" : "\n",
                         ranks[text].size() == 1 ? "" : "s", number_ranges(ranks[text]), text);
  }
  return all;
}

}  // namespace ddprun::daemon
