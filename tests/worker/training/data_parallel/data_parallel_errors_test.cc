// The refusals of DataParallel, and their words, in forked ranks over shared memory.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <csignal>
#include <stdexcept>
#include <string>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"
#include "worker/training/data_parallel/module_state.h"

namespace ddprun::worker {
namespace {

// `second` is complete by the time that `first` gets its gradient.
void replace_a_gradient_in_backward(Chain& net) {
  net->first.register_hook([&net](const at::Tensor& gradient) {
    net->second.mutable_grad() = net->second.grad().clone();
    return gradient;
  });
}

// A world of one whose sums may fail when wait() has returned, as on CUDA.
class FailsLater final : public PassingCollective {
 public:
  using PassingCollective::PassingCollective;

  bool failed = false;

  void check() override {
    if (failed) throw CollectiveError("a sum has failed since");
  }
};

TEST(DataParallelErrors, NoMemoryOfTheHostIsBroadcastAmongGpus) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this machine has a GPU";
  run_torch_ranks(2, [](Collective& ranks) {
    SaysGpus gpus(ranks);
    EXPECT_ANY_THROW(broadcast_values({{"a buffer", torch::ones({3})}}, gpus, 0, "buffers"));
    EXPECT_EQ(gpus.broadcasts, 0);
  });
}

TEST(DataParallelErrors, TellOfASumThatFailedAfterBackward) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    FailsLater collective(*alone);
    Chain net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4})).sum().backward();
    parallel.step(optimizer);
    collective.failed = true;
    const std::string why = "a sum has failed since";
    EXPECT_EQ(message_of([&] { parallel.step(optimizer); }), why);
    EXPECT_EQ(message_of([&] { parallel.check_reduced(); }), why);
    EXPECT_EQ(message_of([&] { parallel.forward(net, torch::ones({4})); }), why);
  });
}

TEST(DataParallelErrors, NameParametersThatGotNoGradient) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4}), /*with_rare=*/false).sum().backward();
    EXPECT_THROW(parallel.check_reduced(), std::runtime_error);
    const auto message = message_of([&] { parallel.forward(net, torch::ones({4})); });
    EXPECT_EQ(message.find("Expected to have finished reduction in the prior iteration before "
                           "starting a new one."),
              0U)
        << message;
    EXPECT_NE(message.find("2 ('rare')"), std::string::npos) << message;
    EXPECT_EQ(message.find("'first'"), std::string::npos) << message;
  });
}

TEST(DataParallelErrors, StepOnlyOnGradientsOfAllRanks) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    parallel.forward(net, torch::ones({4}) * (collective.rank() + 1)).sum().backward();
    parallel.step(optimizer);
    EXPECT_EQ(first_of(net->first), 1.0F - 1.5F);
    parallel.forward(net, torch::ones({4}), /*with_rare=*/false).sum().backward();
    const auto message = message_of([&] { parallel.step(optimizer); });
    EXPECT_NE(message.find("2 ('rare')"), std::string::npos) << message;
    EXPECT_EQ(first_of(net->first), 1.0F - 1.5F) << "no step was made";
  });
}

TEST(DataParallelErrors, EndTheProcessThatNeverAskedWhetherItsGradientsAreReduced) {
  const auto statuses = run_ranks_to_end({.ranks = 2}, [](Collective& collective) {
    at::set_num_threads(1);
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4}), /*with_rare=*/collective.rank() == 1).sum().backward();
  });
  // Rank 1's gradients were all there: its sums wait for rank 0, which ends.
  EXPECT_TRUE(WIFEXITED(statuses[0]) && WEXITSTATUS(statuses[0]) == 1) << statuses[0];
  EXPECT_TRUE(WIFEXITED(statuses[1]) && WEXITSTATUS(statuses[1]) == 1) << statuses[1];
}

TEST(DataParallelErrors, SayThatAPassEndedWithAnError) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    replace_a_gradient_in_backward(net);
    EXPECT_THROW(parallel.forward(net, torch::ones({4})).sum().backward(), std::runtime_error);
    const auto message = message_of([&] { parallel.check_reduced(); });
    EXPECT_NE(
        message.find("backward() of pass 1 ended with an error: 1 of 1 buckets were not "
                     "reduced, the first of them with parameters 0 ('first'), 1 ('second'), 2 "
                     "('rare'); call reset() on all ranks"),
        std::string::npos)
        << message;
  });
}

// `second` has a bucket of its own, after that of `rare`.
TEST(DataParallelErrors, NameTheBucketsThatWereNotReduced) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 1});
    for (int pass = 0; pass < 2; ++pass) parallel.forward(net, torch::ones({4})).sum().backward();
    replace_a_gradient_in_backward(net);
    EXPECT_THROW(parallel.forward(net, torch::ones({4})).sum().backward(), std::runtime_error);
    const auto message = message_of([&] { parallel.check_reduced(); });
    EXPECT_NE(message.find("2 of 3 buckets were not reduced, the first of them with parameters 1 "
                           "('second'); "),
              std::string::npos)
        << message;
  });
}

TEST(DataParallelErrors, NoticeParametersThatAreFrozenOrUnfrozenLater) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    net->rare.requires_grad_(false);
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4})).sum().backward();
    net->rare.requires_grad_(true);
    EXPECT_EQ(message_of([&] { parallel.forward(net, torch::ones({4})); }),
              "parameter 'rare' was unfrozen since DataParallel was made: make DataParallel after "
              "freezing");
    net->rare.requires_grad_(false);
    net->second.requires_grad_(false);
    EXPECT_EQ(message_of([&] { parallel.forward(net, torch::ones({4})); }),
              "parameter 'second' was frozen since DataParallel was made: make DataParallel after "
              "freezing");
  });
}

