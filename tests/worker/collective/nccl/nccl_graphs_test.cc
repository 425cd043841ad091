// The NCCL collective beside captures of CUDA graphs, and in them, on a simulated GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <utility>

#include "tests/worker/collective/nccl/simulated_ranks.h"

namespace ddprun::worker {
namespace {

class NcclGraphs : public SimulatedGpu {
 protected:
  // A graph that can run, until the test ends.
  class Graph {
   public:
    Graph(cudaStream_t stream, const std::function<void()>& body) : stream_(stream) {
      EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
      body();
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      if (graph == nullptr) return;
      EXPECT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
      cudaGraphDestroy(graph);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    Graph(Graph&&) = delete;
    Graph& operator=(Graph&&) = delete;
    ~Graph() {
      if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    }
    void launch() const {
      ASSERT_NE(exec_, nullptr);
      EXPECT_EQ(cudaGraphLaunch(exec_, stream_), cudaSuccess);
    }

   private:
    cudaStream_t stream_;
    cudaGraphExec_t exec_ = nullptr;
  };

  void TearDown() override {
    EXPECT_EQ(sim::controls().unsafe_calls, 0) << "a capture was broken";
    EXPECT_EQ(sim::controls().captured_queries, 0) << "an event of a capture was asked";
    EXPECT_EQ(sim::controls().aborts, aborts_);
    SimulatedGpu::TearDown();
  }

  int aborts_ = 0;  // that a test expects
};

// CUDA's default is that no other thread may ask an event meanwhile.
TEST_F(NcclGraphs, ACaptureGoesOnWhileASumIsUnderWay) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    sim::controls().hang = true;
    rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    const Graph graph(sim::new_stream(), [] {
      const int looks = sim::controls().event_queries;
      EXPECT_TRUE(comes_true([&] { return sim::controls().event_queries > looks + 2; }));
    });
    sim::controls().hang = false;
    rank.collective->barrier();
  });
}

// The barriers let the watcher come past what was captured.
TEST_F(NcclGraphs, ASumIsCapturedAndRunsAgain) {
  run({.ranks = 2}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    void* plain = nullptr;
    cudaMalloc(&plain, 4);
    rank.collective->barrier();
    const Graph graph(rank.stream, [&] {
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
      rank.collective->broadcast({plain, 4, Dtype::kUInt8}, 1);
    });
    rank.collective->barrier();
    EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 1));
    for (const float expected : {2.0F, 4.0F, 8.0F}) {
      graph.launch();
      EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, expected));
      rank.collective->check();
      rank.collective->barrier();
    }
    cudaFree(plain);
  });
}

// Each bucket of a pass has its ticket, and the stream waits for the last one only.
TEST_F(NcclGraphs, ACaptureHoldsAnyNumberOfSums) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    const auto before = rank.collective->launch_sum(floats(memory, 4));
    rank.collective->wait(before);
    rank.collective->barrier();
    const Graph graph(rank.stream, [&] {
      Ticket last = 0;
      for (std::uint32_t i = 0; i <= 2 * Collective::kLaunchedMax; ++i) {
        last = rank.collective->launch_sum(floats(memory, 4));
        rank.collective->progress();
      }
      rank.collective->wait(before);  // it is over
      rank.collective->wait(last);
    });
    const auto after = rank.collective->launch_sum(floats(memory, 4));
    rank.collective->wait(after);
    graph.launch();
    EXPECT_EQ(rank.read(memory, 4), std::vector<float>(4, 1));
  });
}

TEST_F(NcclGraphs, AGraphHoldsTheMemoryOfItsSums) {
  run({}, [](Rank& rank) {
    auto memory = rank.filled(4, 1);
    const std::weak_ptr<std::byte> seen = memory;
    {
      const Graph graph(rank.stream, [&] {
        rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
        memory.reset();
      });
      rank.collective->barrier();
      EXPECT_FALSE(seen.expired());
      graph.launch();
      cudaStreamSynchronize(rank.stream);
    }
    EXPECT_TRUE(comes_true([&] {
      rank.collective->check();
      return seen.expired();
    }));
  });
}

