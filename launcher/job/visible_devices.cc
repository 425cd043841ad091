#include "launcher/job/visible_devices.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "launcher/options/flag_values.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kDigits = "0123456789";

// A device does this to a list that names it again.
enum class Repeat { kEmpties, kEnds, kCountsOnce };

// False for an empty text.
bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kDigits) == std::string_view::npos;
}

std::string_view trimmed_word(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// No words for an empty text; else one more than there are separators.
std::vector<std::string_view> trimmed_words(std::string_view list, char separator = ',') {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const auto end = list.find(separator);
    words.push_back(trimmed_word(list.substr(0, end)));
    if (end == std::string_view::npos) break;
    list.remove_prefix(end + 1);
    if (list.empty()) words.emplace_back();
  }
  return words;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// A number that is too large for an int is no device.
std::optional<int> number_below(std::string_view digits, std::size_t count) {
  const auto number = all_digits(digits) ? parse_int(digits) : std::nullopt;
  if (!number || static_cast<std::size_t>(*number) >= count) return std::nullopt;
  return number;
}

// The device whose id begins with the word, and no other does.
std::optional<int> device_of_id(const std::vector<std::string>& ids, std::string_view word) {
  const auto begins = [word](const std::string& id) { return id.starts_with(word); };
  const auto found = std::find_if(ids.begin(), ids.end(), begins);
  if (found != ids.end()) {
    if (std::any_of(found + 1, ids.end(), begins)) return std::nullopt;
    return static_cast<int>(found - ids.begin());
  }
  const bool is_any_unknown = std::find(ids.begin(), ids.end(), "") != ids.end();
  return is_any_unknown ? std::optional(kSomeDevice) : std::nullopt;
}

struct NamedDevice {
  int device = 0;
  std::string name{};  // equal for two words that name one device
};

// `ids` begin with `id_mark`; any other word is a number.
std::optional<NamedDevice> named_device(const std::vector<std::string>& ids, std::string_view word,
                                        std::string_view id_mark) {
  const auto device =
      word.starts_with(id_mark) ? device_of_id(ids, word) : number_below(word, ids.size());
  if (!device) return std::nullopt;
  return NamedDevice{*device, *device == kSomeDevice ? std::string(word) : std::to_string(*device)};
}

enum class Taken { kNew, kRepeats, kIsNone };

// The devices that a list has named. Each device of an unknown id is taken by one id or number.
class TakenDevices {
 public:
  explicit TakenDevices(const std::vector<std::string>& ids)
      : ids_(ids), unknown_(std::count(ids.begin(), ids.end(), "")) {}

  Taken take(const NamedDevice& named) {
    if (!seen_.insert(named.name).second) return Taken::kRepeats;
    const bool is_some = named.device == kSomeDevice;
    if (!is_some && !ids_[static_cast<std::size_t>(named.device)].empty()) return Taken::kNew;
    if (unknown_ == 0) return is_some ? Taken::kIsNone : Taken::kRepeats;
    --unknown_;
    return Taken::kNew;
  }

 private:
  const std::vector<std::string>& ids_;
  std::ptrdiff_t unknown_;
  std::set<std::string> seen_{};
};

// Reads words that name devices by number or by id, up to the first that names none.
std::vector<int> named_devices(const std::vector<std::string>& ids,
                               const std::vector<std::string_view>& words, std::string_view id_mark,
                               Repeat repeat) {
  TakenDevices taken(ids);
  std::vector<int> devices;
  for (const std::string_view word : words) {
    const auto found = named_device(ids, word, id_mark);
    const Taken how = found ? taken.take(*found) : Taken::kIsNone;
    if (how == Taken::kNew) devices.push_back(found->device);
    if (how == Taken::kRepeats && repeat == Repeat::kEmpties) return {};
    if (how == Taken::kIsNone || (how == Taken::kRepeats && repeat == Repeat::kEnds)) break;
  }
  return devices;
}

// The GPU of an instance is in its older name alone, `MIG-GPU-uuid/gi/ci`.
bool may_be_here(const std::vector<std::string>& uuids, std::string_view instance) {
  const std::string_view uuid = instance.substr(4, instance.find('/') - 4);
  return !uuid.starts_with("GPU-") || device_of_id(uuids, uuid).has_value();
}

int count_instances(const std::vector<std::string>& uuids,
                    const std::vector<std::string_view>& words) {
  std::set<std::string_view> seen;
  if (uuids.empty()) return 0;
  for (const std::string_view word : words) {
    if (!word.starts_with("MIG-") || !may_be_here(uuids, word)) break;
    if (!seen.insert(word).second) return 0;
  }
  return static_cast<int>(seen.size());
}

// CUDA reads a number as strtoul(3) does: what follows it is passed over.
std::string_view leading_digits(std::string_view word) {
  if (word.starts_with('+')) word.remove_prefix(1);
  return word.substr(0, word.find_first_not_of(kDigits));
}

bool is_of_level_zero(std::string_view backend) {
  return backend == "*" || lower(backend) == "level_zero";
}

std::vector<int> visible_to_rocm(const std::vector<std::string>& uuids, std::string_view list,
                                 Repeat repeat) {
  std::vector<std::string> ids(uuids.size());
  std::transform(uuids.begin(), uuids.end(), ids.begin(), lower);
  const std::string lowered = lower(list);
  return named_devices(ids, trimmed_words(lowered), "gpu-", repeat);
}

}  // namespace

