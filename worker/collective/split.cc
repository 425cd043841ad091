#include "worker/collective/split.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace ddprun::worker {
namespace {

// The exchange of one group, over the collective of all. Each rank of all takes part in the same two
// gathers: the wishes, and what the first rank of each group announces.
class GroupExchange final : public Exchange {
 public:
  GroupExchange(Collective& all, GroupPlace place, int first)
      : all_(all), place_(place), first_(first) {}

  // The gather of the wishes was that.
  Result<void> arrive() override { return {}; }
  Result<void> announce(std::string_view text) override {
    gather(text);
    return {};
  }
  Result<std::string> hear() override { return gather(""); }

  // All groups wait for the others' announcements. Those that need none come to it here.
  void complete() {
    if (!gathered_) gather("");
  }

 private:
  std::string gather(std::string_view text) {
    gathered_ = true;
    const auto texts = all_.all_gather(std::as_bytes(std::span(text)));
    if (place_.ranks == 0) return "";
    const auto& first = texts[static_cast<std::size_t>(first_)];
    return {reinterpret_cast<const char*>(first.data()), first.size()};
  }

  Collective& all_;
  GroupPlace place_;
  int first_;  // rank in `all_` of the group's first one
  bool gathered_ = false;
};

std::vector<GroupWish> gather_wishes(Collective& all, GroupWish wish) {
  std::vector<GroupWish> wishes;
  for (const auto& blob : all.all_gather(std::as_bytes(std::span(&wish, 1)))) {
    GroupWish theirs;
    if (blob.size() != sizeof theirs) throw CollectiveError("ranks disagree on what they do");
    std::memcpy(&theirs, blob.data(), sizeof theirs);
    wishes.push_back(theirs);
  }
  return wishes;
}

// The rank in all of the one that is first in the group of this color.
int first_of(const std::vector<GroupWish>& wishes, int color) {
  for (int rank = 0; rank < static_cast<int>(wishes.size()); ++rank) {
    const bool ours = wishes[static_cast<std::size_t>(rank)].color == color;
    if (ours && group_place(wishes, rank).rank == 0) return rank;
  }
  return 0;
}

}  // namespace

GroupPlace group_place(const std::vector<GroupWish>& wishes, int rank) {
  const GroupWish& mine = wishes[static_cast<std::size_t>(rank)];
  GroupPlace place;
  if (mine.color < 0) return place;
  for (int other = 0; other < static_cast<int>(wishes.size()); ++other) {
    const GroupWish& theirs = wishes[static_cast<std::size_t>(other)];
    if (theirs.color != mine.color) continue;
    ++place.ranks;
    const bool before = theirs.key != mine.key ? theirs.key < mine.key : other < rank;
    if (before) ++place.rank;
  }
  return place;
}

std::unique_ptr<Collective> split_group(Collective& all, GroupWish wish, const JoinGroup& join) {
  const auto wishes = gather_wishes(all, wish);
  const GroupPlace place = group_place(wishes, all.rank());
  GroupExchange exchange(all, place, first_of(wishes, wish.color));
  if (place.ranks == 0) {
    exchange.complete();
    return nullptr;
  }
  auto group = join(place, exchange);
  exchange.complete();
  if (!group) throw CollectiveError(group.error().message());
  return std::move(*group);
}

}  // namespace ddprun::worker
