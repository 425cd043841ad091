// `ddprun shims on|off`: a link `torchrun` to ddprun, for programs that call torchrun by name. It
// lies in ddprun's own folder, and torch's is kept beside it. plan_shims() is pure. The rest looks
// at that folder, and changes it. Main thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "base/result.h"

namespace ddprun::launcher {

inline constexpr const char* kShim = "torchrun";
inline constexpr const char* kKeptTorchrun = "torchrun.torch";  // torch's own, while ours is there

// `torchrun` of a folder.
enum class Torchrun { kNone, kOurs, kOther };

struct ShimFacts {
  std::filesystem::path folder{};
  Torchrun torchrun = Torchrun::kNone;
  bool is_kept = false;  // kKeptTorchrun is there
};

enum class ShimStep {
  kKeep,     // torchrun gets the name kKeptTorchrun
  kLink,     // torchrun becomes a link to ddprun
  kRemove,   // torchrun goes
  kRestore,  // kKeptTorchrun gets the name torchrun
  kForget,   // kKeptTorchrun goes
};

// None if all is as it should be. An installer that puts torch's torchrun back leaves the kept one,
// which is then an older one.
std::vector<ShimStep> plan_shims(bool on, const ShimFacts& facts);

// The folder of this program is empty if its file is gone.
std::filesystem::path own_program_folder();
ShimFacts look_at_shims(const std::filesystem::path& folder);

// Performs the plan. Error: what could not be done, and why. The folder is then as before.
Result<void> change_shims(bool on, const ShimFacts& facts);

// Returns the lines for people after a change: what is there now. `first_on_path`: the torchrun
// that a shell finds; empty if there is none.
std::vector<std::string> told_of_shims(bool on, const ShimFacts& before,
                                       const std::string& first_on_path);

// True for `on`, false for `off`. Nothing if the words are none of `shims`, or a script has that
// name. Error: the words behind `shims` are others; exit code 2.
std::optional<Result<bool>> shims_call(const std::vector<std::string>& args);

// Does what the words ask for, and says so on stdout. Errors are one clause; exit code 1.
Result<void> run_shims(bool on, const EnvLookup& env);

}  // namespace ddprun::launcher
