#include "agent/network/node_services.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "agent/network/taken_port.h"
#include "base/log.h"
#include "base/net/addresses.h"
#include "base/net/name_lookup.h"
#include "base/random_number.h"
#include "base/room_check.h"
#include "rendezvous/election/find_etcd.h"
#include "rendezvous/failover/resuming_session.h"
#include "rendezvous/grpc/client.h"
#include "rendezvous/trust/tls_files.h"

namespace ddprun::agent {

using asio::ip::tcp;
using rendezvous::Session;

namespace {

// An elected leader that takes a connection lets the node in so soon, or another is looked for.
constexpr std::chrono::milliseconds kLeaderLimit{5000};
// A node of daemons reads who leads so often, should the watch not tell: several times in its
// lease. Each node has a time of its own between the two. They all begin in the same moment, when a
// leader goes.
std::chrono::milliseconds look_every() {
  return std::chrono::milliseconds(3500 + random_number() % 1000);
}

// Now, so that one line says the fault of a file, and not a handshake that fails.
Result<void> check_files(const TlsPlan& plan) {
  const auto checked = rendezvous::check_tls_files(files_of(plan));
  if (checked) return {};
  return Error(checked.error().code(), "--rdzv-conf: " + checked.error().message());
}

}  // namespace

NodeServices::NodeServices(asio::io_context& loop, RendezvousPlan plan, Admits admits,
                           WorkersUntil workers_until)
    : loop_(loop),
      plan_(std::move(plan)),
      key_(plan_.kind == RendezvousPlan::Kind::kAlone ? std::string()
                                                      : rendezvous::key_of_token(plan_.token)),
      admits_(std::move(admits)),
      workers_until_(workers_until ? std::move(workers_until) : [](rendezvous::Time) {}),
      store_(new_store()) {}

NodeServices::~NodeServices() {
  // The recorder of rounds goes with the session, and no round begins any more.
  if (host_ && host_->record_round) host_->record_round = [](auto, auto) {};
  session_.reset();  // a Session must not outlive the Host that gave it out
  port_.reset();
}

asio::awaitable<Result<void>> NodeServices::open(Session::MessageHandler handler) {
  // Loopback until set_address_for() knows more. kAlone never calls it.
  store_host_ = plan_.local_addr.empty() ? loopback_address().to_string() : plan_.local_addr;
  if (const auto checked = check_files(plan_.tls); checked.has_error()) co_return checked.error();
  if (plan_.kind != RendezvousPlan::Kind::kAlone) {
    if (auto checked = check_room(kGrpcRoom); !checked) co_return checked.error();
  }
  switch (plan_.kind) {
    case RendezvousPlan::Kind::kAlone:
      host_here(std::move(handler), store_host_);
      co_return Result<void>();
    case RendezvousPlan::Kind::kStatic:
      co_return co_await open_static(std::move(handler));
    case RendezvousPlan::Kind::kC10d:
      co_return co_await open_c10d(std::move(handler));
    case RendezvousPlan::Kind::kEtcd:
      co_return co_await open_etcd(std::move(handler));
  }
  co_return Result<void>();
}

// Looks up the endpoint. If some of its addresses are this node's own, returns one of them,
// loopback last. open_c10d() then knows that this node can host.
asio::awaitable<Result<asio::ip::address>> NodeServices::find_endpoint() {
  const auto found = co_await look_up(loop_, plan_.host, plan_.settings.join_timeout);
  if (!found) co_return found.error();
  for (const auto& address : *found) endpoint_addresses_.push_back(address.to_string());
  std::vector<asio::ip::address> own;
  std::copy_if(found->begin(), found->end(), std::back_inserter(own), is_local_address);
  std::stable_partition(own.begin(), own.end(), [](const auto& one) { return !one.is_loopback(); });
  const asio::ip::address address = own.empty() ? found->front() : own.front();
  listens_everywhere_ = own.size() > 1;
  const bool is_name = address.to_string() != plan_.host && plan_.host != "localhost";
  if (!is_name || !address.is_loopback() || plan_.max_nodes == 1) co_return address;
  // Debian's hosts file gives the host's own name 127.0.1.1. Other hosts cannot connect to that.
  listens_everywhere_ = true;
  co_return outside_address();
}

// The endpoint's address, so that we listen no wider than needed. All addresses in two cases. This
// host does not have that address (a cluster's virtual address in front of it). Or peers may know
// this host's name under another address.
std::string NodeServices::address_to_bind(const asio::ip::address& endpoint) const {
  return is_local_address(endpoint) && !listens_everywhere_ ? endpoint.to_string() : "::";
}

// Finds out under which of our addresses the other nodes reach us.
void NodeServices::set_address_for(const asio::ip::address& endpoint) {
  const asio::ip::address ours = local_address_for(endpoint);
  if (!ours.is_loopback()) interface_ = interface_with(ours);
  if (plan_.local_addr.empty()) store_host_ = ours.to_string();
}

// Node rank 0 serves the rendezvous and the store at MASTER_ADDR:MASTER_PORT. Scripts for the
// static backend expect the store there.
asio::awaitable<Result<void>> NodeServices::open_static(Session::MessageHandler handler) {
  auto address = co_await find_endpoint();
  if (!address) co_return address.error();
  set_address_for(*address);
  if (plan_.node_rank != 0) {
    open_remote_session(std::move(handler));
    co_return Result<void>();
  }
  auto acceptor = bind_listener(loop_, address_to_bind(*address), plan_.port);
  if (!acceptor) co_return acceptor.error();
  fixed_store_ = StoreAddress{plan_.host, acceptor->local_endpoint().port()};
  host_here(std::move(handler), address->to_string());
  if (plan_.max_nodes == 1) {
    store_->serve(std::move(*acceptor));
  } else {
    open_port(std::move(*acceptor), true);
  }
  co_return Result<void>();
}

// Binds the first of the endpoint's ports that is free.
Result<tcp::acceptor> NodeServices::bind_rendezvous(const asio::ip::address& endpoint) {
  for (int next = 0;; ++next) {
    const auto port = static_cast<std::uint16_t>(plan_.port + next);
    auto acceptor =
        bind_listener(loop_, address_to_bind(endpoint), port, "port in --rdzv-endpoint");
    const bool is_taken = !acceptor && acceptor.error().code() == ErrorCode::kUnavailable;
    if (!is_taken || next + 1 >= plan_.port_count) return acceptor;
  }
}

// A scheduler's list says where node rank 0 should be. Started elsewhere, nobody would find it.
std::optional<Error> NodeServices::not_the_first_host(const asio::ip::address& endpoint) const {
  if (!plan_.by_scheduler() || is_local_address(endpoint)) return std::nullopt;
  const std::string here = host_name();
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{} is the first host by MASTER_ADDR or the scheduler's list, and node "
                           "rank 0 runs on {}, which does not have its address {}: hand "
                           "MASTER_ADDR={} on to all nodes (`mpirun -x MASTER_ADDR={} …`), or "
                           "type "
                           "--nnodes={} --rdzv-backend=c10d --rdzv-id={} --rdzv-endpoint={}:{}",
                           plan_.host, here, endpoint.to_string(), here, here, plan_.max_nodes,
                           plan_.run_id, here, plan_.port));
}

