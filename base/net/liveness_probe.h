// Whether a process lives whose connection ended: a connection to a port on which it listens tells.
// A refused one means that it is dead: the kernel closed the port with it. One that is taken, and
// no answer, mean nothing; then the lease decides. The connection is held. A process that is about
// to die may close this port later than the one that ended. When it ends, the next one is tried.
//
// A firewall or a gateway can refuse as well. Its ICMP message is told apart from the reset that
// the kernel of the peer sends (that needs Linux 5.8). A reset of its own is not. So a refusal
// counts only if a connection to that port was taken before, and if it lasts (refusal.h).
//
// Loop's thread. Owned by who wants to know; nothing is called after its end.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace ddprun {

// So many connections are tried. Another program may own the port and close each of them: this
// limit, or the LivenessProbe's end, ends that loop.
inline constexpr int kMostProbes = 20;
// No connection is tried for this time if some connections one after another ended sooner.
inline constexpr std::chrono::milliseconds kProbePause{200};

// A socket that is closed when a worker is started, and that can tell who refused it.
boost::asio::ip::tcp::socket open_socket(boost::asio::io_context& loop,
                                         const boost::asio::ip::tcp::endpoint& to);
// Returns whether the host at the other end refused this connection, and nobody on the way.
// `failure` is what the connect ended with.
bool is_refused_by_host(boost::asio::ip::tcp::socket& socket,
                        const boost::system::error_code& failure);

// Whether a refusal by another host is asked again before it counts.
enum class Haste { kNone, kBelieveAtOnce };

class LivenessProbe {
 public:
  // All of the ports must refuse; with none, nothing is found out. `refused` is called once at
  // most. It may destroy this.
  LivenessProbe(boost::asio::io_context& loop,
                const std::vector<boost::asio::ip::tcp::endpoint>& to,
                const std::function<void()>& refused, int most_probes = kMostProbes,
                Haste haste = Haste::kNone);
  LivenessProbe(const LivenessProbe&) = delete;
  LivenessProbe& operator=(const LivenessProbe&) = delete;
  ~LivenessProbe();

 private:
  class Visit;
  std::vector<std::shared_ptr<Visit>> visits_;
};

// The ports of a process that take connections while it lives. Their refusal will count. Each is
// tried once.
class ProbedPorts {
 public:
  ProbedPorts(boost::asio::io_context& loop, const std::vector<boost::asio::ip::tcp::endpoint>& to);
  ProbedPorts(const ProbedPorts&) = delete;
  ProbedPorts& operator=(const ProbedPorts&) = delete;
  ~ProbedPorts();

  // So far.
  const std::vector<boost::asio::ip::tcp::endpoint>& taken() const { return *taken_; }

 private:
  std::shared_ptr<std::vector<boost::asio::ip::tcp::endpoint>> taken_;
  std::vector<std::weak_ptr<boost::asio::ip::tcp::socket>> under_way_;
};

}  // namespace ddprun
