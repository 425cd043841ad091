#include "proto/standby.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

namespace ddprun {
namespace {

using Output = decltype(ReleaseHead::output);

// A message of `size`, with room for the descriptors. `size` must outlive it.
class HeadMessage {
 public:
  explicit HeadMessage(std::uint64_t& size) : bytes_{&size, sizeof(size)} {
    message_.msg_iov = &bytes_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
  }
  HeadMessage(const HeadMessage&) = delete;
  HeadMessage& operator=(const HeadMessage&) = delete;
  ~HeadMessage() = default;

  msghdr& message() { return message_; }
  cmsghdr* rights() { return CMSG_FIRSTHDR(&message_); }

 private:
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(Output))> control_{};
  iovec bytes_;
  msghdr message_{};
};

}  // namespace

std::string hidden_name(std::string_view name) {
  std::string hidden(name);
  if (!hidden.empty()) hidden.front() = '?';
  return hidden;
}

bool send_release_head(int socket, const ReleaseHead& head) {
  std::uint64_t size = head.size;
  HeadMessage sent(size);
  sent.rights()->cmsg_level = SOL_SOCKET;
  sent.rights()->cmsg_type = SCM_RIGHTS;
  sent.rights()->cmsg_len = CMSG_LEN(sizeof(Output));
  std::memcpy(CMSG_DATA(sent.rights()), head.output.data(), sizeof(Output));
  return ::sendmsg(socket, &sent.message(), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(size));
}

std::optional<ReleaseHead> receive_release_head(int socket) {
  ReleaseHead head;
  HeadMessage got(head.size);
  if (::recvmsg(socket, &got.message(), MSG_CMSG_CLOEXEC) !=
          static_cast<ssize_t>(sizeof(head.size)) ||
      got.rights() == nullptr)
    return std::nullopt;
  std::memcpy(head.output.data(), CMSG_DATA(got.rights()), sizeof(Output));
  return head;
}

}  // namespace ddprun
