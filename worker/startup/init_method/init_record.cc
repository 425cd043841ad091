#include "worker/startup/init_method/init_record.h"

#include <fmt/format.h>

#include <limits>

#include "base/net/address.h"
#include "base/numbers.h"
#include "worker/startup/init_method/mpi_world.h"

namespace ddprun::worker {
namespace {

constexpr std::string_view kFirstLine = "ddprun-init 1\n";
constexpr std::size_t kIdDigits = 32;
constexpr std::size_t kMostWordBytes = 128;
constexpr std::size_t kMostAddressBytes = 45;  // INET6_ADDRSTRLEN without its zero

bool is_id(std::string_view text) {
  return text.size() == kIdDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_word(std::string_view text) {
  return text.size() <= kMostWordBytes && as_word(text, kMostWordBytes) == text;
}

bool is_address(std::string_view text) {
  return !text.empty() && text.size() <= kMostAddressBytes &&
         text.find_first_not_of("0123456789abcdefABCDEF.:") == text.npos;
}

// A number from 1 to `most`.
std::optional<int> parse_number(std::string_view text, int most) {
  const auto number = parse_whole<int>(text);
  return number && *number >= 1 && *number <= most ? number : std::nullopt;
}

// Takes a text apart. After a part that is not as it must be, all further ones are empty and
// at_end() is false.
class Parts {
 public:
  explicit Parts(std::string_view text) : rest_(text) {}

  bool at_end() const { return ok_ && rest_.empty(); }

  // Takes `prefix`, then a text up to `end`.
  std::string_view next(std::string_view prefix, char end) {
    const auto stop = rest_.find(end);
    ok_ = ok_ && rest_.starts_with(prefix) && stop != rest_.npos && stop >= prefix.size();
    if (!ok_) return {};
    const auto part = rest_.substr(prefix.size(), stop - prefix.size());
    rest_.remove_prefix(stop + 1);
    return part;
  }
  std::string_view word(std::string_view prefix, char end) {
    return kept(next(prefix, end), is_word);
  }
  std::string_view id(std::string_view prefix, char end) { return kept(next(prefix, end), is_id); }
  std::string_view address(std::string_view prefix, char end) {
    return kept(next(prefix, end), is_address);
  }
  int number(std::string_view prefix, char end, int most) {
    const auto value = parse_number(next(prefix, end), most);
    ok_ = ok_ && value.has_value();
    return value.value_or(0);
  }

 private:
  std::string_view kept(std::string_view part, bool (*is_right)(std::string_view)) {
    ok_ = ok_ && is_right(part);
    return ok_ ? part : std::string_view();
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace

std::string format_record(InitRecord record) {
  record.job = as_word(record.job, kMostWordBytes);
  return fmt::format(
      "{}id {}\nranks {}\njob {}\nhost {}\nhost-id {}\nprocess {}\naddress {}\nport {}\n",
      kFirstLine, record.id, record.ranks, record.job, record.host.name, record.host.id,
      record.process, record.address, record.port);
}

std::optional<InitRecord> parse_record(std::string_view text) {
  if (text.size() > kInitRecordBytes || !text.starts_with(kFirstLine)) return std::nullopt;
  Parts parts(text.substr(kFirstLine.size()));
  InitRecord record;
  record.id = parts.id("id ", '\n');
  record.ranks = parts.number("ranks ", '\n', kMostRanks);
  record.job = parts.word("job ", '\n');
  record.host.name = parts.word("host ", '\n');
  record.host.id = parts.word("host-id ", '\n');
  record.process = parts.number("process ", '\n', std::numeric_limits<int>::max());
  record.address = parts.address("address ", '\n');
  record.port = static_cast<std::uint16_t>(
      parts.number("port ", '\n', std::numeric_limits<std::uint16_t>::max()));
  return parts.at_end() ? std::optional(record) : std::nullopt;
}

std::string rank0_of(const InitRecord& record) {
  return fmt::format("process {} on {}", record.process, record.host.name);
}

std::string format_arrival(const Arrival& arrival) {
  return fmt::format("{} {} {} {}\n", arrival.id, arrival.process, arrival.host.name,
                     arrival.host.id);
}

std::optional<Arrival> parse_arrival(std::string_view text) {
  Parts parts(text);
  Arrival arrival;
  arrival.id = parts.id("", ' ');
  arrival.process = parts.number("", ' ', std::numeric_limits<int>::max());
  arrival.host.name = parts.word("", ' ');
  arrival.host.id = parts.word("", '\n');
  return parts.at_end() ? std::optional(arrival) : std::nullopt;
}

std::string address_from(const InitRecord& record, const HostId& here) {
  return record.host == here ? "127.0.0.1" : record.address;
}

Earlier judge_earlier(const InitRecord& record, const HostId& here, bool lives, StoreAnswer heard) {
  if (heard == StoreAnswer::kItsStore) return Earlier::kRuns;
  if (record.host == here) {
    const bool is_over = !lives || heard == StoreAnswer::kNobody;
    return is_over ? Earlier::kOver : Earlier::kUnknown;
  }
  // Its loopback is not ours. A process that listens here, or none, says nothing.
  if (is_loopback(record.address)) return Earlier::kUnknown;
  return heard == StoreAnswer::kNobody ? Earlier::kOver : Earlier::kUnknown;
}

bool are_two_jobs(std::string_view one, std::string_view other) {
  const std::string first = as_word(one, kMostWordBytes);
  const std::string second = as_word(other, kMostWordBytes);
  return !first.empty() && !second.empty() && first != second;
}

}  // namespace ddprun::worker
