// For tests of Leadership on virtual time. Each event's actions are text, so that a test reads like
// the course of an election.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/election/leadership.h"

namespace ddprun::rendezvous {

using std::chrono::milliseconds;

inline constexpr milliseconds kLength{3000};

struct Show {
  std::string operator()(const ReadKey& /*it*/) const { return "read"; }
  std::string operator()(const GrantLease& /*it*/) const { return "grant"; }
  std::string operator()(const TakeKey& it) const {
    return fmt::format("take lease={} if={}", it.lease, it.if_revision);
  }
  std::string operator()(const ProbeLeader& it) const { return "probe " + it.value; }
  std::string operator()(const Follow& it) const { return "follow " + it.value; }
  std::string operator()(const WatchKey& it) const {
    return fmt::format("watch from {}", it.from_revision);
  }
  std::string operator()(const StopWatching& /*it*/) const { return "stop watching"; }
  std::string operator()(const Lead& it) const { return fmt::format("lead {}", it.revision); }
  std::string operator()(const RenewLease& it) const { return fmt::format("renew {}", it.lease); }
  std::string operator()(const WriteRecord& it) const {
    return fmt::format("write if={}", it.if_revision);
  }
  std::string operator()(const RecordWritten& /*it*/) const { return "written"; }
  std::string operator()(const ReleaseKey& it) const {
    return fmt::format("release {}", it.revision);
  }
  std::string operator()(const StepDown& it) const {
    return (it.was_suspended ? "step down, suspended: " : "step down: ") + it.why;
  }
  std::string operator()(const GiveUp& it) const { return "give up: " + it.error.message(); }
};

// A node's Leadership. It keeps the ticket of the last question, and the clock.
struct LeadershipTest : testing::Test {
  explicit LeadershipTest(LeadershipRules rules = {.etcd = "e:2379"})
      : leadership(std::move(rules)) {}

  Leadership leadership;
  Time now = Time() + std::chrono::hours(1);
  Ticket ticket = 0;
  std::int64_t etcd_revision = 0;  // not less than that of the key

  KeyView view(const std::optional<KeyHolder>& holder) const {
    return {holder, std::max(etcd_revision, holder ? holder->revision : 0)};
  }
  std::string show(const LeadershipActions& actions) {
    std::vector<std::string> texts;
    for (const LeadershipAction& action : actions) {
      texts.push_back(std::visit(Show{}, action));
      std::visit(
          [this](const auto& one) {
            if constexpr (requires { one.ticket; }) ticket = one.ticket;
          },
          action);
    }
    return fmt::format("{}", fmt::join(texts, "; "));
  }
  std::string start() { return show(leadership.start(now)); }
  std::string key_is(const std::optional<KeyHolder>& holder) {
    return show(leadership.key_read(ticket, view(holder), now));
  }
  std::string granted(LeaseId lease) {
    return show(leadership.lease_granted(ticket, lease, kLength, now, now));
  }
  std::string taken(std::int64_t revision) {
    return show(leadership.key_taken(ticket, true, {{}, revision}, now));
  }
  std::string not_taken(const std::optional<KeyHolder>& holder) {
    return show(leadership.key_taken(ticket, false, view(holder), now));
  }
  std::string probed() { return show(leadership.probed(ticket, now)); }
  std::string refused() {
    return show(leadership.probed_in_vain(ticket, LeaderRefusal::kYes, now));
  }
  std::string perhaps_refused() {
    return show(leadership.probed_in_vain(ticket, LeaderRefusal::kPerhaps, now));
  }
  std::string silent() { return show(leadership.probed_in_vain(ticket, LeaderRefusal::kNo, now)); }
  std::string changed() { return show(leadership.key_changed(now)); }
  std::string watch_ended() { return show(leadership.watch_ended(now)); }
  std::string failed(ErrorCode code, const std::string& what = "e: no") {
    return show(leadership.etcd_failed(ticket, {code, what}, now));
  }
  std::string after(milliseconds time) {
    now += time;
    return show(leadership.time_passed(now));
  }
  // A leader whose key has revision 10, and lease 7.
  void lead() {
    start();
    key_is({});
    granted(7);
    ASSERT_EQ(taken(10), "lead 10; watch from 11");
  }
  void follow() {
    start();
    key_is(KeyHolder{"a", 5, 1});
    probed();
    ASSERT_EQ(show(leadership.followed(now)), "stop watching");
  }
};

}  // namespace ddprun::rendezvous
