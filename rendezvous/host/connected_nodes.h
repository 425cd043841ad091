// The nodes whose calls were let in, and their sessions. A session outlives its call for a while: a
// node may come back over another one. The service defines calls and sessions. A call has cut(),
// which breaks it off; its end is told by broke().
//
// Loop's thread. Owned by Service.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/net/liveness_probe.h"
#include "rendezvous/core/keep_alive.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/seating.h"

namespace ddprun::rendezvous {

template <typename Call, typename HostedSession>
class ConnectedNodes {
 public:
  // The way of a session's messages: to the call over which its node speaks now.
  using Route = std::shared_ptr<Call*>;
  struct Node {
    std::shared_ptr<Call> call;
    std::string rdzv_id;
    PeerInfo observed;
    Route route;
    // Null: one of many jobs, and the node did not ask for a seat yet.
    std::unique_ptr<HostedSession> session{};
    Silence silence{};
    NodeSpec spec{};                         // as it said last
    std::int64_t connection = 0;             // as ResumeRequest has it
    std::unique_ptr<ProbedPorts> ports{};    // of its process
    std::unique_ptr<LivenessProbe> probe{};  // its call broke, and it may come back
  };

  // `may_return`: nodes whose calls break may come back.
  ConnectedNodes(boost::asio::io_context& loop, bool may_return)
      : loop_(loop), may_return_(may_return) {}

  std::size_t size() const { return nodes_.size(); }
  // Returns whether so many nodes said who they are, with those that may come back: their places
  // are kept.
  bool are_named_as_many_as(std::size_t many) const {
    if (nodes_.size() < many) return false;
    const auto is_named = [](const auto& entry) { return !entry.second.spec.node_id.empty(); };
    return static_cast<std::size_t>(std::ranges::count_if(nodes_, is_named)) >= many;
  }
  Node* find(Call* call) {
    const auto found = nodes_.find(call);
    return found == nodes_.end() ? nullptr : &found->second;
  }
  Node& add(const std::shared_ptr<Call>& call, const std::string& rdzv_id,
            const PeerInfo& observed) {
    Node node{.call = call,
              .rdzv_id = rdzv_id,
              .observed = observed,
              .route = std::make_shared<Call*>(call.get())};
    return nodes_.emplace(call.get(), std::move(node)).first->second;
  }
  template <typename Act>
  void for_each(Act act) {
    for (auto& [call, node] : nodes_) act(node);
  }

  // The calls of the nodes that are so: while they are held here, the nodes may be forgotten.
  template <typename Is>
  std::vector<std::shared_ptr<Call>> calls(Is is) {
    std::vector<std::shared_ptr<Call>> found;
    for (auto& [call, node] : nodes_)
      if (is(node)) found.push_back(node.call);
    return found;
  }

  // The node says who it is.
  void joins(Node& node, const NodeSpec& spec) {
    calls_of_[key(node.rdzv_id, spec)] = node.call.get();
    node.spec = spec;
    if (may_return_) node.ports = std::make_unique<ProbedPorts>(loop_, ports_of(node));
  }

  // The node speaks over a later call already: what came over this one was under way for long.
  // Null if it did not say who it is, or that it comes back.
  bool is_overtaken(const Node& node, const NodeSpec* named, const ResumeRequest* resumed) {
    const Node* const latest = named != nullptr ? latest_of(node.rdzv_id, *named) : nullptr;
    const auto connection = resumed != nullptr ? resumed->connection : node.connection;
    return latest != nullptr && latest != &node && connection < latest->connection;
  }

  // The node says who it is, and that it comes back. If its session is here still, that one goes on
  // over this call: true. It may not have noticed that the call before is gone: that one is cut.
  bool comes_back(Node& node, const ResumeRequest& resumed) {
    const NodeSpec& spec = resumed.spec;
    node.connection = resumed.connection;
    Node* const old = latest_of(node.rdzv_id, spec);
    joins(node, spec);
    if (old == nullptr || old == &node) return false;
    const auto unused = std::exchange(node.session, std::move(old->session));
    node.route = old->route;
    *node.route = node.call.get();
    node.silence.follows(old->silence);
    const auto before = old->call;
    before->cut();
    nodes_.erase(before.get());
    return true;
  }

  // The call of a node ended without a last word. Its process is dead, or something between the two
  // broke the connection. A dead process listens no more at the port of its store. If that took our
  // connection before and refuses it now, the node is forgotten at once. A process that may live
  // has until the end of the host's patience. One that did not say who it is cannot come back.
  void broke(Call* call) {
    Node* const node = find(call);
    if (node == nullptr || node->probe) return;
    if (!may_return_ || node->spec.node_id.empty()) return forget(call);
    node->probe = std::make_unique<LivenessProbe>(loop_, node->ports->taken(),
                                                  [this, call] { forget(call); });
  }

  void forget(Call* call) {
    const auto found = nodes_.find(call);
    if (found == nodes_.end()) return;
    const auto known = calls_of_.find(key(found->second.rdzv_id, found->second.spec));
    if (known != calls_of_.end() && known->second == call) calls_of_.erase(known);
    nodes_.erase(found);
  }

 private:
  // The call over which this node said last who it is. Null if none is here.
  Node* latest_of(const std::string& rdzv_id, const NodeSpec& spec) {
    const auto known = calls_of_.find(key(rdzv_id, spec));
    Node* const node = known == calls_of_.end() ? nullptr : find(known->second);
    const bool is_it = node != nullptr && key(node->rdzv_id, node->spec) == key(rdzv_id, spec);
    return is_it ? node : nullptr;
  }
  // Returns the addresses at which its store may be reached: the one it says, and the one it comes
  // from.
  static std::vector<boost::asio::ip::tcp::endpoint> ports_of(const Node& node) {
    std::vector<boost::asio::ip::tcp::endpoint> ports;
    const NodeSpec& spec = node.spec;
    if (spec.store_port == 0) return ports;
    for (const std::string& text : {spec.store_address, node.observed.address}) {
      boost::system::error_code failed;
      const auto address = boost::asio::ip::make_address(text, failed);
      const boost::asio::ip::tcp::endpoint port(address, spec.store_port);
      if (!failed && std::ranges::count(ports, port) == 0) ports.push_back(port);
    }
    return ports;
  }
  // Two jobs may each have a node with the same id.
  static std::string key(const std::string& rdzv_id, const NodeSpec& spec) {
    return rdzv_id + '\0' + spec.node_id;
  }

  boost::asio::io_context& loop_;
  const bool may_return_;
  std::map<Call*, Node> nodes_;
  std::unordered_map<std::string, Call*> calls_of_;  // by key()
};

}  // namespace ddprun::rendezvous
