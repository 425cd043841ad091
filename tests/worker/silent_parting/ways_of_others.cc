// Modules, optimizers and states other than those that a DataParallel was made with.
#include <ddprun/amp.h>
#include <ddprun/join.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

std::uint64_t seed_of(const Collective& ranks) {
  return static_cast<std::uint64_t>(100 + ranks.rank());
}

struct CopiedImpl : torch::nn::Cloneable<CopiedImpl> {
  CopiedImpl() { reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(6, 3)); }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Copied);

// `halves`: by before_forward() and after_forward().
void train_a_clone(Collective& ranks, Outcome& outcome, bool halves) {
  Copied net;
  DataParallel parallel(net.ptr(), ranks);
  auto clone = std::dynamic_pointer_cast<CopiedImpl>(net->clone());
  torch::optim::SGD optimizer(clone->parameters(), 0.1);
  outcome.weights = clone->parameters();
  torch::manual_seed(seed_of(ranks));
  for (int i = 0; i < kIterations; ++i) {
    optimizer.zero_grad();
    torch::Tensor out;
    if (halves) {
      parallel.before_forward();
      out = clone->forward(torch::rand({4, 6}));
      parallel.after_forward(out);
    } else {
      out = parallel.forward(clone, torch::rand({4, 6}));
    }
    out.square().mean().backward();
    parallel.step(optimizer);
    ++outcome.steps;
  }
}

// The DataParallel of one net steps the optimizer of a second one. `wrapped`: this has a
// DataParallel of its own, and each pass is under NoSync.
void step_a_second_net(Collective& ranks, Outcome& outcome, bool wrapped) {
  torch::nn::Linear made(6, 3), judge(3, 1);
  DataParallel of_made(made.ptr(), ranks);
  std::optional<DataParallel> of_judge;
  std::optional<DataParallel::NoSync> silent;
  if (wrapped) silent.emplace(of_judge.emplace(judge.ptr(), ranks));
  torch::optim::SGD made_steps(made->parameters(), 0.1), judge_steps(judge->parameters(), 0.1);
  outcome.weights = judge->parameters();
  torch::manual_seed(seed_of(ranks));
  for (int i = 0; i < kIterations; ++i) {
    made_steps.zero_grad(), judge_steps.zero_grad();
    const auto images = of_made.forward(made, torch::rand({4, 6}));
    (wrapped ? of_judge->forward(judge, images) : judge->forward(images)).mean().backward();
    of_made.step(made_steps);
    of_made.step(judge_steps);
    ++outcome.steps;
  }
}

// The program has copies of its own, which it steps.
void step_copies(Program& p, bool added) {
  std::vector<at::Tensor> copies;
  const auto trained = p.net->parameters();
  for (const at::Tensor& each : trained) copies.push_back(each.detach().clone().requires_grad_());
  if (added) p.parallel.add_copies(copies);
  torch::optim::SGD optimizer(copies, 0.1);
  for (int i = 0; i < kIterations; ++i) {
    p.net->zero_grad();
    p.pass();
    for (std::size_t k = 0; k < copies.size(); ++k) copies[k].mutable_grad() = trained[k].grad();
    p.parallel.step(optimizer);
    const torch::NoGradGuard no_grad;
    for (std::size_t k = 0; k < copies.size(); ++k) at::Tensor(trained[k]).copy_(copies[k]);
  }
}

void masters_of_unlike_nets(Collective& ranks, Outcome& outcome) {
  torch::manual_seed(seed_of(ranks));
  Net net;
  MasterWeights masters(*net, at::kBFloat16);
  DataParallel parallel(net.ptr(), ranks);
  torch::optim::SGD optimizer(masters.parameters(), 0.1);
  outcome.weights = masters.parameters();
  for (const at::Tensor& weight : net->parameters()) outcome.weights.push_back(weight);
  for (int i = 0; i < kIterations; ++i) {
    net->zero_grad();
    parallel.forward(net, torch::rand({4, 6}).to(at::kBFloat16)).square().mean().backward();
    masters.step(parallel, optimizer);
  }
}

void epoch(Program& p, int batches) {
  for (int i = 0; i < batches; ++i) p.optimizer.zero_grad(), p.pass(), p.step();
}

void joined_epoch(Program& p, int batches) {
  const auto join = Join(p.parallel);
  epoch(p, batches);
}

std::vector<Way> of_joins() {
  return {
      {"an uneven Join, and an epoch without one", std::nullopt,
       of_program([](Program& p) { joined_epoch(p, 2 + p.rank), epoch(p, 3); })},
      {"two uneven Joins, and an epoch", std::nullopt, of_program([](Program& p) {
         joined_epoch(p, 2 + p.rank), joined_epoch(p, 5 - p.rank), epoch(p, 3);
       })},
      {"a Join, and one rank leaves out a step after it", "called step() unlike numbers of times",
       of_program([](Program& p) {
         joined_epoch(p, 2);
         p.steps = 0;
         p.train_one(1, [&] { p.pass(); });
       })},
      {"one rank leaves out a step in a Join", "called step() unlike numbers of times",
       of_program([](Program& p) {
         const auto join = Join(p.parallel);
         p.train_one(1, [&] { p.pass(); });
       })},
      {"an uneven Join, and one rank leaves out a step after it", "they do different things",
       of_program([](Program& p) {
         joined_epoch(p, 2 + p.rank);
         p.steps = 0;
         if (p.pass(); p.rank != 1) p.step();
         epoch(p, 2);
       })},
  };
}

