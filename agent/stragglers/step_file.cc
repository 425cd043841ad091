#include "agent/stragglers/step_file.h"

#include "base/numbers.h"

namespace ddprun::agent {
namespace {

// Takes the fields off a line, one after another. A field that is no number spoils all.
class Fields {
 public:
  explicit Fields(std::string_view text) : text_(text) {}

  template <typename Number>
  Number next(char separator) {
    const std::size_t end = text_.find(separator);
    const auto number = parse_whole<Number>(text_.substr(0, end));
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    is_good_ = is_good_ && number.has_value();
    return number.value_or(0);
  }
  bool is_empty() const { return text_.empty(); }
  bool is_good() const { return is_good_; }

 private:
  std::string_view text_;
  bool is_good_ = true;
};

}  // namespace

std::optional<NumberedSample> parse_step_file(std::string_view text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  Fields fields(text.substr(0, end));
  NumberedSample read;
  read.number = fields.next<std::int64_t>('\t');
  rendezvous::StepSample& sample = read.sample;
  sample.group = fields.next<std::uint64_t>('\t');
  sample.members = fields.next<int>('\t');
  sample.steps = fields.next<int>('\t');
  sample.calls = fields.next<int>('\t');
  sample.step_us = fields.next<std::int64_t>('\t');
  sample.cpu_wait = fields.next<int>('\t');
  rendezvous::StepSpread& spread = sample.spread;
  for (std::int64_t* const us : {&spread.step_p50_us, &spread.step_p99_us, &spread.own_p50_us,
                                 &spread.own_p97_us, &spread.own_p99_us})
    *us = fields.next<std::int64_t>('\t');
  while (!fields.is_empty() && sample.called_us.size() < rendezvous::kMostSampledCalls)
    sample.called_us.push_back(fields.next<std::int64_t>(','));
  if (!fields.is_good() || !fields.is_empty() || read.number <= 0) return std::nullopt;
  return read;
}

}  // namespace ddprun::agent