// The host cannot wait for what only a graph will do. The capture is good afterwards.
TEST_F(NcclGraphs, WaitsOfTheHostAreRefusedInACapture) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    sim::controls().hang = true;
    const Ticket under_way = rank.collective->launch_sum(floats(memory, 4));
    const Graph graph(rank.stream, [&] {
      const std::vector<std::function<void()>> calls{
          [&] { rank.collective->barrier(); },
          [&] { rank.collective->all_gather_bytes({}); },
          [&] { rank.collective->allocate(64); },
          [&] { rank.collective->split(0, 0); },
          [&] { rank.collective->wait(under_way); },
          [&] { rank.collective->broadcast(floats(memory, 4), 0); }};
      for (const auto& call : calls) {
        const std::string why = message_of(call);
        EXPECT_NE(why.find("while its stream is captured"), std::string::npos) << why;
      }
    });
    sim::controls().hang = false;
    rank.collective->wait(under_way);
    rank.collective->barrier();
  });
}

// Our stream is part of the capture until it ends. Work of others would break it.
TEST_F(NcclGraphs, AnotherStreamOfTheProgramIsRefusedMeanwhile) {
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    const cudaStream_t captured = rank.stream;
    const cudaStream_t other = sim::new_stream();
    rank.collective->barrier();
    const Graph graph(captured, [&] {
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
      *rank.current = other;
      const std::vector<std::function<void()>> calls{
          [&] { rank.collective->barrier(); },
          [&] { rank.collective->launch_sum(floats(memory, 4)); }};
      for (const auto& call : calls) {
        const std::string why = message_of(call);
        EXPECT_NE(why.find("while its stream is captured"), std::string::npos) << why;
      }
      *rank.current = captured;
    });
    rank.collective->barrier();
  });
}

// NCCL keeps a communicator until its graphs are gone, and would wait for them.
TEST_F(NcclGraphs, ACollectiveMayGoBeforeItsGraph) {
  leaves_memory_ = true;
  run({}, [](Rank& rank) {
    auto memory = rank.filled(4, 1);
    const Graph graph(rank.stream, [&] {
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    });
    auto gone = std::async(std::launch::async, [&] { rank.collective.reset(); });
    EXPECT_EQ(gone.wait_for(std::chrono::seconds(8)), std::future_status::ready);
    graph.launch();
    cudaStreamSynchronize(rank.stream);
    EXPECT_EQ(sim::controls().destroys, 0);
  });
}

// A revoke ends its kernels. The abort would wait until the program lets go of its graph.
TEST_F(NcclGraphs, AFailureWaitsForNoGraph) {
  leaves_memory_ = true;
  run({.timeout = std::chrono::seconds(2)}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    const Graph graph(rank.stream, [&] {
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    });
    sim::controls().hang = true;
    graph.launch();
    EXPECT_NE(message_of([&] { rank.collective->barrier(); }), "");
    cudaStreamSynchronize(rank.stream);
    rank.collective.reset();
    EXPECT_EQ(sim::controls().revokes, 1);
  });
}

// The program waits for its stream alone, and the sum never ends.
TEST_F(NcclGraphs, AFailureIsHeardWhileAGraphRunsAlone) {
  leaves_memory_ = true;
  aborts_ = 1;
  run({}, [](Rank& rank) {
    const auto memory = rank.filled(4, 1);
    std::optional<Graph> graph(std::in_place, rank.stream, [&] {
      rank.collective->wait(rank.collective->launch_sum(floats(memory, 4)));
    });
    rank.collective->barrier();
    sim::controls().hang = true;
    graph->launch();
    sim::controls().async_error = ncclRemoteError;
    const std::string why = failure_of(*rank.collective);
    EXPECT_NE(why.find("rank 0: a CUDA graph: NCCL: remote process exited"), std::string::npos)
        << why;
    if (why.empty()) sim::controls().hang = false;
    cudaStreamSynchronize(rank.stream);
    graph.reset();
    rank.collective.reset();
  });
}

}  // namespace
}  // namespace ddprun::worker
