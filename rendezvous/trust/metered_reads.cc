#include "rendezvous/trust/metered_reads.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <vector>

namespace ddprun::rendezvous {
namespace {

// More than any host has descriptors (Linux: fs.nr_open). Its pages are taken when they are used.
constexpr std::size_t kMostDescriptors = std::size_t{1} << 20U;
std::array<std::atomic<MeteredConnection*>, kMostDescriptors> metered{};

std::atomic<MeteredConnection*>* place_of(int fd) {
  const auto number = static_cast<std::size_t>(fd);
  return fd >= 0 && number < metered.size() ? &metered[number] : nullptr;
}

// Those that gRPC still has, but nobody else any more. A thread of gRPC may be reading one: it is
// freed when it is closed.
void retire(MeteredConnection* connection) {
  // Never destroyed: threads of gRPC may read connections while the process ends.
  static auto& mutex = *new std::mutex;
  static auto& retired = *new std::vector<std::unique_ptr<MeteredConnection>>;
  const std::lock_guard lock(mutex);
  retired.emplace_back(connection);
  std::erase_if(retired, [](const auto& one) { return one->is_closed(); });
}

bool took(MeteredConnection& connection, const msghdr& message, std::size_t bytes) {
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < message.msg_iovlen && bytes > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const std::size_t size = std::min(bytes, part.iov_len);
    if (!connection.took({static_cast<const char*>(part.iov_base), size}, now)) return false;
    bytes -= size;
  }
  return true;
}

}  // namespace

bool MeteredConnection::took(std::string_view bytes, Http2Meter::Time now) {
  return meter_.took(bytes, now);
}

std::shared_ptr<MeteredConnection> meter_reads(int fd, Http2Meter::Wire wire) {
  auto* const place = place_of(fd);
  if (place == nullptr) return nullptr;
  std::shared_ptr<MeteredConnection> connection(new MeteredConnection(wire), retire);
  // One of before, whose close this file has not seen.
  if (auto* const old = place->exchange(connection.get())) old->closed();
  return connection;
}

}  // namespace ddprun::rendezvous

// The linker's names (ld(1), --wrap).
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

ssize_t __real_recvmsg(int fd, msghdr* message, int flags);
int __real_close(int fd);

ssize_t __wrap_recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t got = __real_recvmsg(fd, message, flags);
  auto* const place = got > 0 ? ddprun::rendezvous::place_of(fd) : nullptr;
  auto* const connection = place ? place->load(std::memory_order_acquire) : nullptr;
  if (connection == nullptr) return got;
  if (ddprun::rendezvous::took(*connection, *message, static_cast<std::size_t>(got))) return got;
  connection->cut();
  errno = ECONNRESET;
  return -1;
}

// Also called between fork() and exec(), where nothing may be locked or freed.
int __wrap_close(int fd) {
  auto* const place = ddprun::rendezvous::place_of(fd);
  if (place != nullptr && place->load(std::memory_order_relaxed) != nullptr)
    if (auto* const connection = place->exchange(nullptr)) connection->closed();
  return __real_close(fd);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
