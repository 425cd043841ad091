// Slips of one rank, which does otherwise than the others.
#include <torch/nn/utils/clip_grad.h>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

Way alone(const char* name, const char* words, void (*act)(Program&), int rank = 1) {
  return {name, words, of_program([act, rank](Program& p) { p.train_one(rank, [&] { act(p); }); })};
}

void evaluate(Program& p) {
  const torch::NoGradGuard no_grad;
  p.net->eval();
  for (int i = 0; i < 3; ++i) p.forward();
  p.net->train();
}

}  // namespace

std::vector<Way> ways_of_ranks() {
  return {
      alone("one rank leaves out a step", "called step() unlike numbers of times",
            [](Program& p) { p.pass(); }),
      alone(
          "rank 0 leaves out a step", "called step() unlike numbers of times",
          [](Program& p) { p.pass(); }, 0),
      alone(
          "one rank steps twice", "called step() unlike numbers of times",
          [](Program& p) { p.pass(), p.step(), p.optimizer.step(), p.parallel.step(p.optimizer); }),
      alone("one rank leaves out a step after an exception",
            "called step() unlike numbers of times",
            [](Program& p) {
              p.pass();
              try {
                throw std::runtime_error("the metrics could not be written");
              } catch (const std::runtime_error&) {
              }
            }),
      alone("one rank leaves out a backward", "it has left out a backward()",
            [](Program& p) { p.forward(), p.parallel.step(p.optimizer); }),
      alone("one rank leaves out an iteration", "they do different things", [](Program& /*p*/) {}),
      alone("one rank does a pass more", "called step() unlike numbers of times",
            [](Program& p) {
              p.pass();
              p.pass();
              p.step();
            }),
      alone("one rank is under NoSync", "was under NoSync",
            [](Program& p) {
              const auto silent = p.parallel.no_sync();
              p.pass();
              p.step();
            }),
      alone("one rank calls net->forward()", "parallel.forward(net, ...)",
            [](Program& p) {
              Program::loss_of(p.net->forward(Program::batch())).backward();
              p.step();
            }),
      alone("one rank clips its gradients", "became unlike",
            [](Program& p) {
              p.pass();
              torch::nn::utils::clip_grad_norm_(p.net->parameters(), 1e-2);
              p.step();
            }),
      alone("one rank sets its gradients to none", "became unlike",
            [](Program& p) { p.pass(), p.optimizer.zero_grad(), p.step(); }),
      alone("one rank replaces a gradient", "became unlike",
            [](Program& p) {
              p.pass();
              p.net->scale.mutable_grad() = torch::ones(5);
              p.step();
            }),
      alone("one rank has another learning rate", "became unlike",
            [](Program& p) {
              auto& options = p.optimizer.param_groups().front().options();
              static_cast<torch::optim::SGDOptions&>(options).lr(0.2);
              p.pass();
              p.step();
            }),
      {"all step directly, and one rank leaves out a step", "became unlike",
       of_program([](Program& p) {
         p.train([&] {
           p.pass();
           if (p.rank != 1) p.optimizer.step();
           ++p.steps;
         });
       })},
      {"one rank evaluates with parallel.forward()", std::nullopt, of_program([](Program& p) {
         p.train_one(0, [&] { evaluate(p), p.pass(), p.step(), evaluate(p); });
       })},
      // "has left" or "has ended": by which of both the others see first.
      {"one rank throws", "its last operation was", of_program([](Program& p) {
         p.train_one(1, [] { throw std::runtime_error("the data cannot be read"); });
       })},
  };
}

}  // namespace ddprun::worker
