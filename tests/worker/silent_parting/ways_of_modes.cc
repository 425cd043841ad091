// The same slips beside what else the engine has: batch norm, modes, communication hooks, shards,
// joins, a GAN.
#include <ddprun/amp.h>
#include <ddprun/comm_hook.h>
#include <ddprun/join.h>
#include <ddprun/optimizers.h>
#include <ddprun/sharded_parallel.h>
#include <ddprun/zero_optimizer.h>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

const DataParallelOptions kFindUnused{.find_unused_parameters = true};
const DataParallelOptions kStatic{.static_graph = true};
const DataParallelOptions kCopies{.gradient_as_bucket_view = false};

void step_after_no_sync(Program& p) {
  p.train([&] {
    const auto silent = p.parallel.no_sync();
    p.pass();
    p.step();
  });
}

void step_after_second_backward(Program& p) {
  p.train([&] {
    const auto out = p.forward();
    out.sum().backward({}, /*keep_graph=*/true);
    out.abs().sum().backward();
    p.step();
  });
}

void leave_out_a_step(Program& p) {
  p.train_one(1, [&] { p.pass(); });
}

std::vector<Way> of_options() {
  std::vector<Way> ways;
  const auto add = [&ways](const char* name, const char* words, void (*body)(Program&)) {
    ways.push_back({name, words, of_program(body, kFindUnused)});
    ways.push_back({name, words, of_program(body, kStatic)});
    ways.push_back({name, words, of_program(body, kCopies)});
  };
  add("modes: the last backward under NoSync", "was under NoSync", step_after_no_sync);
  add("modes: a second backward", "call backward() once", step_after_second_backward);
  add("modes: one rank leaves out a step", "called step() unlike numbers of times",
      leave_out_a_step);
  ways.push_back({"a communication hook: the last backward under NoSync", "was under NoSync",
                  of_program([](Program& p) {
                    p.parallel.comm_hook(all_reduce_hook());
                    step_after_no_sync(p);
                  })});
  ways.push_back({"16-bit sums: one rank leaves out a step",
                  "called step() unlike numbers of times", of_program([](Program& p) {
                    p.parallel.comm_hook(compressed_hook(at::kBFloat16));
                    leave_out_a_step(p);
                  })});
  ways.push_back({"find_unused_parameters: a parameter used outside of forward()",
                  "mark a variable ready only once",
                  of_program(
                      [](Program& p) {
                        p.train([&] {
                          (p.net->first->forward(Program::batch()).sum() +
                           p.parallel.forward(p.net->last, torch::rand({4, 5})).sum())
                              .backward();
                          p.step();
                        });
                      },
                      kFindUnused)});
  return ways;
}

struct BatchNormNet {
  explicit BatchNormNet(Collective& ranks) : parallel(net.ptr(), ranks) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + ranks.rank()));
  }
  torch::nn::Sequential net{torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4)};
  DataParallel parallel;
  torch::optim::SGD optimizer{net->parameters(), 0.1};
};

void two_forwards(Collective& ranks, Outcome& outcome) {
  BatchNormNet p(ranks);
  outcome.weights = p.net->parameters();
  for (int i = 0; i < kIterations; ++i) {
    p.optimizer.zero_grad();
    const auto left = p.parallel.forward(p.net, torch::rand({4, 6}));
    const auto right = p.parallel.forward(p.net, torch::rand({4, 6}));
    (left - right).square().mean().backward();
    p.parallel.step(p.optimizer);
  }
}

// `eval`: as an evaluation should be; else batch norm changes its buffers.
void one_rank_without_gradients(Collective& ranks, Outcome& outcome, bool eval) {
  BatchNormNet p(ranks);
  outcome.weights = p.net->parameters();
  for (int i = 0; i < kIterations; ++i) {
    p.optimizer.zero_grad();
    p.parallel.forward(p.net, torch::rand({4, 6})).square().mean().backward();
    p.parallel.step(p.optimizer);
    ++outcome.steps;
    if (ranks.rank() != 0) continue;
    const torch::NoGradGuard no_grad;
    p.net->train(!eval);
    for (int batch = 0; batch < 3; ++batch) p.parallel.forward(p.net, torch::rand({4, 6}));
    p.net->train();
  }
}

