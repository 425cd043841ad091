#include "worker/checkpoint/weight_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

constexpr std::string_view kDistributed =
    "module";  // DistributedDataParallel, DataParallel, AveragedModel
// Names that no program gives to its own modules: torch.compile, FSDP, activation checkpointing,
// Lightning Fabric, Opacus.
constexpr std::array<std::string_view, 5> kWrappers{"_orig_mod", "_fsdp_wrapped_module",
                                                    "_checkpoint_wrapped_module", "_forward_module",
                                                    "_module"};
constexpr int kMaxLevels = 16;          // of wrappers around a module
constexpr std::size_t kMaxStarts = 64;  // that are tried

// The components that are taken out of the middle of names.
enum class DroppedParts { kWrapperNames, kWrapperNamesAndModule };

// The file's names, changed in one way.
struct Attempt {
  TensorsByName tensors;
  PrefixChange change;
};

std::string_view first_component(std::string_view name) {
  const auto dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

bool is_taken_out(std::string_view component, DroppedParts what) {
  if (component == kDistributed) return what == DroppedParts::kWrapperNamesAndModule;
  return std::ranges::find(kWrappers, component) != kWrappers.end();
}

// An AveragedModel counts its updates beside its `module.`.
TensorsByName without_count(const TensorsByName& file) {
  const auto count = file.find("n_averaged");
  if (file.size() < 2 || count == file.end() || !count->second->sizes.empty()) return file;
  TensorsByName rest = file;
  rest.erase("n_averaged");
  const bool averaged = std::ranges::all_of(
      rest, [](const auto& item) { return first_component(item.first) == kDistributed; });
  return averaged ? rest : file;
}

// Without the first component, if all names have one and it is the same.
std::optional<Attempt> strip(const Attempt& attempt) {
  const TensorsByName file = without_count(attempt.tensors);
  if (file.empty()) return std::nullopt;
  const std::string start(first_component(file.begin()->first));
  if (start.empty()) return std::nullopt;
  Attempt stripped{below(file, start), attempt.change};
  if (stripped.tensors.size() != file.size()) return std::nullopt;
  stripped.change.stripped += start + ".";
  return stripped;
}

// Nothing if two names would become one, or if nothing changes.
std::optional<Attempt> take_out(const Attempt& attempt, DroppedParts what) {
  Attempt changed{{}, attempt.change};
  std::set<std::string> words;
  for (const auto& [name, tensor] : attempt.tensors) {
    std::string shorter;
    std::string_view rest = name;
    for (auto word = first_component(rest); rest.find('.') != std::string_view::npos;
         rest.remove_prefix(word.size() + 1), word = first_component(rest)) {
      if (is_taken_out(word, what)) {
        words.emplace(fmt::format("{}.", word));
      } else {
        shorter.append(word).append(".");
      }
    }
    shorter.append(rest);
    if (!changed.tensors.emplace(std::move(shorter), tensor).second) return std::nullopt;
  }
  if (words.empty()) return std::nullopt;
  changed.change.taken_out = fmt::format("{}", fmt::join(words, "', '"));
  return changed;
}

Attempt add(const Attempt& attempt) {
  Attempt added{{}, attempt.change};
  added.change.added = fmt::format("{}.", kDistributed);
  for (const auto& [name, tensor] : attempt.tensors) {
    added.tensors.emplace(added.change.added + name, tensor);
  }
  return added;
}

// The level with something taken out and added; nothing if that changes nothing.
std::optional<Attempt> changed(const Attempt& level, std::optional<DroppedParts> what, bool adds) {
  std::optional<Attempt> attempt = what ? take_out(level, *what) : level;
  if (attempt && adds) return add(*attempt);
  return attempt;
}

// Reads the file's names at each level, with the same taken out and added. Returns whether the
// search is over.
bool try_levels(const TensorsByName& file, const LoadOptions& options,
                std::optional<DroppedParts> what, bool adds,
                const std::function<bool(Attempt&)>& fits) {
  std::optional<Attempt> level = Attempt{file, {}};
  for (int depth = 0; level && depth < kMaxLevels; ++depth, level = strip(*level)) {
    auto attempt = changed(*level, what, adds);
    if (attempt && fits(*attempt)) return true;
    if (options.strict_prefix) return true;
  }
  return false;
}

// Reads the file's names in each way, the likeliest first, until `fits` is true. Keeps few at a
// time: names may be long.
void try_each(const TensorsByName& file, const LoadOptions& options,
              const std::function<bool(Attempt&)>& fits) {
  constexpr std::optional<DroppedParts> kTakenOut[] = {std::nullopt, DroppedParts::kWrapperNames,
                                                       DroppedParts::kWrapperNamesAndModule};
  for (const bool adds : {false, true}) {
    for (const auto what : kTakenOut) {
      if (try_levels(file, options, what, adds, fits)) return;
    }
  }
}

// Files from before PyTorch 0.4.1 do not have it, and Python opens them. The module keeps its own.
bool may_be_missing(std::string_view name) {
  constexpr std::string_view kCount = "num_batches_tracked";
  return name == kCount || name.ends_with(fmt::format(".{}", kCount));
}

// The module's names that the file lacks, those aside whose tensor has another name there.
std::vector<std::string> missing_of(const TensorsByName& file, const WeightSlots& module) {
  std::set<const void*> there;
  for (const auto& [name, slot] : module) {
    if (slot.tensor != nullptr && file.contains(name)) there.insert(slot.tensor);
  }
  std::vector<std::string> missing;
  for (const auto& [name, slot] : module) {
    if (file.contains(name) || there.contains(slot.tensor) || may_be_missing(name)) continue;
    missing.push_back(name);
  }
  return missing;
}

std::vector<std::string> unexpected_of(const TensorsByName& file, const WeightSlots& module) {
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : file) {
    if (!module.contains(name)) unexpected.push_back(name);
  }
  return unexpected;
}

