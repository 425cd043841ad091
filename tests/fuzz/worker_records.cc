// The texts that a worker, or the kernel about a worker, has written for the agent. They are error
// files, cookies in the environment, lines of the kernel's log. A known form is understood and is
// the same when it is written and read again; everything else is refused.
#include <string>
#include <string_view>
#include <vector>

#include "agent/processes/job_cookie.h"
#include "agent/report/error_record.h"
#include "agent/report/out_of_memory.h"
#include "base/assert.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::agent {
namespace {

using fuzz::ScriptInput;

void read_error_file(std::string_view json) {
  const auto first = parse_error_record(json);
  const std::string coded = with_error_code(std::string(json), 7);
  if (!first) {
    DDPRUN_ASSERT(coded == json);
    return;
  }
  // A written record has no bytes that are no UTF-8 and always a time; from then on nothing
  // changes.
  const auto second = parse_error_record(write_error_record(*first));
  DDPRUN_ASSERT(second.has_value());
  DDPRUN_ASSERT(first->unix_seconds.value_or(0) == second->unix_seconds);
  const auto third = parse_error_record(write_error_record(*second));
  DDPRUN_ASSERT(third == second);
  const auto of_coded = parse_error_record(coded);
  DDPRUN_ASSERT(of_coded.has_value() && of_coded->unix_seconds == first->unix_seconds);
}

void write_error_file(ScriptInput script) {
  const ErrorRecord record{
      .message = script.text(), .trace = script.text(), .unix_seconds = script.number()};
  const auto read = parse_error_record(write_error_record(record));
  DDPRUN_ASSERT(read.has_value() && read->unix_seconds == record.unix_seconds);
  const auto again = parse_error_record(write_error_record(*read));
  DDPRUN_ASSERT(again == read);
}

void read_cookie(std::string_view text) {
  const auto cookie = parse_job_cookie(text);
  if (!cookie) return;
  const auto again = parse_job_cookie(cookie->text());
  DDPRUN_ASSERT(again == cookie);
}

void read_kernel_log(ScriptInput script) {
  const int pid = script.byte();
  std::vector<std::string> lines;
  std::string_view text = script.all();
  while (!text.empty()) {
    lines.emplace_back(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(lines.back().size() + 1, text.size()));
  }
  const auto found = find_out_of_memory(lines, pid);
  if (found) DDPRUN_ASSERT(describe(*found).starts_with("out of memory"));
}

}  // namespace
}  // namespace ddprun::agent

// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::agent;
  ddprun::fuzz::ScriptInput script(data, size);
  switch (script.choice(4)) {
    case 0:
      read_error_file(script.all());
      break;
    case 1:
      write_error_file(script);
      break;
    case 2:
      read_cookie(script.all());
      break;
    case 3:
      read_kernel_log(script);
      break;
  }
  return 0;
}
