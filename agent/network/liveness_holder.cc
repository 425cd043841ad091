#include "agent/network/liveness_holder.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/net/silent_socket.h"

namespace ddprun::agent {

using boost::asio::ip::address;
using boost::asio::ip::tcp;
using boost::system::error_code;

namespace {

// A node whose host lost power must not keep its place for ever.
constexpr int kAskAfterS = 60;
constexpr int kAskEveryS = 10;
constexpr int kMostAsks = 3;

void ask_whether_it_lives(tcp::socket& socket) {
  const int fd = socket.native_handle();
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  for (const auto& [option, value] :
       {std::pair{TCP_KEEPIDLE, kAskAfterS}, {TCP_KEEPINTVL, kAskEveryS}, {TCP_KEEPCNT, kMostAsks}})
    ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
}

// socket(7), SO_LINGER: with no time to linger, close(2) sends a reset.
void reset(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::socket::linger(true, 0), ignored);
  socket.close(ignored);
}

}  // namespace

// ---- who may stay ----

std::size_t LivenessPlaces::count(const address& of) const {
  const auto found = counts_.find(of);
  return found == counts_.end() ? 0 : found->second;
}

// Returns the oldest place of the address that has the most, if that is more than `than`.
std::optional<LivenessPlaces::Number> LivenessPlaces::oldest_of_the_greediest(
    std::size_t than) const {
  std::optional<Number> oldest;
  for (const auto& [number, from] : places_) {
    const std::size_t has = count(from);
    if (has <= than) continue;
    than = has;
    oldest = number;
  }
  return oldest;
}

std::optional<LivenessPlaces::Number> LivenessPlaces::take(Number number, const address& from) {
  std::optional<Number> goes;
  if (places_.size() >= most_) {
    // One more of an address that has as many as any takes the place of its own oldest.
    goes = oldest_of_the_greediest(count(from) + 1);
    const auto own =
        std::ranges::find_if(places_, [&](const auto& it) { return it.second == from; });
    if (!goes && own != places_.end()) goes = own->first;
    if (!goes) return number;
    leave(*goes);
  }
  places_.emplace(number, from);
  ++counts_[from];
  return goes;
}

void LivenessPlaces::leave(Number number) {
  const auto place = places_.find(number);
  if (place == places_.end()) return;
  const auto counted = counts_.find(place->second);
  if (--counted->second == 0) counts_.erase(counted);
  places_.erase(place);
}

// ---- what is held ----

struct LivenessHolder::State {
  using Number = LivenessPlaces::Number;

  explicit State(std::size_t most) : places(most) {}
  static void wait(const std::shared_ptr<State>& self, Number number);

  LivenessPlaces places;
  std::map<Number, tcp::socket> sockets;
  Number next_number = 0;
};

// Waits for the end of a connection. Closes it also if its peer speaks on: that is no node of ours.
void LivenessHolder::State::wait(const std::shared_ptr<State>& self, Number number) {
  self->sockets.at(number).async_wait(tcp::socket::wait_read,
                                      [self, number](const error_code& /*closed*/) {
                                        const auto found = self->sockets.find(number);
                                        if (found == self->sockets.end()) return;
                                        if (is_silent(found->second)) return wait(self, number);
                                        self->sockets.erase(found);
                                        self->places.leave(number);
                                      });
}

LivenessHolder::LivenessHolder(std::size_t most) : state_(std::make_shared<State>(most)) {}

LivenessHolder::~LivenessHolder() { state_->sockets.clear(); }

void LivenessHolder::hold(tcp::socket socket) {
  error_code failed;
  const tcp::endpoint peer = socket.remote_endpoint(failed);
  std::array<char, 1> first{};
  if (failed || ::recv(socket.native_handle(), first.data(), first.size(), MSG_DONTWAIT) != 1)
    return;
  const auto number = state_->next_number++;
  const auto goes = state_->places.take(number, peer.address());
  if (goes == number) return reset(socket);
  if (goes) {
    const auto found = state_->sockets.find(*goes);
    reset(found->second);
    state_->sockets.erase(found);
  }
  ask_whether_it_lives(socket);
  state_->sockets.emplace(number, std::move(socket));
  State::wait(state_, number);
}

std::size_t LivenessHolder::size() const { return state_->places.size(); }

}  // namespace ddprun::agent
