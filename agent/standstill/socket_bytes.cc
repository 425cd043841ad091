#include "agent/standstill/socket_bytes.h"

#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/file_handle.h"
#include "base/numbers.h"

namespace ddprun::agent {
namespace {

constexpr std::uint32_t kEstablished = 1;  // of the kernel's states

struct Request {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

bool ask(int socket, int family) {
  Request request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.sdiag_family = static_cast<std::uint8_t>(family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_ext = 1U << (INET_DIAG_INFO - 1);
  request.body.idiag_states = 1U << kEstablished;
  return ::send(socket, &request, sizeof request, 0) == sizeof request;
}

// The kernel's struct tcp_info has tcpi_bytes_acked there, and tcpi_bytes_received behind it. The
// struct of the C library ends before them. A kernel that has them not tells a shorter one.
constexpr std::size_t kBytesAcked = 120;

std::uint64_t bytes_in(const rtattr& attribute) {
  std::array<std::uint64_t, 2> acked_and_received{};
  if (RTA_PAYLOAD(&attribute) < kBytesAcked + sizeof acked_and_received) return 0;
  std::memcpy(acked_and_received.data(),
              static_cast<const char*>(RTA_DATA(&attribute)) + kBytesAcked,
              sizeof acked_and_received);
  return acked_and_received[0] + acked_and_received[1];
}

void note(const nlmsghdr& head, SocketBytes& found) {
  const auto& socket = *static_cast<const inet_diag_msg*>(NLMSG_DATA(&head));
  auto left = static_cast<unsigned>(head.nlmsg_len - NLMSG_LENGTH(sizeof socket));
  const auto* attribute = reinterpret_cast<const rtattr*>(&socket + 1);
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
    if (attribute->rta_type == INET_DIAG_INFO) found[socket.idiag_inode] += bytes_in(*attribute);
}

// Returns whether more comes.
bool read_some(int socket, SocketBytes& found) {
  alignas(nlmsghdr) std::array<char, 32768> memory{};
  const ssize_t got = ::recv(socket, memory.data(), memory.size(), 0);
  if (got <= 0) return false;
  auto left = static_cast<unsigned>(got);
  const auto* head = reinterpret_cast<const nlmsghdr*>(memory.data());
  for (; NLMSG_OK(head, left); head = NLMSG_NEXT(head, left)) {
    if (head->nlmsg_type == NLMSG_DONE || head->nlmsg_type == NLMSG_ERROR) return false;
    if (head->nlmsg_len >= NLMSG_LENGTH(sizeof(inet_diag_msg))) note(*head, found);
  }
  return true;
}

// "socket:[4711]"
std::optional<std::uint64_t> inode_in(std::string_view link) {
  constexpr std::string_view kBefore = "socket:[";
  if (!link.starts_with(kBefore)) return std::nullopt;
  return leading_number<std::uint64_t>(link.substr(kBefore.size()));
}

}  // namespace

SocketBytes socket_bytes() {
  SocketBytes found;
  const FileHandle socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  // The kernel answers at once, or not at all.
  const timeval patience{.tv_sec = 1, .tv_usec = 0};
  if (socket.get() < 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0)
    return found;
  for (const int family : {AF_INET, AF_INET6}) {
    if (!ask(socket.get(), family)) return found;
    while (read_some(socket.get(), found)) {
    }
  }
  return found;
}

std::uint64_t bytes_of_sockets(pid_t pid, const SocketBytes& sockets) {
  std::uint64_t sum = 0;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/fd", pid), failed), end;
       !failed && at != end; at.increment(failed)) {
    std::error_code gone;
    const std::string link = std::filesystem::read_symlink(at->path(), gone).string();
    const auto inode = inode_in(link);
    const auto found = inode ? sockets.find(*inode) : sockets.end();
    if (found != sockets.end()) sum += found->second;
  }
  return sum;
}

}  // namespace ddprun::agent
