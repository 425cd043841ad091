// The simulated GPU counts accesses that meet and have no order. It does so even if one happens to
// be over before the other.
#include <gtest/gtest.h>

#include "tests/worker/collective/nccl/simulated_gpu.h"

namespace ddprun::worker {
namespace {

class SimulatedOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    sim::reset();
    cudaSetDevice(0);
    ASSERT_EQ(cudaMalloc(&memory_, 8), cudaSuccess);
    first_ = sim::new_stream();
    second_ = sim::new_stream();
  }
  void TearDown() override {
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    sim::reset();
  }
  void write(cudaStream_t stream, std::size_t begin, std::size_t bytes) const {
    sim::run_on(stream, [] {}, {sim::writes(static_cast<std::byte*>(memory_) + begin, bytes)});
  }
  void read(cudaStream_t stream) const {
    sim::run_on(stream, [] {}, {sim::reads(memory_)});
  }
  // The second stream goes on where the first one is.
  void order() const {
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, first_);
    cudaStreamWaitEvent(second_, event, 0);
    cudaEventDestroy(event);
  }
  static int unordered() { return sim::controls().unordered; }

  void* memory_ = nullptr;
  cudaStream_t first_ = nullptr;
  cudaStream_t second_ = nullptr;
};

TEST_F(SimulatedOrder, CountsAWriteBesideAnother) {
  write(first_, 0, 8);
  write(second_, 4, 4);
  EXPECT_EQ(unordered(), 1);
  EXPECT_NE(sim::disorder().find("writes 4 bytes that task"), std::string::npos) << sim::disorder();
}

TEST_F(SimulatedOrder, CountsAReadBesideAWrite) {
  read(first_);
  write(second_, 0, 1);
  read(first_);
  EXPECT_EQ(unordered(), 2);
}

TEST_F(SimulatedOrder, TakesReadsAndOtherBytes) {
  read(first_);
  read(second_);
  EXPECT_EQ(unordered(), 0);
  cudaDeviceSynchronize();
  write(first_, 0, 4);
  write(second_, 4, 4);
  write(first_, 0, 4);
  EXPECT_EQ(unordered(), 0);
}

TEST_F(SimulatedOrder, AnEventOrdersWhatComesAfterIt) {
  write(first_, 0, 8);
  order();
  write(second_, 0, 8);
  EXPECT_EQ(unordered(), 0);
  write(first_, 0, 8);  // nothing orders this one
  EXPECT_EQ(unordered(), 1);
}

TEST_F(SimulatedOrder, AWaitOfTheHostOrders) {
  write(first_, 0, 8);
  cudaStreamSynchronize(first_);
  write(second_, 0, 8);
  EXPECT_EQ(unordered(), 0);
}

TEST_F(SimulatedOrder, NodesOfAGraphNeedOneToo) {
  cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal);
  order();  // the second stream is captured, too
  write(first_, 0, 8);
  write(second_, 0, 8);
  EXPECT_EQ(unordered(), 1);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureUnjoined);
}

// The memory of a graph counts where the graph is launched.
TEST_F(SimulatedOrder, AGraphNeedsOneWithOtherStreams) {
  cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal);
  write(first_, 0, 8);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  cudaGraphInstantiate(&exec, graph, 0);
  write(second_, 0, 8);
  EXPECT_EQ(unordered(), 0);
  cudaGraphLaunch(exec, first_);
  EXPECT_EQ(unordered(), 1);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

// The second stream's write covers the first one's, and comes after it.
TEST_F(SimulatedOrder, HoldsThroughAThirdStream) {
  cudaStream_t third = sim::new_stream();
  write(first_, 0, 8);
  order();
  write(second_, 0, 8);
  write(third, 0, 8);
  EXPECT_EQ(unordered(), 1);
}

TEST_F(SimulatedOrder, CountsWorkBehindTheEndOfABlock) {
  write(first_, 4, 8);
  EXPECT_EQ(sim::controls().outside, 1);
}

}  // namespace
}  // namespace ddprun::worker
