#include "proto/standby.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <vector>

namespace ddprun {

std::string hidden_name(std::string_view name) {
  std::string hidden(name);
  if (!hidden.empty()) hidden.front() = '?';
  return hidden;
}

bool send_head(int socket, std::uint64_t size, std::span<const int> descriptors) {
  iovec bytes{&size, sizeof(size)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(descriptors.size_bytes()));  // new aligns it for a cmsghdr
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(size));
}

bool send_release_head(int socket, const ReleaseHead& head) {
  return send_head(socket, head.size, head.output);
}

std::optional<ReleaseHead> receive_release_head(int socket) {
  ReleaseHead head;
  iovec bytes{&head.size, sizeof(head.size)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(head.output))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof(head.size)) ||
      CMSG_FIRSTHDR(&message) == nullptr)
    return std::nullopt;
  std::memcpy(head.output.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(head.output));
  return head;
}

}  // namespace ddprun