void gan(Collective& ranks, Outcome& outcome) {
  torch::nn::Linear made(4, 8), judge(8, 1);
  DataParallel of_made(made.ptr(), ranks), of_judge(judge.ptr(), ranks);
  torch::optim::SGD made_steps(made->parameters(), 0.1), judge_steps(judge->parameters(), 0.1);
  outcome.weights = made->parameters();
  for (const at::Tensor& weight : judge->parameters()) outcome.weights.push_back(weight);
  torch::manual_seed(static_cast<std::uint64_t>(100 + ranks.rank()));
  const auto freeze = [&](bool frozen) {
    for (auto& each : judge->parameters()) each.requires_grad_(!frozen);
  };
  for (int i = 0; i < kIterations; ++i) {
    made_steps.zero_grad();
    freeze(true);
    of_judge.forward(judge, of_made.forward(made, torch::rand({4, 4}))).mean().neg().backward();
    of_made.step(made_steps);
    freeze(false);
    judge_steps.zero_grad();
    const auto batch =
        torch::cat({made->forward(torch::rand({4, 4})).detach(), torch::rand({4, 8})});
    of_judge.forward(judge, batch).mean().backward();
    of_judge.step(judge_steps);
  }
}

void zero(Program& p, const std::function<void(ZeroOptimizer<SGD>&)>& way) {
  ZeroOptimizer<SGD> optimizer(p.net->parameters(), p.ranks, SGD::Options(0.1));
  p.train([&] { way(optimizer); });
}

void sharded(Collective& ranks, Outcome& outcome) {
  torch::nn::Linear net(6, 3);
  ShardedParallel parallel(net.ptr(), ranks, {""});
  torch::optim::SGD optimizer(parallel.shards(), 0.1);
  torch::manual_seed(static_cast<std::uint64_t>(100 + ranks.rank()));
  for (int i = 0; i < kIterations; ++i) {
    optimizer.zero_grad();
    const auto out = parallel.forward(net, torch::rand({4, 6}));
    out.sum().backward();
    parallel.step(optimizer);
  }
  // Rank 0 has them: all others take its.
  torch::Tensor weight = torch::zeros({3, 6});
  const auto state = parallel.full_state_dict();
  if (ranks.rank() == 0) weight = state["weight"];
  outcome.weights = {weight};
  TensorCollective(ranks).broadcast(weight, 0);
}

std::vector<Way> of_others() {
  return {
      {"two forwards of batch norm, and one backward", std::nullopt, two_forwards},
      {"one rank evaluates batch norm", std::nullopt,
       [](Collective& ranks, Outcome& out) { one_rank_without_gradients(ranks, out, true); }},
      {"one rank without gradients, in train()", "buffers in forward()",
       [](Collective& ranks, Outcome& out) { one_rank_without_gradients(ranks, out, false); }},
      {"a GAN, whose judge is frozen meanwhile", std::nullopt, gan},
      {"steps in backward()", std::nullopt, of_program([](Program& p) {
         p.parallel.step_in_backward(
             optimizer_in_backward<torch::optim::SGD>(*p.net, torch::optim::SGDOptions(0.1)));
         for (int i = 0; i < kIterations; ++i) p.pass();
       })},
      {"steps in backward(), and a step()", "backward() has made the steps",
       of_program([](Program& p) {
         p.parallel.step_in_backward(
             optimizer_in_backward<torch::optim::SGD>(*p.net, torch::optim::SGDOptions(0.1)));
         p.train([&] { p.pass(), p.step(); }, 0);
       })},
      {"ZeroOptimizer: the last backward under NoSync", "was under NoSync",
       of_program([](Program& p) {
         zero(p, [&](ZeroOptimizer<SGD>& optimizer) {
           const auto silent = p.parallel.no_sync();
           p.pass();
           p.parallel.step(optimizer);
         });
       })},
      {"ZeroOptimizer: torch::load() moves its parameters", "has other memory",
       of_program([](Program& p) {
         zero(p, [&](ZeroOptimizer<SGD>& optimizer) {
           p.net->scale.set_data(torch::ones(5));
           p.pass();
           p.parallel.step(optimizer);
         });
       })},
      {"GradScaler: the last backward under NoSync", "was under NoSync", of_program([](Program& p) {
         GradScaler scaler;
         p.train([&] {
           const auto silent = p.parallel.no_sync();
           scaler.scale(Program::loss_of(p.forward())).backward();
           scaler.step(p.parallel, p.optimizer);
         });
       })},
      {"GradScaler: all ranks skip a step", std::nullopt, of_program([](Program& p) {
         GradScaler scaler;
         p.train([&] {
           (scaler.scale(Program::loss_of(p.forward())) * INFINITY).backward();
           scaler.step(p.parallel, p.optimizer);
         });
       })},
      {"Join: unlike numbers of batches", std::nullopt, of_program([](Program& p) {
         {
           const auto join = Join(p.parallel);
           for (int i = 0; i < 2 + p.rank; ++i) p.optimizer.zero_grad(), p.pass(), p.step();
         }
       })},
      {"ShardedParallel", std::nullopt, sharded},
  };
}

}  // namespace

std::vector<Way> ways_of_modes() {
  auto ways = of_options();
  for (Way& way : of_others()) ways.push_back(std::move(way));
  return ways;
}

}  // namespace ddprun::worker
