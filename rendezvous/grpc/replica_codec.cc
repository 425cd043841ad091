#include "rendezvous/grpc/replica_codec.h"

#include <algorithm>

#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/cut_text.h"

namespace ddprun::rendezvous {
namespace {

std::int64_t decode_place(std::int64_t place) {
  return std::clamp<std::int64_t>(place, 0, kMostRounds);
}

// The first ones of `from`, as many as `to` may have more.
template <typename From, typename To>
void append(const From& from, To& to, std::size_t most) {
  for (const auto& one : from)
    if (static_cast<std::size_t>(to.size()) < most) to.Add(one);
}
template <typename From, typename To>
void take(const From& from, To& to, std::size_t most) {
  for (const auto& one : from)
    if (to.size() < most) to.push_back(one);
}

}  // namespace

v4::ReplicaReport encode_replicas(const ReplicaReport& report) {
  v4::ReplicaReport message;
  message.set_round(report.round);
  message.set_question(report.question);
  std::size_t room = kMostReplicaRanks;
  for (const ReplicaSum& sum : report.sums) {
    if (static_cast<std::size_t>(message.sums_size()) == kMostReplicaSums) break;
    v4::ReplicaSum& fields = *message.add_sums();
    fields.set_set(sum.set);
    fields.set_members(sum.members);
    fields.set_step(sum.step);
    fields.set_sum(sum.sum);
    append(sum.ranks, *fields.mutable_ranks(), room);
    room -= static_cast<std::size_t>(fields.ranks_size());
  }
  for (const ReplicaTensors& tensors : report.tensors) {
    if (static_cast<std::size_t>(message.tensors_size()) == kMostReplicaTensors) break;
    v4::ReplicaTensors& fields = *message.add_tensors();
    append(tensors.ranks, *fields.mutable_ranks(), kMostReplicaRanks);
    fields.set_tensors(tensors.tensors);
    append(tensors.cells, *fields.mutable_cells(), kMostReplicaCells);
    for (const std::string& name : tensors.names)
      if (static_cast<std::size_t>(fields.names_size()) < kMostReplicaNames)
        fields.add_names(cut(name, kMostReplicaNameBytes));
  }
  return message;
}

ReplicaReport decode_replicas(const v4::ReplicaReport& message) {
  ReplicaReport report{.round = message.round(), .question = message.question()};
  std::size_t room = kMostReplicaRanks;
  for (const v4::ReplicaSum& fields : message.sums()) {
    if (report.sums.size() == kMostReplicaSums) break;
    ReplicaSum sum{.set = fields.set(),
                   .members = fields.members(),
                   .step = decode_place(fields.step()),
                   .sum = fields.sum()};
    take(fields.ranks(), sum.ranks, room);
    room -= sum.ranks.size();
    report.sums.push_back(std::move(sum));
  }
  for (const v4::ReplicaTensors& fields : message.tensors()) {
    if (report.tensors.size() == kMostReplicaTensors) break;
    ReplicaTensors tensors{.tensors = decode_place(fields.tensors())};
    take(fields.ranks(), tensors.ranks, kMostReplicaRanks);
    take(fields.cells(), tensors.cells, kMostReplicaCells);
    for (const std::string& name : fields.names())
      if (tensors.names.size() < kMostReplicaNames)
        tensors.names.push_back(cut(name, kMostReplicaNameBytes));
    report.tensors.push_back(std::move(tensors));
  }
  return report;
}

v4::ReplicaQuestion encode_replica_question(const ReplicaQuestion& question) {
  v4::ReplicaQuestion message;
  message.set_round(question.round);
  message.set_number(question.number);
  message.set_set(question.set);
  message.set_step(question.step);
  message.set_first(question.first);
  message.set_count(question.count);
  return message;
}

ReplicaQuestion decode_replica_question(const v4::ReplicaQuestion& message) {
  return {.round = message.round(),
          .number = message.number(),
          .set = message.set(),
          .step = message.step(),
          .first = decode_place(message.first()),
          .count = decode_place(message.count())};
}

v4::ReplicaVerdict encode_replica_verdict(const ReplicaVerdict& verdict) {
  v4::ReplicaVerdict message;
  message.set_round(verdict.round);
  message.set_step(verdict.step);
  append(verdict.ranks, *message.mutable_ranks(), kMostVerdictRanks);
  message.set_sentence(cut(verdict.sentence, kMaxTextBytes));
  return message;
}

ReplicaVerdict decode_replica_verdict(const v4::ReplicaVerdict& message) {
  ReplicaVerdict verdict{.round = message.round(),
                         .step = message.step(),
                         .sentence = cut(message.sentence(), kMaxTextBytes)};
  take(message.ranks(), verdict.ranks, kMostVerdictRanks);
  return verdict;
}

}  // namespace ddprun::rendezvous
