#include "agent/output/line_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "agent/output/console_text.h"
#include "base/number_ranges.h"

namespace ddprun::agent {

void LineFolder::take(const LineSource& source, std::string_view line, Time now) {
  const std::size_t hash = std::hash<std::string_view>()(line);
  Entry* like = find_like(source.rank, line, hash);
  if (like == nullptr) {
    const std::uint64_t id = first_id_ + waiting_.size();
    like = &waiting_.emplace_back(Entry{std::string(line), source.prefix, {}, now, hash});
    ids_.emplace(hash, id);
    next_id_of_[source.rank] = id + 1;
    waiting_bytes_ += line.size() + kFoldLineBytes;
  }
  like->ranks.push_back(source.rank);
}

// Finds the oldest equal line that comes after all lines of this rank. Notes it as the rank's last
// line. An earlier equal line will not do: the rank's own lines would change their order. Null if
// there is none.
LineFolder::Entry* LineFolder::find_like(int rank, std::string_view line, std::size_t hash) {
  std::uint64_t& own_next = next_id_of_[rank];
  for (auto like = ids_.lower_bound({hash, own_next}); like != ids_.end() && like->first == hash;
       ++like) {
    Entry& entry = waiting_[like->second - first_id_];
    if (entry.text != line) continue;  // another text with the same hash
    own_next = like->second + 1;
    return &entry;
  }
  return nullptr;
}

// Looks at the oldest line only. A younger one that all ranks have written waits behind it, so that
// the lines keep their order.
void LineFolder::append_due(std::string& out, Time now) {
  while (!waiting_.empty()) {
    const bool due = now >= look_again_at() || waiting_.front().ranks.size() == ranks_ ||
                     waiting_bytes_ > kFoldBytes;
    if (!due) return;
    append_oldest(out);
  }
}

Time LineFolder::look_again_at() const {
  return waiting_.empty() ? Time::max() : waiting_.front().since + kFoldWindow;
}

void LineFolder::append_oldest(std::string& out) {
  Entry& oldest = waiting_.front();
  std::sort(oldest.ranks.begin(), oldest.ranks.end());
  out += oldest.ranks.size() == 1 ? oldest.prefix
                                  : fmt::format("[ranks {}] ", number_ranges(oldest.ranks));
  append_whole_utf8(out, oldest.text);
  out += '\n';
  ids_.erase({oldest.hash, first_id_});
  waiting_bytes_ -= oldest.text.size() + kFoldLineBytes;
  waiting_.pop_front();
  ++first_id_;
}

}  // namespace ddprun::agent
