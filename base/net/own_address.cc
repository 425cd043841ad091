#include "base/net/own_address.h"

#include <fmt/format.h>

namespace ddprun {

Result<std::optional<std::string>> own_address(const std::string& listens_at,
                                               const boost::asio::ip::address& etcd,
                                               const boost::asio::ip::address& local) {
  boost::system::error_code is_none;
  const auto given = boost::asio::ip::make_address(listens_at, is_none);
  const bool is_any = is_none || given.is_unspecified();
  const boost::asio::ip::address& address = is_any ? local : given;
  if (etcd.is_loopback() || !address.is_loopback()) return std::optional(address.to_string());
  if (is_any) return std::optional<std::string>();
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("--listen={}: expected an address that other hosts reach, as etcd has "
                           "one ({})",
                           listens_at, etcd.to_string()));
}

}  // namespace ddprun