// " 2 keys are missing: 'a', 'b';", or nothing.
std::string shortened(std::span<const std::string> names, std::string_view what) {
  constexpr std::size_t kShown = 3;
  if (names.empty()) return {};
  std::vector<std::string> shown;
  for (const auto& name : names.first(std::min(kShown, names.size()))) {
    shown.push_back(fmt::format("'{}'", printable(name)));
  }
  return fmt::format(" {} {}: {}{};", names.size(), what, fmt::join(shown, ", "),
                     names.size() > kShown ? ", …" : "");
}

Result<void> check_shapes(const TensorsByName& file, const WeightSlots& module) {
  for (const auto& [name, tensor] : file) {
    const auto& sizes = module.at(name).sizes;
    if (tensor->sizes == sizes) continue;
    return Error(ErrorCode::kProtocol,
                 fmt::format("'{}' has the shape [{}], the module's has [{}]", name,
                             fmt::join(tensor->sizes, ", "), fmt::join(sizes, ", ")));
  }
  return {};
}

}  // namespace

Result<TensorsByName> tensors_of(const Value::Dict& state) {
  TensorsByName tensors;
  for (const auto& [key, value] : state.entries) {
    const auto* name = std::get_if<std::string>(&key);
    const auto* tensor = value.as<TensorValue>();
    if (const auto* object = value.as<Value::Object>()) {
      return Error(ErrorCode::kProtocol,
                   fmt::format("the state_dict's '{}': {}", printable_key(key), *object->reason));
    }
    if (name == nullptr || tensor == nullptr) {
      return Error(ErrorCode::kProtocol,
                   fmt::format("the state_dict's '{}' is no tensor", printable_key(key)));
    }
    tensors.emplace(*name, tensor);
  }
  return tensors;
}

Result<NamedWeights> match_names(const TensorsByName& file, const WeightSlots& module,
                                 const LoadOptions& options) {
  std::optional<Attempt> found;
  std::string nearest;
  std::size_t least = 0;
  try_each(file, options, [&](Attempt& attempt) {
    const auto missing = missing_of(attempt.tensors, module);
    const auto unexpected = unexpected_of(attempt.tensors, module);
    const std::size_t wrong = missing.size() + unexpected.size();
    if (wrong == 0) {
      found = std::move(attempt);
    } else if (nearest.empty() || wrong < least) {
      nearest = shortened(missing, "keys are missing") +
                shortened(unexpected, "keys are not the module's");
      least = wrong;
    }
    return wrong == 0;
  });
  if (!found) {
    nearest.pop_back();
    return Error(ErrorCode::kProtocol, "the state_dict is of another model:" + nearest);
  }
  if (auto alike = check_shapes(found->tensors, module); !alike) return alike.error();
  return NamedWeights{std::move(found->tensors), std::move(found->change)};
}

std::vector<std::string> fitting_starts(const TensorsByName& file, const WeightSlots& module,
                                        const LoadOptions& options) {
  std::set<std::string> starts;
  for (const auto& [name, tensor] : file) {
    if (starts.size() == kMaxStarts) break;
    if (const auto start = first_component(name); !start.empty()) starts.emplace(start);
  }
  std::vector<std::string> fitting;
  for (const std::string& start : starts) {
    if (match_names(below(file, start), module, options)) fitting.push_back(start);
  }
  return fitting;
}

TensorsByName below(const TensorsByName& file, const std::string& start) {
  TensorsByName found;
  const std::string begin = start + ".";
  for (auto item = file.lower_bound(begin); item != file.end() && item->first.starts_with(begin);
       ++item) {
    if (item->first.size() > begin.size())
      found.emplace(item->first.substr(begin.size()), item->second);
  }
  return found;
}

}  // namespace ddprun::worker

namespace ddprun {

std::string describe(const PrefixChange& change) {
  std::vector<std::string> parts;
  if (!change.stripped.empty())
    parts.push_back(
        fmt::format("'{}' was stripped from its keys", worker::printable(change.stripped)));
  if (!change.taken_out.empty())
    parts.push_back(
        fmt::format("'{}' was taken out of its keys", worker::printable(change.taken_out)));
  if (!change.added.empty())
    parts.push_back(fmt::format("'{}' was added to its keys", change.added));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace ddprun
