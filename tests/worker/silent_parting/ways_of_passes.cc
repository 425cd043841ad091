// Slips that all ranks make alike, between forward() and step().
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/utils/clip_grad.h>

#include <thread>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

void silent_pass(Program& p) {
  const auto alone = p.parallel.no_sync();
  p.pass();
}

void twice(Program& p) {
  const auto out = p.forward();
  Program::loss_of(out).backward({}, /*keep_graph=*/true);
  out.abs().mean().backward();
}

void plain_pass(Program& p) { Program::loss_of(p.net->forward(Program::batch())).backward(); }

void by_autograd_grad(Program& p) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& each : p.net->parameters())
    if (each.requires_grad()) trained.push_back(each);
  const auto gradients = torch::autograd::grad({Program::loss_of(p.forward())}, trained);
  for (std::size_t i = 0; i < trained.size(); ++i) trained[i].mutable_grad() = gradients[i].clone();
}

void scale_gradients(Program& p) {
  for (const at::Tensor& each : p.net->parameters())
    if (each.grad().defined()) each.mutable_grad() = each.grad() * 0.5;
}

std::vector<Way> that_throw() {
  const auto way = [](const char* name, const char* words, void (*act)(Program&)) {
    return Way{name, words, of_program([act](Program& p) { p.train([&] { act(p); }); })};
  };
  return {
      way("the last backward under NoSync", "was under NoSync",
          [](Program& p) { silent_pass(p), p.step(); }),
      way("a pass, and one more under NoSync", "was under NoSync",
          [](Program& p) { p.pass(), silent_pass(p), p.step(); }),
      way("under NoSync, the optimizer stepped directly", "became unlike",
          [](Program& p) { silent_pass(p), p.optimizer.step(), ++p.steps; }),
      way("a second backward", "call backward() once", [](Program& p) { twice(p), p.step(); }),
      way("a second backward, the optimizer stepped directly", "became unlike",
          [](Program& p) { twice(p), p.optimizer.step(), ++p.steps; }),
      way("net->forward()", "parallel.forward(net, ...)",
          [](Program& p) { plain_pass(p), p.step(); }),
      way("net->forward(), the optimizer stepped directly", "became unlike",
          [](Program& p) { plain_pass(p), p.optimizer.step(), ++p.steps; }),
      way("a pass, and net->forward() after it", "parallel.forward(net, ...)",
          [](Program& p) { p.pass(), plain_pass(p), p.step(); }),
      way("autograd::grad() in place of backward()", "torch::autograd::grad()",
          [](Program& p) { by_autograd_grad(p), p.step(); }),
      way("autograd::grad(), the optimizer stepped directly", "became unlike",
          [](Program& p) { by_autograd_grad(p), p.optimizer.step(), ++p.steps; }),
      {"net->forward() from the first pass on", "parallel.forward(net, ...)",
       of_program([](Program& p) { p.train([&] { plain_pass(p), p.step(); }, 0); })},
      {"a gradient from before DataParallel", "were not averaged",
       [](Collective& ranks, Outcome& outcome) {
         torch::nn::Linear net(4, 2);
         torch::manual_seed(static_cast<std::uint64_t>(ranks.rank()));
         net->forward(torch::rand({3, 4})).sum().backward();
         DataParallel parallel(net.ptr(), ranks);
         torch::optim::SGD optimizer(net->parameters(), 0.1);
         outcome.weights = net->parameters();
         parallel.step(optimizer);
       }},
  };
}

std::vector<Way> that_train() {
  const auto way = [](const char* name, void (*act)(Program&)) {
    return Way{name, std::nullopt, of_program([act](Program& p) { p.train([&] { act(p); }); })};
  };
  return {
      way("under NoSync, and one pass more",
          [](Program& p) { silent_pass(p), p.pass(), p.step(); }),
      way("under NoSync, and zero_grad()",
          [](Program& p) { silent_pass(p), p.optimizer.zero_grad(), p.step(); }),
      way("a second backward, and one pass more", [](Program& p) { twice(p), p.pass(), p.step(); }),
      way("net->forward(), and one pass more",
          [](Program& p) { plain_pass(p), p.pass(), p.step(); }),
      way("the optimizer stepped directly", [](Program& p) { p.pass(), p.optimizer.step(); }),
      way("step() twice", [](Program& p) { p.pass(), p.step(), p.step(); }),
      way("zero_grad() before step()",
          [](Program& p) { p.pass(), p.optimizer.zero_grad(), p.step(); }),
      way("zeros before step()",
          [](Program& p) { p.pass(), p.optimizer.zero_grad(false), p.step(); }),
      way("no backward", [](Program& p) { p.forward(), p.step(); }),
      way("clipped gradients",
          [](Program& p) {
            p.pass();
            torch::nn::utils::clip_grad_norm_(p.net->parameters(), 1e-3);
            p.step();
          }),
      way("replaced gradients", [](Program& p) { p.pass(), scale_gradients(p), p.step(); }),
      way("a forward with gradients between backward and step",
          [](Program& p) { p.pass(), p.forward(), p.step(); }),
      way("backward() in another thread",
          [](Program& p) {
            const auto loss = Program::loss_of(p.forward());
            std::thread([&] { loss.backward(); }).join();
            p.step();
          }),
      way("a loss that uses a parameter directly",
          [](Program& p) {
            (Program::loss_of(p.forward()) + p.net->scale.square().sum()).backward();
            p.step();
          }),
      way("backward(create_graph)",
          [](Program& p) {
            Program::loss_of(p.forward()).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
            p.step();
          }),
      way("a hook on a parameter",
          [](Program& p) {
            const auto hook = p.net->scale.register_hook([](const at::Tensor& g) { return g * 2; });
            p.pass();
            p.net->scale.remove_hook(hook);
            p.step();
          }),
      way("two optimizers, half of the parameters each",
          [](Program& p) {
            torch::optim::SGD first(p.net->first->parameters(), 0.1);
            torch::optim::SGD last(p.net->last->parameters(), 0.1);
            p.pass();
            p.parallel.step(first);
            p.parallel.step(last);
          }),
      way("all parameters frozen in a pass",
          [](Program& p) {
            for (auto& each : p.net->parameters()) each.requires_grad_(false);
            const auto x = Program::batch().requires_grad_();
            p.parallel.forward(p.net, x).sum().backward();
            for (auto& item : p.net->named_parameters())
              at::Tensor(item.value()).requires_grad_(item.key() != "fixed");
            p.step();
          }),
  };
}

}  // namespace

std::vector<Way> ways_of_passes() {
  auto ways = that_throw();
  for (Way& way : that_train()) ways.push_back(std::move(way));
  return ways;
}

}  // namespace ddprun::worker