// The node that has the endpoint's address hosts, unless the user decided it (is_host). If several
// agents run on that host, the first to bind the port hosts and the others join it.
asio::awaitable<Result<void>> NodeServices::open_c10d(Session::MessageHandler handler) {
  auto address = co_await find_endpoint();
  if (!address) co_return address.error();
  set_address_for(*address);
  if (plan_.is_host.value_or(is_local_address(*address))) {
    if (plan_.max_nodes == 1) {  // nobody else can join: nothing needs to listen
      host_here(std::move(handler), store_host_);
      co_return Result<void>();
    }
    if (auto wrong = not_the_first_host(*address)) co_return *std::move(wrong);
    auto acceptor = bind_rendezvous(*address);
    if (acceptor) {
      host_here(std::move(handler), store_host_);
      open_port(std::move(*acceptor), false);
      co_return Result<void>();
    }
    // Another agent of this host may have the port: then this node joins it. Not if the user said
    // that this node hosts, nor if the port could not be had for another reason.
    if (plan_.is_host || acceptor.error().code() != ErrorCode::kUnavailable)
      co_return acceptor.error();
    log::info(fmt::format("{}; another agent of this host has it, joining that one",
                          acceptor.error().message()));
    taken_port_ = acceptor.error().message();
    handler = telling_who_has_the_port(std::move(handler), taken_port_);
  }
  open_remote_session(std::move(handler));
  co_return Result<void>();
}