std::vector<Way> of_modules() {
  return {
      {"a clone in place of the net", "forward() got another module",
       [](Collective& ranks, Outcome& out) { train_a_clone(ranks, out, false); }},
      {"a clone between the halves of forward()", "belongs to no module with a DataParallel",
       [](Collective& ranks, Outcome& out) { train_a_clone(ranks, out, true); }},
      {"the optimizer of a net without a DataParallel", "belongs to no module with a DataParallel",
       [](Collective& ranks, Outcome& out) { step_a_second_net(ranks, out, false); }},
      {"the optimizer of another DataParallel's net, under NoSync", "was under NoSync",
       [](Collective& ranks, Outcome& out) { step_a_second_net(ranks, out, true); }},
      {"copies that nobody has told of", "see add_copies()",
       of_program([](Program& p) { step_copies(p, false); })},
      {"copies that add_copies() knows", std::nullopt,
       of_program([](Program& p) { step_copies(p, true); })},
      {"MasterWeights of nets with unlike weights", std::nullopt, masters_of_unlike_nets},
      {"two models that share a layer", std::nullopt,
       [](Collective& ranks, Outcome& outcome) {
         torch::nn::Linear shared(6, 5), left(5, 1), right(5, 2);
         torch::nn::Sequential one(shared, left), other(shared, right);
         DataParallel of_one(one.ptr(), ranks), of_other(other.ptr(), ranks);
         torch::optim::SGD one_steps(one->parameters(), 0.1), other_steps(other->parameters(), 0.1);
         outcome.weights = one->parameters();
         torch::manual_seed(seed_of(ranks));
         for (int i = 0; i < kIterations; ++i) {
           one_steps.zero_grad();
           of_one.forward(one, torch::rand({4, 6})).square().mean().backward();
           of_one.step(one_steps);
           one_steps.zero_grad(), other_steps.zero_grad();
           of_other.forward(other, torch::rand({4, 6})).square().mean().backward();
           of_other.step(other_steps);
         }
       }},
      {"two models that share a layer, and one loss", "gradient",
       [](Collective& ranks, Outcome& outcome) {
         torch::nn::Linear shared(6, 5), left(5, 1), right(5, 2);
         torch::nn::Sequential one(shared, left), other(shared, right);
         DataParallel of_one(one.ptr(), ranks), of_other(other.ptr(), ranks);
         torch::optim::SGD steps(one->parameters(), 0.1);
         outcome.weights = one->parameters();
         torch::manual_seed(seed_of(ranks));
         for (int i = 0; i < kIterations; ++i) {
           (of_one.forward(one, torch::rand({4, 6})).mean() +
            of_other.forward(other, torch::rand({4, 6})).mean())
               .backward();
           of_one.step(steps);
           ++outcome.steps;
         }
       }},
  };
}

void load_other_weights(Program& p) {
  torch::manual_seed(7);
  Net other;
  std::stringstream file;
  torch::save(other, file);
  torch::load(p.net, file);
  torch::manual_seed(seed_of(p.ranks));
}

void set_own_gradients(Program& p) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& each : p.net->parameters())
    if (each.requires_grad()) trained.push_back(each);
  const auto loss = Program::loss_of(p.net->forward(Program::batch()));
  const auto gradients = torch::autograd::grad({loss}, trained);
  for (std::size_t i = 0; i < trained.size(); ++i) trained[i].mutable_grad() = gradients[i];
}

// One right iteration; then no forward() of DataParallel any more.
Way for_ever(const char* name, void (*first)(Program&), void (*each)(Program&)) {
  return {name, "were not averaged", of_program([first, each](Program& p) {
            epoch(p, 1);
            p.steps = 0;
            first(p);
            for (int i = 0; i < kIterations; ++i) p.optimizer.zero_grad(), each(p), p.step();
          })};
}

std::vector<Way> of_states() {
  const auto alone = [](const char* name, const char* words, void (*act)(Program&)) {
    return Way{name, words, of_program([act](Program& p) { p.train_one(1, [&] { act(p); }); })};
  };
  return {
      for_ever("torch::load(), and net->forward() for ever", load_other_weights,
               [](Program& p) { Program::loss_of(p.net->forward(Program::batch())).backward(); }),
      for_ever(
          "autograd::grad() of net->forward() for ever", [](Program& /*p*/) {}, set_own_gradients),
      {"under NoSync for ever, the optimizer stepped directly", "after a backward() under NoSync",
       of_program([](Program& p) {
         const auto silent = p.parallel.no_sync();
         for (int i = 0; i < kIterations; ++i, ++p.steps)
           p.optimizer.zero_grad(), p.pass(), p.optimizer.step();
       })},
      alone("a frozen parameter changed on one rank", "of parameter 'fixed' has changed",
            [](Program& p) {
              p.net->fixed.mul_(2);
              p.pass(), p.step();
            }),
      alone("an optimizer made anew on one rank", "became unlike",
            [](Program& p) {
              p.optimizer.state().clear();
              p.pass(), p.step();
            }),
      alone("another weight decay on one rank", "became unlike",
            [](Program& p) {
              auto& options = p.optimizer.param_groups().front().options();
              static_cast<torch::optim::SGDOptions&>(options).weight_decay(1e-2);
              p.pass(), p.step();
            }),
      alone("zeros for gradients on one rank", "became unlike",
            [](Program& p) { p.pass(), p.optimizer.zero_grad(false), p.step(); }),
  };
}

}  // namespace

std::vector<Way> ways_of_others() {
  auto ways = of_modules();
  for (Way& way : of_joins()) ways.push_back(std::move(way));
  for (Way& way : of_states()) ways.push_back(std::move(way));
  return ways;
}

}  // namespace ddprun::worker
