#include "worker/collective/core/split.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::worker {
namespace {

// The exchange of one group, over the collective of all. Each rank of all takes part in the same
// two gathers. They are the requests, and the announcements of each group's first rank.
class GroupExchange final : public Exchange {
 public:
  // `members`: the ranks in `all`, by rank in the group.
  GroupExchange(Collective& all, std::vector<int> members)
      : all_(all), members_(std::move(members)) {}

  // The gather of the requests was that.
  Result<void> arrive() override { return {}; }
  Result<void> announce(std::string_view text) override {
    gather_all(text);
    return {};
  }
  Result<std::string> hear() override { return gather_all("").front(); }
  Result<std::vector<std::string>> gather(int /*rank*/, std::string_view text) override {
    return gather_all(text);
  }

  // All groups wait for the others' announcements. Those that need none come to it here.
  void complete() {
    if (!gathered_) gather_all("");
  }

 private:
  std::vector<std::string> gather_all(std::string_view text) {
    gathered_ = true;
    const auto blobs = all_.all_gather_bytes(std::as_bytes(std::span(text)));
    std::vector<std::string> texts;
    for (const int member : members_) {
      const auto& blob = blobs[static_cast<std::size_t>(member)];
      texts.emplace_back(reinterpret_cast<const char*>(blob.data()), blob.size());
    }
    return texts;
  }

  Collective& all_;
  std::vector<int> members_;
  bool gathered_ = false;
};

// The ranks in all of the group of this color, by rank in the group.
std::vector<int> members_of(const std::vector<SplitRequest>& requests, int color) {
  std::vector<int> members;
  for (int rank = 0; color >= 0 && rank < static_cast<int>(requests.size()); ++rank) {
    if (requests[static_cast<std::size_t>(rank)].color == color) members.push_back(rank);
  }
  std::ranges::stable_sort(members, {},
                           [&](int rank) { return requests[static_cast<std::size_t>(rank)].key; });
  return members;
}

}  // namespace

std::vector<SplitRequest> gather_split_requests(Collective& all, SplitRequest request) {
  std::vector<SplitRequest> requests;
  for (const auto& blob : all.all_gather_bytes(std::as_bytes(std::span(&request, 1)))) {
    SplitRequest theirs;
    if (blob.size() != sizeof theirs) throw CollectiveError("ranks disagree on what they do");
    std::memcpy(&theirs, blob.data(), sizeof theirs);
    requests.push_back(theirs);
  }
  return requests;
}

GroupPlace group_place(const std::vector<SplitRequest>& requests, int rank) {
  const SplitRequest& mine = requests[static_cast<std::size_t>(rank)];
  GroupPlace place;
  if (mine.color < 0) return place;
  for (int other = 0; other < static_cast<int>(requests.size()); ++other) {
    const SplitRequest& theirs = requests[static_cast<std::size_t>(other)];
    if (theirs.color != mine.color) continue;
    ++place.ranks;
    const bool before = theirs.key != mine.key ? theirs.key < mine.key : other < rank;
    if (before) ++place.rank;
  }
  return place;
}

std::unique_ptr<Collective> split_group(Collective& all, SplitRequest request,
                                        const JoinGroup& join) {
  const auto requests = gather_split_requests(all, request);
  const GroupPlace place = group_place(requests, all.rank());
  GroupExchange exchange(all, members_of(requests, request.color));
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