// The nodes elect who hosts. A leader that is lost is followed by another one of them.
asio::awaitable<Result<void>> NodeServices::open_etcd(Session::MessageHandler handler) {
  // If this node is lost there is nobody to go on.
  if (plan_.max_nodes == 1 && !follows_daemons()) {
    host_here(std::move(handler), store_host_);
    co_return Result<void>();
  }
  auto etcd = co_await rendezvous::find_etcd(loop_, plan_.etcd, plan_.settings.join_timeout);
  if (!etcd) co_return etcd.error();
  set_address_for(rendezvous::member_to_reach(*etcd));
  session_ = std::make_unique<rendezvous::ElectedSession>(
      loop_,
      rendezvous::ElectionOptions{
          .etcd = *std::move(etcd),
          .prefix =
              follows_daemons() ? rendezvous::group_prefix(plan_.etcd.prefix) : plan_.etcd.prefix,
          .rdzv_id = follows_daemons() ? plan_.etcd.daemons : plan_.run_id,
          .hostname = host_name(),
          .contact_limit = plan_.connect_timeout,
          .search_limit = plan_.settings.join_timeout,
          .follows_only = follows_daemons(),
          .look_while_following = follows_daemons() ? look_every() : std::chrono::milliseconds(0),
          .node_lease = rendezvous::lease_for(plan_.keep_alive, plan_.max_nodes).length,
      },
      callbacks(), std::move(handler));
  co_return Result<void>();
}

rendezvous::ElectedSession::Callbacks NodeServices::callbacks() {
  return {
      .resumes = plan_.resumes || follows_daemons(),
      .own_address = [this] { return own_address(); },
      .lead =
          [this](rendezvous::JobRecord record, rendezvous::ElectedSession::RecordRound record_round,
                 std::function<bool()> may_grant, Session::MessageHandler handler) {
            make_host(std::move(record));
            host_->record_round = std::move(record_round);
            host_->leads = may_grant;
            open_port(*std::exchange(candidate_, std::nullopt), false, std::move(may_grant));
            return host_->open_session(std::move(handler), {store_host_, ""});
          },
      .follow =
          [this](const rendezvous::Leader& leader, rendezvous::Time workers_until,
                 std::function<void()> on_admitted, Session::MessageHandler handler) {
            return rendezvous::open_remote_session(
                loop_,
                {.host = leader.address,
                 .port = leader.port,
                 .token = {key_, plan_.token_is_optional},
                 .rdzv_id = plan_.run_id,
                 .tls = files_of(plan_.tls),
                 .read_timeout = std::min(plan_.connect_timeout, kLeaderLimit),
                 .tries_again = false,
                 .workers_until = workers_until == rendezvous::Time{}
                                      ? std::nullopt
                                      : std::optional(workers_until),
                 .on_admitted = [on_admitted = std::move(on_admitted)](const auto&,
                                                                       auto) { on_admitted(); },
                 .lease_moved = workers_until_},
                std::move(handler));
          },
      .tell_end = [this](const Error& error) { host_->end(error); },
      .stop_leading = [this] { stop_leading(); },
      .workers_until = workers_until_};
}

Result<rendezvous::Leader> NodeServices::own_address() {
  if (!candidate_) {
    auto acceptor = bind_listener(loop_, store_host_, 0);
    if (!acceptor) return acceptor.error();
    candidate_.emplace(std::move(*acceptor));
  }
  return rendezvous::Leader{store_host_, candidate_->local_endpoint().port(), host_name()};
}

// No node must find the port open: for the others that means that the leader lives.
void NodeServices::stop_leading() {
  port_.reset();
  control_.reset();
  host_.reset();
}

void NodeServices::host_here(Session::MessageHandler handler, const std::string& seen_at) {
  make_host({});
  session_ = host_->open_session(std::move(handler), {seen_at, ""});
}

