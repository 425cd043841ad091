#include "worker/checkpoint/weights_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "worker/checkpoint/fields.h"

namespace ddprun::worker {
namespace {

// The keys under which programs keep the weights that they train, not an average of them or a copy.
constexpr std::array<std::string_view, 10> kPlainKeys{
    "state_dict", "model_state_dict", "model",   "model_state", "module",
    "net",        "net_state_dict",   "network", "weights",     "params"};
constexpr int kMaxKeysAbove = 4;            // of keys above a state_dict
constexpr std::size_t kMaxCandidates = 64;  // that are tried
constexpr std::string_view kOption = "weights_key (--weights-key) selects one";

struct Candidate {
  std::string key;
  const Value::Dict* state = nullptr;
  bool plain = false;
  int depth = 0;  // 1: a key of the file
};

bool is_plain(std::string_view key) {
  return std::ranges::find(kPlainKeys, key) != kPlainKeys.end();
}

bool holds_only_tensors(const Value::Dict& dict) {
  return !dict.entries.empty() && std::ranges::all_of(dict.entries, [](const auto& entry) {
    return std::holds_alternative<std::string>(entry.key) && entry.value.template as<TensorValue>();
  });
}

// Dicts of tensors, and below a plain key also a dict that holds something else: its error says
// what.
void collect(const Value::Dict& dict, const std::string& above, int depth,
             std::vector<Candidate>& into) {
  for (const auto& [key, value] : dict.entries) {
    const auto* name = std::get_if<std::string>(&key);
    const auto* inner = value.as<Value::Dict>();
    if (name == nullptr || inner == nullptr || into.size() == kMaxCandidates) continue;
    if (name->starts_with("optim")) continue;
    const std::string path = above + *name;
    const std::size_t before = into.size();
    if (holds_only_tensors(*inner)) {
      into.push_back({path, inner, is_plain(*name), depth});
    } else if (depth < kMaxKeysAbove) {
      collect(*inner, path + ".", depth + 1, into);
    }
    if (into.size() == before && depth == 1 && *name == kPlainKeys[0])
      into.push_back({path, inner, true, depth});
  }
}

// {"model": …, "ema": {"model": …}}: a plain key counts only where no other lies above it.
void keep_plain_ones_of_the_top(std::vector<Candidate>& candidates) {
  int top = kMaxKeysAbove + 1;
  for (const Candidate& candidate : candidates)
    if (candidate.plain) top = std::min(top, candidate.depth);
  for (Candidate& candidate : candidates)
    candidate.plain = candidate.plain && candidate.depth == top;
}

std::string quoted(const std::vector<std::string>& keys) {
  constexpr std::size_t kShown = 6;
  std::vector<std::string> shown;
  for (const auto& key : keys) {
    if (shown.size() == kShown) {
      shown.emplace_back("…");
      break;
    }
    shown.push_back(fmt::format("'{}'", printable(key)));
  }
  return fmt::format("{}", fmt::join(shown, ", "));
}

std::vector<std::string> keys_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> keys;
  keys.reserve(candidates.size());
  for (const Candidate& candidate : candidates) keys.push_back(candidate.key);
  return keys;
}

// Returns why a file has no weights at all, with its keys.
Error nothing_in(const Value& file) {
  constexpr std::size_t kShown = 6;
  if (const auto* object = file.as<Value::Object>()) return refused(*object->reason);
  const auto* dict = file.as<Value::Dict>();
  if (dict == nullptr)
    return refused(fmt::format("no state_dict: the file holds a {}", file.type_name()));
  std::vector<std::string> shown;
  std::string object_there;
  for (const auto& [key, value] : dict->entries) {
    const auto* object = value.as<Value::Object>();
    if (object != nullptr && object_there.empty()) {
      object_there = fmt::format("; '{}': {}", printable_key(key), *object->reason);
    }
    if (shown.size() < kShown)
      shown.push_back(fmt::format("'{}' ({})", printable_key(key), value.type_name()));
  }
  if (dict->entries.size() > kShown) shown.emplace_back("…");
  if (shown.empty()) return refused("no state_dict: the file holds an empty dict");
  return refused(
      fmt::format("no state_dict among its keys: {}{}", fmt::join(shown, ", "), object_there));
}

// The tensors at a path of keys, the last part of which may be the start of names.
std::optional<Result<TensorsByName>> at_path(const Value::Dict& dict, std::string_view path) {
  const auto inner = [&dict](std::string_view key) {
    const Value* value = dict.find(std::string(key));
    return value == nullptr ? nullptr : value->as<Value::Dict>();
  };
  if (const auto* whole = inner(path)) return tensors_of(*whole);
  for (auto dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
    const auto* head = inner(path.substr(0, dot));
    if (head == nullptr) continue;
    if (auto found = at_path(*head, path.substr(dot + 1))) return found;
  }
  TensorsByName tensors;
  for (const auto& [key, value] : dict.entries) {
    const auto* name = std::get_if<std::string>(&key);
    const auto* tensor = value.as<TensorValue>();
    if (name != nullptr && tensor != nullptr) tensors.emplace(*name, tensor);
  }
  tensors = below(tensors, std::string(path));
  if (tensors.empty()) return std::nullopt;
  return tensors;
}

Result<NamedWeights> match(const Value::Dict& state, const WeightSlots& module,
                           const LoadOptions& options) {
  const auto tensors = tensors_of(state);
  if (!tensors) return tensors.error();
  return match_names(*tensors, module, options);
}

// With what to choose instead: other keys, or the start of names.
Error explained(const Error& error, const Candidate& taken, const std::vector<Candidate>& all,
                const WeightSlots& module, const LoadOptions& options) {
  std::vector<std::string> choices;
  for (const Candidate& candidate : all) {
    if (candidate.key != taken.key) choices.push_back(candidate.key);
  }
  if (const auto tensors = tensors_of(*taken.state)) {
    for (const auto& start : fitting_starts(*tensors, module, options)) {
      choices.push_back(taken.key.empty() ? start : taken.key + "." + start);
    }
  }
  if (choices.empty()) return error;
  return {error.code(), fmt::format("{}; other weights in the file: {}: {}", error.message(),
                                    quoted(choices), kOption)};
}

Result<FoundWeights> select(const Value& file, const std::vector<Candidate>& candidates,
                            const WeightSlots& module, const LoadOptions& options) {
  const auto found = at_path(*file.as<Value::Dict>(), options.weights_key);
  if (!found) {
    const std::string there = candidates.empty() ? nothing_in(file).message()
                                                 : "there are " + quoted(keys_of(candidates));
    return refused(fmt::format("weights_key (--weights-key) {}: no weights there; {}",
                               printable(options.weights_key), there));
  }
  if (!*found) return found->error();
  auto named = match_names(**found, module, options);
  if (!named) return named.error();
  return FoundWeights{options.weights_key, {}, std::move(*named)};
}

bool is_same(const TensorsByName& left, const TensorsByName& right) {
  return std::ranges::equal(left, right, [](const auto& a, const auto& b) {
    return a.first == b.first && a.second->storage == b.second->storage &&
           a.second->offset == b.second->offset && a.second->strides == b.second->strides;
  });
}

// The one that is taken of those that fit; the others' keys stay in it.
Result<FoundWeights> choose(std::vector<FoundWeights> fitting) {
  for (std::size_t i = 1; i < fitting.size(); ++i) {
    if (is_same(fitting[i].named.tensors, fitting[0].named.tensors)) continue;
    std::vector<std::string> keys;
    keys.reserve(fitting.size());
    for (const auto& each : fitting) keys.push_back(each.key);
    return refused(fmt::format("the weights at {} fit the module, and are not the same: {}",
                               quoted(keys), kOption));
  }
  return std::move(fitting[0]);
}

Result<FoundWeights> search(const std::vector<Candidate>& candidates, const WeightSlots& module,
                            const LoadOptions& options) {
  const bool any_plain = std::ranges::any_of(candidates, &Candidate::plain);
  std::vector<FoundWeights> fitting;
  std::vector<std::string> others;
  std::optional<Error> first_error;
  const Candidate* first = nullptr;
  for (const Candidate& candidate : candidates) {
    auto named = match(*candidate.state, module, options);
    if (candidate.plain != any_plain) {
      if (named) others.push_back(candidate.key);
    } else if (named) {
      fitting.push_back({candidate.key, {}, std::move(*named)});
    } else if (first == nullptr) {
      first = &candidate;
      first_error = named.error();
    }
  }
  if (fitting.empty()) return explained(*first_error, *first, candidates, module, options);
  auto chosen = choose(std::move(fitting));
  if (chosen) chosen->others = std::move(others);
  return chosen;
}

}  // namespace

Result<FoundWeights> find_weights(const Value& file, const WeightSlots& module,
                                  const LoadOptions& options) {
  const auto* dict = file.as<Value::Dict>();
  if (dict == nullptr) return nothing_in(file);
  std::vector<Candidate> candidates;
  if (holds_only_tensors(*dict)) {
    candidates.push_back({"", dict, true, 0});
  } else {
    collect(*dict, "", 1, candidates);
    keep_plain_ones_of_the_top(candidates);
  }
  if (!options.weights_key.empty()) return select(file, candidates, module, options);
  if (candidates.empty()) return nothing_in(file);
  return search(candidates, module, options);
}

}  // namespace ddprun::worker
