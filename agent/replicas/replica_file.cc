#include "agent/replicas/replica_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/regular_file.h"

namespace ddprun::agent {
namespace {

constexpr std::uint64_t kMagic = 0x31'53'41'43'49'4C'50'52;
constexpr std::size_t kHeadWords = 8;
constexpr std::uint64_t kMostTensors = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostSlots = 1024;
constexpr std::uint64_t kMostNameBytes = std::uint64_t{1} << 26;
constexpr std::uint64_t kMostMembers = std::uint64_t{1} << 30;

using Words = std::vector<std::uint64_t>;

struct Head {
  std::uint64_t tensors = 0;
  std::uint64_t members = 0;
  std::uint64_t set = 0;
  std::uint64_t names_at = 0;
  std::uint64_t names_bytes = 0;
  std::uint64_t slots = 0;
};

bool read_bytes(int file, void* to, std::size_t bytes, std::uint64_t at) {
  return ::pread(file, to, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
}

std::optional<Words> read_words(int file, std::size_t count, std::uint64_t at) {
  Words words(count);
  if (!read_bytes(file, words.data(), count * sizeof(std::uint64_t), at)) return std::nullopt;
  return words;
}

std::optional<Head> read_head(int file) {
  std::array<std::uint64_t, kHeadWords> words{};
  if (!read_bytes(file, words.data(), sizeof words, 0) || words[0] != kMagic) return std::nullopt;
  const Head head{words[1], words[2], words[3], words[4], words[5], words[6]};
  const bool is_sound = head.tensors <= kMostTensors && head.members <= kMostMembers &&
                        head.names_bytes <= kMostNameBytes && head.slots <= kMostSlots;
  return is_sound ? std::optional(head) : std::nullopt;
}

// By slot.
std::vector<ReplicaCheck> read_slots(int file, const Head& head) {
  const auto words = read_words(file, 2 * head.slots, kHeadWords * sizeof(std::uint64_t));
  std::vector<ReplicaCheck> slots;
  for (std::size_t at = 0; words && at < words->size(); at += 2)
    slots.push_back({static_cast<std::int64_t>((*words)[at]), (*words)[at + 1]});
  return slots;
}

std::vector<std::string> split_names(const std::string& text, std::size_t count) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  while (names.size() < count && begin <= text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  names.resize(count);
  return names;
}

}  // namespace

std::optional<ReplicaChecks> read_replica_checks(const std::string& path) {
  const FileHandle file = open_regular_file(path);
  const auto head = file.get() < 0 ? std::nullopt : read_head(file.get());
  if (!head) return std::nullopt;
  ReplicaChecks checks{.set = head->set, .members = static_cast<int>(head->members)};
  // A slot that changes between two looks was being written.
  const std::vector<ReplicaCheck> first = read_slots(file.get(), *head);
  const std::vector<ReplicaCheck> second = read_slots(file.get(), *head);
  for (std::size_t slot = 0; slot < std::min(first.size(), second.size()); ++slot)
    if (first[slot].step > 0 && first[slot] == second[slot]) checks.checks.push_back(first[slot]);
  std::ranges::sort(checks.checks, {}, &ReplicaCheck::step);
  return checks.checks.empty() ? std::nullopt : std::optional(checks);
}

std::optional<ReplicaHashes> read_replica_hashes(const std::string& path, std::int64_t step) {
  const FileHandle file = open_regular_file(path);
  const auto head = file.get() < 0 ? std::nullopt : read_head(file.get());
  if (!head || step <= 0) return std::nullopt;
  const std::vector<ReplicaCheck> slots = read_slots(file.get(), *head);
  const auto slot = std::ranges::find(slots, step, &ReplicaCheck::step);
  if (slot == slots.end()) return std::nullopt;
  const auto number = static_cast<std::uint64_t>(slot - slots.begin());
  const std::uint64_t bodies = sizeof(std::uint64_t) * (kHeadWords + 2 * head->slots);
  auto hashes = read_words(file.get(), head->tensors,
                           bodies + sizeof(std::uint64_t) * head->tensors * number);
  std::string names(head->names_bytes, '\0');
  if (!hashes || !read_bytes(file.get(), names.data(), names.size(), head->names_at))
    return std::nullopt;
  const std::vector<ReplicaCheck> now = read_slots(file.get(), *head);
  if (number >= now.size() || now[number] != *slot) return std::nullopt;
  return ReplicaHashes{head->set, *std::move(hashes), split_names(names, head->tensors)};
}

}  // namespace ddprun::agent
