// The socket at which each node answers its own user and root, without a token. A job of one node
// has it, too. It is an abstract Unix socket (local_socket.h): it leaves no file behind, and
// needs no folder that both sides know. Another user's connection is closed unheard. A connection
// carries one question, then one answer: messages of proto/control.proto, each up to the end of its
// direction. A caller has few seconds, and few can ask at once.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "rendezvous/control/messages.h"

namespace ddprun::rendezvous {

// Loop's thread.
class NodeSocket {
 public:
  static constexpr int kMostCallers = 8;
  // For a question to come, and for an answer to be taken.
  static constexpr std::chrono::seconds kTalkLimit{5};

  using Reply = std::function<void(ControlAnswer)>;
  // Calls `reply` once, now or later. An answer has a text or a job, else it looks like none. One
  // that comes after our end is dropped.
  using Handler = std::function<void(const ControlQuestion& question, Reply reply)>;

  // Listens under the pid of this node's ddprun. Without a socket it serves nobody, and a line of
  // the log says so. `loop` must outlive it. At most `most_callers` are heard at once.
  NodeSocket(boost::asio::io_context& loop, pid_t pid, Handler handler,
             int most_callers = kMostCallers);
  NodeSocket(const NodeSocket&) = delete;
  NodeSocket& operator=(const NodeSocket&) = delete;
  NodeSocket(NodeSocket&&) = delete;
  NodeSocket& operator=(NodeSocket&&) = delete;
  ~NodeSocket();

 private:
  class Caller;
  void accept();
  void accept_later();

  boost::asio::io_context& loop_;
  const Handler handler_;
  const int most_callers_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  std::shared_ptr<int> callers_ = std::make_shared<int>(0);  // their number now; they share it
  // Callers and waits hold it weakly: they may come back after our end.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

// Asks over `fd`, a connection that connect_to_node() made and that belongs to this call. Blocks
// for `limit` at most. kUnreachable: no answer came.
ControlAnswer ask_node(int fd, const ControlQuestion& question, std::chrono::milliseconds limit);

}  // namespace ddprun::rendezvous