CudaDevices visible_to_cuda(const std::vector<std::string>& uuids, std::string_view list) {
  std::vector<std::string_view> words = trimmed_words(list);
  if (words.empty()) return {};
  if (words.front().starts_with("MIG-")) return {.instances = count_instances(uuids, words)};
  const bool by_id = words.front().starts_with("GPU-");
  const auto other = std::find_if(words.begin(), words.end(), [by_id](std::string_view word) {
    return word.starts_with("GPU-") != by_id;
  });
  words.erase(other, words.end());
  if (!by_id) std::transform(words.begin(), words.end(), words.begin(), leading_digits);
  return {.gpus = named_devices(uuids, words, "GPU-", Repeat::kEmpties)};
}

std::vector<int> visible_to_rocr(const std::vector<std::string>& uuids, std::string_view list) {
  return visible_to_rocm(uuids, list, Repeat::kEnds);
}

std::vector<int> visible_to_hip(const std::vector<std::string>& uuids, std::string_view list) {
  return visible_to_rocm(uuids, list, Repeat::kCountsOnce);
}

std::vector<int> visible_to_level_zero(int devices, std::string_view mask, bool is_flat) {
  std::set<int> seen;
  for (const std::string_view word : trimmed_words(mask)) {
    const auto dot = word.find('.');
    if (is_flat && dot != std::string_view::npos) continue;
    const auto device = number_below(word.substr(0, dot), static_cast<std::size_t>(devices));
    if (device) seen.insert(*device);
  }
  return {seen.begin(), seen.end()};
}

int visible_to_selector(int devices, std::string_view selector) {
  std::set<int> seen;
  for (const std::string_view term : trimmed_words(selector, ';')) {
    const auto colon = term.find(':');
    if (colon == std::string_view::npos || term.starts_with('!')) return devices;
    if (!is_of_level_zero(term.substr(0, colon))) continue;
    const auto words = trimmed_words(term.substr(colon + 1));
    // `gpu` and `*` are all of them.
    if (!std::all_of(words.begin(), words.end(), all_digits)) return devices;
    for (const std::string_view word : words)
      seen.insert(number_below(word, static_cast<std::size_t>(devices)).value_or(kSomeDevice));
  }
  seen.erase(kSomeDevice);
  return static_cast<int>(seen.size());
}

int visible_to_ascend(int devices, std::string_view list) {
  const std::vector<std::string> unnamed(static_cast<std::size_t>(devices), "-");
  return static_cast<int>(
      named_devices(unnamed, trimmed_words(list), "GPU-", Repeat::kCountsOnce).size());
}

int visible_to_gaudi(int devices, std::string_view list) {
  std::set<std::string_view> modules;
  for (const std::string_view word : trimmed_words(list))
    if (all_digits(word)) modules.insert(word);
  return std::min(devices, static_cast<int>(modules.size()));
}

}  // namespace ddprun::launcher
