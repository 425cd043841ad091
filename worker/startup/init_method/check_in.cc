#include "worker/startup/init_method/check_in.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/duration.h"
#include "worker/startup/init_method/named_ranks.h"

namespace ddprun::worker {
namespace {

using std::chrono::milliseconds;

// The value of `decided` if all ranks are there; else it holds why they never will be.
constexpr std::string_view kAllHere = "all";
// How long rank 0 keeps its store up for ranks that have not read how the start ended. One that
// died never will.
constexpr milliseconds kHearTime{1000};

milliseconds left_until(CheckIn::Deadline end) {
  return std::max(std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now()),
                  milliseconds(0));
}

}  // namespace

std::string init_key(const InitRecord& record, std::string_view name) {
  return fmt::format("/ddprun/file_init/{}/{}", record.id, name);
}

CheckIn::CheckIn(store::Client client, const InitFile& file, InitRecord record, int rank)
    : client_(std::move(client)), file_(file), record_(std::move(record)), rank_(rank) {}

Result<bool> CheckIn::arrive(const HostId& here) {
  const Arrival mine{.id = fresh_id(), .process = ::getpid(), .host = here};
  const std::string text = format_arrival(mine);
  const auto held = client_.compare_set(place(rank_), "", text);
  if (!held) return lost(held.error());
  if (*held != text) return come_twice(mine, *held);
  has_arrived_ = true;
  const auto count = client_.add(init_key(record_, "count"), 1);
  if (!count) return lost(count.error());
  if (*count != record_.ranks) return true;
  const auto decided = client_.compare_set(init_key(record_, "decided"), "", kAllHere);
  if (!decided) return lost(decided.error());
  return true;
}

Result<bool> CheckIn::all_here_by(Deadline until) {
  const auto key = init_key(record_, "decided");
  if (auto told = client_.wait(key, left_until(until)); !told) {
    if (told.error().code() == ErrorCode::kTimedOut) return false;
    return lost(told.error());
  }
  const auto decided = client_.get(key);
  if (!decided) return lost(decided.error());
  if (*decided == kAllHere) return true;
  return failure(ErrorCode::kUnavailable, *decided);
}

Result<void> CheckIn::end(ErrorCode code, const std::string& why) {
  const auto decided = client_.compare_set(init_key(record_, "decided"), "", why);
  if (!decided) return lost(decided.error());
  if (*decided == kAllHere) return boost::system::in_place_value;
  return failure(code, *decided);
}

Result<void> CheckIn::end_late(milliseconds timeout) {
  const auto missing = absent();
  if (!missing) return lost(missing.error());
  const std::string waited =
      fmt::format("rank {} waited {} s for the others", rank_, in_seconds(timeout));
  if (missing->empty()) return end(ErrorCode::kTimedOut, waited + ": one ended while it came");
  return end(ErrorCode::kTimedOut, fmt::format("{}: rank {} of {} did not come", waited,
                                               fmt::join(*missing, ", "), record_.ranks));
}

Result<std::vector<int>> CheckIn::absent() {
  std::vector<int> absent;
  for (int rank = 0; rank < record_.ranks; ++rank) {
    const auto there = is_there(rank);
    if (!there) return there.error();
    if (!*there) absent.push_back(rank);
  }
  return absent;
}

std::string CheckIn::absent_text() {
  const auto missing = absent();
  if (!missing) return "the store of rank 0 does not answer: " + missing.error().message();
  return fmt::format("{} of {} has not come yet", named_ranks(*missing), record_.ranks);
}

Result<std::vector<HostId>> CheckIn::hosts() {
  std::vector<std::string> places;
  places.reserve(static_cast<std::size_t>(record_.ranks));
  for (int rank = 0; rank < record_.ranks; ++rank) places.push_back(place(rank));
  const auto texts = client_.multi_get(places);
  if (!texts) return lost(texts.error());
  std::vector<HostId> all;
  for (const std::string& text : *texts) {
    const auto arrival = parse_arrival(text);
    if (!arrival) return file_.error(ErrorCode::kProtocol, "a rank did not say where it is");
    all.push_back(arrival->host);
  }
  return all;
}

std::string CheckIn::place(int rank) const {
  return init_key(record_, fmt::format("rank/{}", rank));
}

Result<bool> CheckIn::is_there(int rank) {
  const std::array key{place(rank)};
  return client_.check(key);
}

std::string CheckIn::heard(int rank) const {
  return init_key(record_, fmt::format("heard/{}", rank));
}

Error CheckIn::lost(const Error& cause) const {
  return file_.error(ErrorCode::kUnavailable,
                     fmt::format("rank 0 ({}) is gone: {}", rank0_of(record_), cause.message()));
}

Result<bool> CheckIn::come_twice(const Arrival& mine, const std::string& held) {
  const auto other = parse_arrival(held);
  const auto ended =
      end(ErrorCode::kRejected,
          fmt::format("rank {} is there twice: process {} on {} and process {} on {}", rank_,
                      other ? other->process : 0, other ? other->host.name : "an unknown host",
                      mine.process, mine.host.name));
  if (!ended) return ended.error();
  return false;
}

// The error of a start that failed. Rank 0's store goes with rank 0, so that one stays until the
// others know.
Error CheckIn::failure(ErrorCode code, const std::string& why) {
  if (rank_ == 0) {
    await_heard();
  } else if (has_arrived_) {
    // Rank 0 goes after a time without it.
    [[maybe_unused]] const auto told = client_.set(heard(rank_), "1");
  }
  return file_.error(code, why);
}

void CheckIn::await_heard() {
  std::vector<std::string> awaited;
  for (int rank = 1; rank < record_.ranks; ++rank) {
    const auto there = is_there(rank);
    if (there && *there) awaited.push_back(heard(rank));
  }
  if (awaited.empty()) return;
  // One that died does not hear.
  [[maybe_unused]] const auto told = client_.wait(awaited, kHearTime);
}

}  // namespace ddprun::worker
