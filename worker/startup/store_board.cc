#include "worker/startup/store_board.h"

#include <fmt/format.h>

#include <chrono>

#include "worker/startup/store_exchange.h"

namespace ddprun::worker {
namespace {

// While a call lasts nobody watches the collective.
constexpr std::chrono::seconds kCallTimeout{1};

// The text of a rank that has posted nothing. The store keeps it apart from a missing key.
constexpr std::string_view kNothing = "-";

}  // namespace

std::string StoreBoard::key_of(int rank) const {
  return fmt::format("/ddprun/desync/{}/{}", key_, rank);
}

Result<void> StoreBoard::clear() {
  if (auto posted = post(kNothing); !posted) return posted;
  return client_.ping();
}

Result<void> StoreBoard::post(std::string_view text) { return client_.set(key_of(rank_), text); }

Result<std::vector<std::string>> StoreBoard::read(std::span<const int> ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key_of(rank));
  auto texts = client_.multi_get(keys);
  if (!texts) return texts;
  for (std::string& text : *texts) {
    if (text == kNothing) text.clear();
  }
  return texts;
}

Result<std::unique_ptr<DesyncBoard>> make_store_board(const WorkerEnv& world,
                                                      std::string_view name) {
  auto client = store::Client::connect(world.master_addr, world.master_port, kStoreConnectTimeout,
                                       fmt::format("rank {}", world.rank));
  if (!client) return client.error();
  client->set_limit(kCallTimeout);
  auto board = std::make_unique<StoreBoard>(
      std::move(*client), fmt::format("{}/{}", name, world.restart_count), world.rank);
  if (auto cleared = board->clear(); !cleared) return cleared.error();
  return std::unique_ptr<DesyncBoard>(std::move(board));
}

}  // namespace ddprun::worker
