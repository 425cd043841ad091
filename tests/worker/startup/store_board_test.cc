// The desync board over a real store.
#include "worker/startup/store_board.h"

#include <gtest/gtest.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/server.h"

namespace ddprun::worker {
namespace {

// A store in a thread.
class StoreThread {
 public:
  StoreThread()
      : acceptor_(loop_, {boost::asio::ip::address_v4::loopback(), 0}),
        port_(acceptor_.local_endpoint().port()),
        server_(std::make_unique<store::Server>(loop_)) {
    server_->serve(std::move(acceptor_));
    thread_ = std::thread([this] { loop_.run(); });
  }
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;
  StoreThread(StoreThread&&) = delete;
  StoreThread& operator=(StoreThread&&) = delete;
  ~StoreThread() { stop(); }

  void stop() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  WorkerEnv world(int rank, int restart_count = 0) const {
    WorkerEnv world;
    world.master_addr = "127.0.0.1";
    world.master_port = port_;
    world.rank = rank;
    world.restart_count = restart_count;
    return world;
  }

 private:
  boost::asio::io_context loop_{1};
  boost::asio::ip::tcp::acceptor acceptor_;
  std::uint16_t port_;
  std::unique_ptr<store::Server> server_;
  std::thread thread_;
};

std::unique_ptr<DesyncBoard> board_of(const WorkerEnv& world) {
  auto made = make_store_board(world, "nccl");
  EXPECT_TRUE(made) << made.error().message();
  return std::move(*made);
}

TEST(StoreBoard, ShowsEachRankWhatTheOthersPost) {
  const StoreThread store;
  const auto zero = board_of(store.world(0));
  const auto one = board_of(store.world(1));
  const std::array ranks{1, 0};
  EXPECT_EQ(*zero->read(ranks), (std::vector<std::string>{"", ""}));
  ASSERT_TRUE(one->post("waits in a barrier"));
  ASSERT_TRUE(one->post("runs"));
  // The store answers a rank in order, so what it has posted is there when it reads.
  EXPECT_EQ(*one->read(ranks), (std::vector<std::string>{"runs", ""}));
  EXPECT_EQ(*zero->read(ranks), (std::vector<std::string>{"runs", ""}));
}

TEST(StoreBoard, ShowsNothingOfAnAttemptBefore) {
  const StoreThread store;
  const auto before = board_of(store.world(0));
  ASSERT_TRUE(before->post("waits"));
  const std::array ranks{0};
  EXPECT_EQ(*board_of(store.world(0, 1))->read(ranks), std::vector<std::string>{""});
  EXPECT_EQ(*board_of(store.world(0))->read(ranks), std::vector<std::string>{""}) << "cleared";
}

TEST(StoreBoard, WaitsNoLongerThanASecondForWhatIsNotThere) {
  StoreThread store;
  const auto zero = board_of(store.world(0));
  const std::array ranks{1};
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_FALSE(zero->read(ranks));
  const std::array own{0};
  EXPECT_TRUE(zero->read(own)) << "a rank that is not there breaks nothing";
  store.stop();
  EXPECT_FALSE(zero->read(own));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(15));
}

}  // namespace
}  // namespace ddprun::worker