void NodeServices::make_host(rendezvous::JobRecord record) {
  const auto lease = rendezvous::lease_for(plan_.keep_alive, plan_.max_nodes);
  host_ = std::make_unique<rendezvous::Host>(
      loop_,
      rendezvous::RoundPolicy{
          .min_nodes = plan_.min_nodes,
          .max_nodes = plan_.max_nodes,
          .settings = plan_.settings,
          .recovery_limit = lease.length + rendezvous::kFenceMargin,
          .return_limit = std::max<std::chrono::nanoseconds>(
              plan_.settings.last_call, lease.length + rendezvous::kFenceMargin),
          // The record of a job that stood still as a whole is forgotten.
          .takes_rounds_over = plan_.kind == RendezvousPlan::Kind::kEtcd,
          .jitter_seed = random_number()},
      std::move(record));
  control_ = std::make_unique<rendezvous::JobControl>(*host_, plan_.run_id);
  // Now all workers of the last round are gone and none of the next has started. Only at this
  // moment a store with a fixed port can be emptied.
  host_->before_publish = [this](const rendezvous::Round&) {
    if (!fixed_store_) return;
    if (port_) port_->reset();
    store_->reset();
  };
}

void NodeServices::open_port(tcp::acceptor acceptor, bool with_store,
                             std::function<bool()> may_grant) {
  port_ = std::make_unique<HostedPort>(
      loop_, plan_,
      HostedPort::Job{*host_, *control_, {key_, plan_.token_is_optional}, std::move(may_grant)},
      std::move(acceptor), [this, with_store](tcp::socket socket) {
        if (with_store) store_->adopt(std::move(socket));
      });
}

void NodeServices::open_remote_session(Session::MessageHandler handler) {
  const auto open = [this](std::optional<rendezvous::ResumingSession::Time> workers_until,
                           rendezvous::ResumingSession::OnAdmitted on_admitted,
                           Session::MessageHandler on_message) {
    const bool has_workers = workers_until > std::chrono::steady_clock::now();
    return rendezvous::open_remote_session(
        loop_,
        {.host = plan_.host,
         .addresses = endpoint_addresses_,
         .port = plan_.port,
         .port_count = plan_.port_count,
         .token = {key_, plan_.token_is_optional},
         .rdzv_id = plan_.run_id,
         .tls = files_of(plan_.tls),
         .read_timeout = plan_.connect_timeout,
         .tries_again = !workers_until,
         .workers_until = has_workers ? workers_until : std::nullopt,
         .on_admitted = std::move(on_admitted),
         .lease_moved = workers_until_},
        std::move(on_message));
  };
  if (plan_.resumes) {
    session_ = std::make_unique<rendezvous::ResumingSession>(loop_, open, plan_.connect_timeout,
                                                             std::move(handler));
  } else {
    session_ = open({}, {}, std::move(handler));
  }
}

rendezvous::UnreachedHost NodeServices::unreached() const {
  rendezvous::UnreachedHost told = session_->unreached();
  if (!taken_port_.empty())
    told.why += fmt::format("{}this host could not serve the endpoint itself: {}",
                            told.why.empty() ? "" : "; ", taken_port_);
  return told;
}

Result<StoreAddress> NodeServices::prepare_store() {
  if (fixed_store_) return *fixed_store_;
  // The port is bound before the join, because the join carries it. It listens already, so a worker
  // that is faster than serve_store() waits in the kernel's queue and is not refused. It also tells
  // the host whether this process lives: the static backend uses it for that alone.
  store_->close();
  store_ = new_store();
  prepared_.reset();
  auto acceptor = bind_listener(loop_, store_host_, 0);
  // A static node is where its user says, and needs no address of this host for that.
  if (!acceptor && plan_.kind == RendezvousPlan::Kind::kStatic) return StoreAddress{};
  if (!acceptor) return acceptor.error();
  StoreAddress address{store_host_, acceptor->local_endpoint().port()};
  prepared_.emplace(std::move(*acceptor));
  if (!plan_.shares_store) {
    // At all addresses, as a worker's store listens. It is closed here at once.
    const auto unused = bind_listener(loop_, "::", 0);
    if (!unused) return unused.error();
    address.worker_port = unused->local_endpoint().port();
  }
  return address;
}

void NodeServices::serve_store() {
  if (!prepared_) return;  // a fixed port, already served
  store_->serve(std::move(*prepared_));
  prepared_.reset();
}

}  // namespace ddprun::agent
