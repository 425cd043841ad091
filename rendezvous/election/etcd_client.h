// A client of etcd's v3 API (proto/etcd.proto): one call at a time is asked of one member. If that
// does not answer, the next one is asked, and so on round. The member that answered last is asked
// first the next time. It repeats nothing else and keeps no state of a job. User and password are
// turned into a token when they are first needed, and again when etcd has forgotten it. Secrets are
// in no message.
//
// Used on the loop's thread; gRPC's threads reach it through a LoopGate only. Owned by Election.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/election/etcd_messages.h"

namespace ddprun::rendezvous {

struct EtcdMember {
  std::string host;  // as the user gave it: for messages, and the name in its certificate
  std::vector<std::string> addresses;  // numeric
  std::uint16_t port = 2379;
};

struct EtcdOptions {
  std::vector<EtcdMember> members;  // at least one
  bool with_tls = false;
  // PEM texts. Without `ca` the system's authorities are trusted. `cert` and `key` are ours, for an
  // etcd that wants to know its clients; both or none.
  std::string ca;
  std::string cert;
  std::string key;
  std::string username;  // empty: none is told
  std::string password;
  // One member has so long to answer.
  std::chrono::milliseconds call_limit{700};
};

// "h1:2379,h2:2379", for messages.
std::string members_text(const std::vector<EtcdMember>& members);

class EtcdClient {
 public:
  // Called on the loop's thread, once, and not from inside the call that asked. Errors:
  // kUnavailable, no member answered; kNotFound, the lease is gone; kRejected, etcd said no.
  template <typename Value>
  using Answer = std::function<void(Result<Value>)>;

  EtcdClient(boost::asio::io_context& loop, EtcdOptions options);
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;
  // Breaks off what is under way. Only transact_last() is waited for, for half a second at most. No
  // answer comes any more.
  ~EtcdClient();

  void transact(v3::TxnRequest request, Answer<v3::TxnResponse> answer);
  void transact_last(v3::TxnRequest request);
  struct Grant {
    LeaseId lease = 0;
    std::chrono::milliseconds length{0};
  };
  // etcd may lengthen a lease.
  void grant(std::chrono::seconds length, Answer<Grant> answer);
  // How long the lease lasts from now on; 0: it is gone.
  void keep_alive(LeaseId lease, Answer<std::chrono::milliseconds> answer);
  // Once, one of them is called.
  struct Watcher {
    std::function<void()> changed;  // the key was written or deleted at `from_revision` or later
    std::function<void()> ended;    // after a pause: nobody watches it any more
  };
  // An earlier watch ends without a word.
  void watch(const std::string& key, std::int64_t from_revision, Watcher watcher);
  void stop_watching();

 private:
  class Calls;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ddprun::rendezvous
