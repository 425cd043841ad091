#include "launcher/shims/shims.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnName = "ddprun";
constexpr const char* kNewLink = "torchrun.ddprun-new";

// The first file of a name that PATH leads to.
std::string find_first(std::string_view path, const std::string& name) {
  while (!path.empty()) {
    const auto end = std::min(path.find(':'), path.size());
    const fs::path file = fs::path(path.substr(0, end)) / name;
    if (::access(file.c_str(), X_OK) == 0) return file;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return {};
}

std::error_code perform(ShimStep step, const fs::path& folder) {
  std::error_code error;
  switch (step) {
    case ShimStep::kKeep:
      fs::rename(folder / kShim, folder / kKeptTorchrun, error);
      break;
    case ShimStep::kLink:
      fs::rename(folder / kNewLink, folder / kShim, error);
      break;
    case ShimStep::kRemove:
      fs::remove(folder / kShim, error);
      break;
    case ShimStep::kRestore:
      fs::rename(folder / kKeptTorchrun, folder / kShim, error);
      break;
    case ShimStep::kForget:
      fs::remove(folder / kKeptTorchrun, error);
      break;
  }
  return error;
}

Error failed(const fs::path& file, const std::error_code& error) {
  return {ErrorCode::kUnavailable, fmt::format("{}: {}", file.string(), error.message())};
}

}  // namespace

std::vector<ShimStep> plan_shims(bool on, const ShimFacts& facts) {
  if (on) {
    if (facts.torchrun == Torchrun::kOurs) return {};
    if (facts.torchrun == Torchrun::kNone) return {ShimStep::kLink};
    return {ShimStep::kKeep, ShimStep::kLink};
  }
  if (facts.torchrun == Torchrun::kOther)
    return facts.is_kept ? std::vector{ShimStep::kForget} : std::vector<ShimStep>();
  if (facts.is_kept) return {ShimStep::kRestore};
  return facts.torchrun == Torchrun::kOurs ? std::vector{ShimStep::kRemove}
                                           : std::vector<ShimStep>();
}

fs::path own_program_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

ShimFacts look_at_shims(const fs::path& folder) {
  std::error_code error;
  ShimFacts facts{.folder = folder};
  if (fs::read_symlink(folder / kShim, error) == kOwnName) {
    facts.torchrun = Torchrun::kOurs;
  } else if (fs::exists(fs::symlink_status(folder / kShim, error))) {
    facts.torchrun = Torchrun::kOther;
  }
  facts.is_kept = fs::exists(fs::symlink_status(folder / kKeptTorchrun, error));
  return facts;
}

Result<void> change_shims(bool on, const ShimFacts& facts) {
  const std::vector<ShimStep> steps = plan_shims(on, facts);
  std::error_code error;
  // The link is made first, under another name: where that fails nothing has changed.
  if (std::find(steps.begin(), steps.end(), ShimStep::kLink) != steps.end()) {
    fs::remove(facts.folder / kNewLink, error);
    fs::create_symlink(kOwnName, facts.folder / kNewLink, error);
    if (error) return failed(facts.folder / kShim, error);
  }
  for (const ShimStep step : steps) {
    error = perform(step, facts.folder);
    if (error) return failed(facts.folder / kShim, error);
  }
  return {};
}

std::vector<std::string> told_of_shims(bool on, const ShimFacts& before,
                                       const std::string& first_on_path) {
  const fs::path shim = before.folder / kShim;
  const bool has_torchs = before.torchrun == Torchrun::kOther || before.is_kept;
  if (!on) {
    return {has_torchs ? fmt::format("{} is torch's", shim.string())
                       : fmt::format("no torchrun is in {}", before.folder.string())};
  }
  const std::string kept = has_torchs ? fmt::format("; torch's is {}", kKeptTorchrun) : "";
  std::vector<std::string> lines = {
      fmt::format("{} is ddprun{}; `ddprun shims off` undoes it", shim.string(), kept)};
  if (!first_on_path.empty() && first_on_path != shim)
    lines.push_back(
        fmt::format("PATH leads to {} first: type `export PATH={}:$PATH` where torchrun is called",
                    first_on_path, before.folder.string()));
  return lines;
}

std::optional<Result<bool>> shims_call(const std::vector<std::string>& args) {
  if (args.empty() || args.front() != "shims") return std::nullopt;
  std::error_code error;
  if (fs::is_regular_file("shims", error)) return std::nullopt;
  if (args.size() == 2 && args.back() == "on") return Result<bool>(true);
  if (args.size() == 2 && args.back() == "off") return Result<bool>(false);
  return Result<bool>(
      Error(ErrorCode::kInvalidArgument, "shims: expected `on` or `off` behind it"));
}

Result<void> run_shims(bool on, const EnvLookup& env) {
  const ShimFacts before = look_at_shims(own_program_folder());
  if (before.folder.empty())
    return Error(ErrorCode::kNotFound, "shims: the file of this program is gone");
  if (const auto changed = change_shims(on, before); !changed) return changed.error();
  for (const std::string& line :
       told_of_shims(on, before, find_first(env("PATH").value_or(""), kShim)))
    std::printf("ddprun: %s\n", line.c_str());
  return {};
}

}  // namespace ddprun::launcher
