// The command line of ddprund, and its file (--config), a JSON object with the flags' names. The
// command line wins. Pure but for read_config(); any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "daemon/job_table.h"
#include "rendezvous/core/keep_alive.h"
#include "rendezvous/election/etcd_plan.h"
#include "rendezvous/trust/tls_files.h"

namespace ddprun::daemon {

// --http: where it tells of itself and its jobs.
struct HttpAddress {
  std::string address;     // numeric; empty: loopback
  std::uint16_t port = 0;  // 0: the kernel's choice

  bool operator==(const HttpAddress&) const = default;
};

struct DaemonOptions {
  std::string address = "::";  // numeric; "::" takes IPv4 too
  std::uint16_t port = 29400;
  std::string token_file;  // empty: the variable's token
  rendezvous::TlsFiles tls{};
  bool resumes = true;  // nodes whose connection breaks may come back
  std::optional<HttpAddress> http{};
  JobLimits limits;
  rendezvous::EtcdPlan etcd;      // no members: no group
  std::string group = "default";  // of which one leads

  bool has_group() const { return !etcd.members.empty(); }
  bool operator==(const DaemonOptions&) const = default;
};

struct DaemonAnswer {
  std::string text;  // --help, --version
};
struct DaemonUsageError {
  std::string message;
};

// One line if some of the three files are named and some are not; else empty. ddpctl has the same.
std::string missing_tls_flag(const rendezvous::TlsFiles& files);

// The text of the file, or an error that names it.
using ReadConfig = Result<std::string> (*)(const std::string& path);
Result<std::string> read_config(const std::string& path);

std::variant<DaemonOptions, DaemonAnswer, DaemonUsageError> parse_daemon(
    const std::vector<std::string>& words, ReadConfig read);

}  // namespace ddprun::daemon