struct GrowingImpl : torch::nn::Module {
  GrowingImpl() { weight = register_parameter("weight", torch::ones(4)); }
  void add(const std::string& name, bool trained = true) {
    register_parameter(name, torch::ones(4), trained);
  }
  void replace() {
    weight = torch::ones(4).requires_grad_();
    parameters_["weight"] = weight;
  }
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  torch::Tensor weight;
};
TORCH_MODULE(Growing);

TEST(DataParallelErrors, NoticeParametersThatAreAddedOrReplacedLater) {
  run_torch_ranks(2, [](Collective& collective) {
    Growing net;
    DataParallel parallel(net.ptr(), collective, {.ignore = {}});
    const auto pass = [&] { parallel.forward(net, torch::ones({4})).sum().backward(); };
    net->add("frozen", /*trained=*/false);
    EXPECT_EQ(message_of(pass), "") << "it has no gradient that could be summed";
    net->add("new");
    EXPECT_EQ(message_of(pass),
              "parameter 'new' was added since DataParallel was made: make DataParallel after "
              "building the model");
    Growing other;
    DataParallel second(other.ptr(), collective);
    other->replace();
    EXPECT_EQ(
        message_of([&] { second.forward(other, torch::ones({4})); }),
        "parameter 'weight' was replaced since DataParallel was made: make DataParallel after "
        "building the model");
  });
}

TEST(DataParallelErrors, AllowAForwardWithoutBackward) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4}));
    parallel.forward(net, torch::ones({4})).sum().backward();
    EXPECT_EQ(first_of(net->first.grad()), 1.0F);
  });
}

TEST(DataParallelErrors, RefuseASecondGradientInOnePass) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    const auto out = parallel.forward(net, torch::ones({4}), /*with_rare=*/false).sum();
    out.backward({}, /*retain_graph=*/true);
    const auto message = message_of([&] { out.backward(); });
    EXPECT_EQ(message.find("Expected to mark a variable ready only once."), 0U) << message;
    EXPECT_NE(message.find("('second')"), std::string::npos) << message;
  });
}

TEST(DataParallelErrors, NoticeAReplacedGradient) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    replace_a_gradient_in_backward(net);
    const auto message =
        message_of([&] { parallel.forward(net, torch::ones({4})).sum().backward(); });
    EXPECT_EQ(
        message.find("Detected at least one parameter gradient is not the expected DDP bucket view "
                     "with gradient_as_bucket_view=True."),
        0U)
        << message;
    EXPECT_NE(message.find("'second'"), std::string::npos) << message;
  });
}

// A layer of the program's own, whose options we do not know.
struct LookupImpl : torch::nn::Module {
  LookupImpl() { weight = register_parameter("weight", torch::ones({5, 3})); }
  torch::Tensor forward(const torch::Tensor& rows) {
    return torch::embedding(weight, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                            /*sparse=*/true);
  }
  torch::Tensor weight;
};
TORCH_MODULE(Lookup);

TEST(DataParallelErrors, RefuseASparseGradientThatNobodyNamed) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& collective) {
      Lookup net;
      const auto refusal = [&](DataParallel& parallel) {
        return message_of([&] { parallel.forward(net, torch::tensor({1, 3})).sum().backward(); });
      };
      const std::string expected =
          "the gradient of parameter 'weight' is sparse, and its module is no Embedding and no "
          "EmbeddingBag with sparse=true: name it in DataParallelOptions::sparse_parameters";
      {
        DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = view});
        EXPECT_EQ(refusal(parallel), expected);
      }
      // Also one that is there before: taken over in view mode, found by the first pass else.
      ASSERT_EQ(net->weight.grad().layout(), at::kSparse);
      EXPECT_EQ(message_of([&] {
                  DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = view});
                  throw std::runtime_error(refusal(parallel));
                }),
                expected);
      net->weight.mutable_grad().reset();
      DataParallel named(net.ptr(), collective,
                         {.gradient_as_bucket_view = view, .sparse_parameters = {"weight"}});
      EXPECT_EQ(refusal(named), "");
      EXPECT_EQ(net->weight.grad().layout(), at::kSparse);
    });
  }
}

TEST(DataParallelErrors, NoticeAGradientThatAHookMadeSparse) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& collective) {
      Chain net;
      DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = view});
      net->first.register_hook([&net](const at::Tensor& gradient) {
        net->second.mutable_grad() = net->second.grad().to_sparse();
        return gradient;
      });
      const auto message =
          message_of([&] { parallel.forward(net, torch::ones({4})).sum().backward(); });
      EXPECT_NE(message.find(view ? "is not the expected DDP bucket view" : "is sparse"),
                std::string::npos)
          << message;
      EXPECT_NE(message.find("'second'"), std::string::npos) << message;
    });
  }
}

TEST(DataParallelErrors, ReachBackwardWhenAPeerIsKilled) {
  const auto statuses = run_ranks_to_end({.ranks = 2}, [](Collective& collective) {
    at::set_num_threads(1);
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    const auto out = parallel.forward(net, torch::ones({4})).sum();
    if (collective.rank() == 1) ::raise(SIGKILL);
    const auto message = message_of([&] { out.backward(); });
    EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
}

}  // namespace
}  // namespace ddprun::worker
