#include "rendezvous/grpc/step_codec.h"

#include <algorithm>
#include <utility>

#include "rendezvous/core/standstill.h"
#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/cut_text.h"

namespace ddprun::rendezvous {
namespace {

int thousandths(int number) { return std::clamp(number, 0, 1000); }

HostSample decode(const v4::HostSample& fields) {
  return {.stolen = thousandths(fields.stolen()),
          .throttled = thousandths(fields.throttled()),
          .others = thousandths(fields.others()),
          .frequency = thousandths(fields.frequency())};
}

}  // namespace

constexpr std::int64_t kLongestUs = std::int64_t{3'600} * 1'000'000;

void encode_spread(const StepSpread& spread, Microseconds& times) {
  for (const std::int64_t us : {spread.step_p50_us, spread.step_p99_us, spread.own_p50_us,
                                spread.own_p97_us, spread.own_p99_us})
    times.Add(std::clamp<std::int64_t>(us, 0, kLongestUs));
}

StepSpread decode_spread(const Microseconds& times) {
  constexpr int kPercentiles = 5;
  if (times.size() < kPercentiles) return {};
  return {times[0], times[1], times[2], times[3], times[4]};
}

v4::StepReport encode_steps(const StepReport& report) {
  v4::StepReport message;
  message.set_round(report.round);
  v4::HostSample& host = *message.mutable_host();
  host.set_stolen(report.host.stolen);
  host.set_throttled(report.host.throttled);
  host.set_others(report.host.others);
  host.set_frequency(report.host.frequency);
  for (const StepSample& sample : report.samples) {
    if (static_cast<std::size_t>(message.samples_size()) == kMostSampledRanks) break;
    v4::StepSample& fields = *message.add_samples();
    fields.set_rank(sample.rank);
    fields.set_group(sample.group);
    fields.set_members(sample.members);
    fields.set_steps(sample.steps);
    fields.set_calls(sample.calls);
    fields.set_step_us(sample.step_us);
    for (const std::int64_t called : sample.called_us)
      if (static_cast<std::size_t>(fields.called_us_size()) < kMostSampledCalls)
        fields.add_called_us(called);
    fields.set_cpu_wait(sample.cpu_wait);
    encode_spread(sample.spread, *fields.mutable_spread_us());
  }
  return message;
}

StepReport decode_steps(const v4::StepReport& message) {
  StepReport report{.round = message.round(), .host = decode(message.host())};
  for (const v4::StepSample& fields : message.samples()) {
    if (report.samples.size() == kMostSampledRanks) break;
    StepSample sample{.rank = fields.rank(),
                      .group = fields.group(),
                      .members = fields.members(),
                      .steps = fields.steps(),
                      .calls = fields.calls(),
                      .step_us = fields.step_us(),
                      .cpu_wait = thousandths(fields.cpu_wait()),
                      .spread = decode_spread(fields.spread_us())};
    for (const std::int64_t called : fields.called_us())
      if (sample.called_us.size() < kMostSampledCalls) sample.called_us.push_back(called);
    report.samples.push_back(std::move(sample));
  }
  return report;
}

v4::StragglerVerdict encode_straggler_verdict(const StragglerVerdict& verdict) {
  v4::StragglerVerdict message;
  message.set_round(verdict.round);
  for (const int rank : verdict.ranks)
    if (static_cast<std::size_t>(message.ranks_size()) < kMostVerdictRanks) message.add_ranks(rank);
  message.set_sentence(cut(verdict.sentence, kMaxTextBytes));
  return message;
}

StragglerVerdict decode_straggler_verdict(const v4::StragglerVerdict& message) {
  StragglerVerdict verdict{.round = message.round(),
                           .sentence = cut(message.sentence(), kMaxTextBytes)};
  for (const int rank : message.ranks())
    if (verdict.ranks.size() < kMostVerdictRanks) verdict.ranks.push_back(rank);
  return verdict;
}

}  // namespace ddprun::rendezvous
