// The graph of a pass is computed twice, given up, or begun by the optimizer;
// and unlike batches.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

// Computes its part once more in backward(), as activation checkpointing does.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               torch::nn::Linear* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    const torch::NoGradGuard no_grad;
    return (*layer)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* const layer = reinterpret_cast<torch::nn::Linear*>(context->saved_data["layer"].toInt());
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode recording(true);
    (*layer)(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

// Its first layer is recomputed, so many times.
void recomputed_pass(Program& p, int times) {
  p.parallel.before_forward();
  const auto x = Program::batch().requires_grad_();
  auto hidden = Recomputed::apply(x, &p.net->first);
  for (int i = 1; i < times; ++i) hidden = hidden + Recomputed::apply(x, &p.net->first);
  auto out = p.net->last(torch::tanh(hidden) * p.net->scale);
  p.parallel.after_forward(out);
  Program::loss_of(out).backward();
}

void gradient_penalty(Program& p) {
  const auto x = Program::batch().requires_grad_();
  const auto out = p.parallel.forward(p.net, x);
  const auto slope = torch::autograd::grad({out.sum()}, {x}, {}, /*retain_graph=*/true,
                                           /*create_graph=*/true)[0];
  (Program::loss_of(out) + slope.square().sum()).backward();
}

Way each_time(const char* name, std::optional<std::string> words, void (*pass)(Program&),
              const DataParallelOptions& options = {}) {
  return {name, std::move(words),
          of_program(
              [pass](Program& p) {
                for (int i = 0; i < kIterations; ++i) p.optimizer.zero_grad(), pass(p), p.step();
              },
              options)};
}

std::vector<Way> of_recomputation() {
  const DataParallelOptions static_graph{.static_graph = true};
  const DataParallelOptions unused{.find_unused_parameters = true};
  const auto once = [](Program& p) { recomputed_pass(p, 1); };
  const auto twice = [](Program& p) { recomputed_pass(p, 2); };
  return {
      each_time("a layer is recomputed", std::nullopt, once),
      each_time("a layer is recomputed, with a static graph", std::nullopt, once, static_graph),
      each_time("a layer is recomputed, with find_unused_parameters",
                "mark a variable ready only once", once, unused),
      each_time("a layer is recomputed twice", "'first.weight'", twice),
      each_time("a layer is recomputed twice, with a static graph", std::nullopt, twice,
                static_graph),
      each_time("a gradient penalty", std::nullopt, gradient_penalty),
      each_time("a gradient penalty, with find_unused_parameters", std::nullopt, gradient_penalty,
                unused),
      each_time("a gradient penalty, with a static graph", "call backward() once", gradient_penalty,
                static_graph),
  };
}

Way with_closure(const char* name, std::optional<std::string> words,
                 torch::Tensor (*loss_of)(Program&)) {
  return {name, std::move(words), of_program([loss_of](Program& p) {
            const auto closure = [&] {
              p.optimizer.zero_grad();
              const auto loss = loss_of(p);
              loss.backward();
              return loss;
            };
            for (int i = 0; i < kIterations; ++i, ++p.steps) p.parallel.step(p.optimizer, closure);
          })};
}

std::vector<Way> of_closures() {
  return {
      with_closure("a closure", std::nullopt,
                   [](Program& p) { return Program::loss_of(p.forward()); }),
      with_closure("a closure under NoSync", "was under NoSync",
                   [](Program& p) {
                     const auto silent = p.parallel.no_sync();
                     return Program::loss_of(p.forward());
                   }),
      with_closure("a closure that calls net->forward()", "parallel.forward(net, ...)",
                   [](Program& p) { return Program::loss_of(p.net->forward(Program::batch())); }),
      {"LBFGS", std::nullopt, of_program([](Program& p) {
         std::vector<at::Tensor> trained;
         for (const at::Tensor& each : p.net->parameters())
           if (each.requires_grad()) trained.push_back(each);
         torch::optim::LBFGS optimizer(
             trained, torch::optim::LBFGSOptions(0.1).max_iter(3).tolerance_change(0));
         for (int i = 0; i < kIterations; ++i) {
           const auto batch = Program::batch();
           p.parallel.step(optimizer, [&] {
             optimizer.zero_grad();
             const auto loss = Program::loss_of(p.parallel.forward(p.net, batch));
             loss.backward();
             return loss;
           });
         }
       })},
  };
}

// Between forward() and backward(), or between backward() and step().
std::vector<Way> of_moments() {
  const auto way = [](const char* name, void (*act)(Program&)) {
    return Way{name, std::nullopt, of_program([act](Program& p) { p.train([&] { act(p); }); })};
  };
  return {
      way("frozen between forward() and backward()",
          [](Program& p) {
            const auto loss = Program::loss_of(p.forward());
            p.net->scale.requires_grad_(false);
            loss.backward();
            p.net->scale.requires_grad_(true);
            p.step();
          }),
      way("frozen there on one rank",
          [](Program& p) {
            const auto loss = Program::loss_of(p.forward());
            p.net->scale.requires_grad_(p.rank != 1);
            loss.backward();
            p.net->scale.requires_grad_(true);
            p.step();
          }),
      way("frozen between backward() and step()",
          [](Program& p) {
            p.pass();
            p.net->scale.requires_grad_(false);
            p.step();
            p.net->scale.requires_grad_(true);
          }),
      way("net->to(float64) and back between forward() and backward()",
          [](Program& p) {
            const auto loss = Program::loss_of(p.forward());
            p.net->to(torch::kDouble);
            p.net->to(torch::kFloat);
            loss.backward();
            p.step();
          }),
      way("set_data() between forward() and backward()",
          [](Program& p) {
            const auto loss = Program::loss_of(p.forward());
            p.net->scale.set_data(torch::full({5}, 2.0));
            loss.backward();
            p.step();
          }),
      way("detach_() and requires_grad_()",
          [](Program& p) { p.net->scale.detach_().requires_grad_(), p.pass(), p.step(); }),
      way("unlike numbers of passes under NoSync",
          [](Program& p) {
            for (int i = 0; i <= p.rank; ++i) {
              const auto silent = p.parallel.no_sync();
              p.pass();
            }
            p.pass(), p.step();
          }),
      way("one rank's batch is empty",
          [](Program& p) {
            p.parallel.forward(p.net, torch::rand({p.rank == 1 ? 0 : 4, 6})).sum().backward();
            p.step();
          }),
  };
}

struct FailingImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool fails) {
    const auto y = norm(layer(x));
    if (fails) throw std::out_of_range("a broken batch");
    return y;
  }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 5))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(5))};
};
TORCH_MODULE(Failing);

// forward() throws on one rank, which takes another batch.
void take_another_batch(Collective& ranks, Outcome& outcome) {
  Failing net;
  DataParallel parallel(net.ptr(), ranks);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  outcome.weights = net->parameters();
  torch::manual_seed(static_cast<std::uint64_t>(100 + ranks.rank()));
  for (int i = 0; i < kIterations; ++i) {
    optimizer.zero_grad();
    if (i == kAt && ranks.rank() == 1) {
      try {
        parallel.forward(net, torch::rand({4, 6}), /*fails=*/true);
      } catch (const std::out_of_range&) {
      }
    }
    parallel.forward(net, torch::rand({4, 6}), false).square().mean().backward();
    parallel.step(optimizer);
  }
}

}  // namespace

std::vector<Way> ways_of_graphs() {
  auto ways = of_recomputation();
  for (auto& more : {of_closures(), of_moments()})
    for (const Way& way : more) ways.push_back(way);
  ways.push_back({"one rank's forward() throws, and it takes another batch", std::nullopt,
                  take_another_batch});
  return ways;
}

}  // namespace ddprun::worker
