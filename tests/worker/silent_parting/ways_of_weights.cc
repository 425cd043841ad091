// Parameters that are other ones, of other kinds, or of other values than at construction.
#include <torch/serialize.h>

#include <sstream>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

// The weights of a net that all ranks make alike, but for those with another seed.
void load_weights(Program& p, std::uint64_t seed = 7) {
  torch::manual_seed(seed);
  Net other;
  std::stringstream file;
  torch::save(other, file);
  torch::load(p.net, file);
  torch::manual_seed(100 + static_cast<std::uint64_t>(p.rank));
}

Way change(const char* name, std::optional<std::string> words, void (*act)(Program&),
           int at = kAt) {
  return {name, std::move(words), of_program([act, at](Program& p) {
            p.train(
                [&] {
                  act(p);
                  p.pass();
                  p.step();
                },
                at);
          })};
}

std::vector<Way> of_values() {
  return {
      change("torch::load() after wrapping", std::nullopt, [](Program& p) { load_weights(p); }),
      change(
          "torch::load() before the first pass", std::nullopt, [](Program& p) { load_weights(p); },
          0),
      {"torch::load() with find_unused_parameters", std::nullopt,
       of_program([](Program& p) { p.train([&] { load_weights(p), p.pass(), p.step(); }); },
                  {.find_unused_parameters = true})},
      {"torch::load() with a static graph", std::nullopt,
       of_program([](Program& p) { p.train([&] { load_weights(p), p.pass(), p.step(); }); },
                  {.static_graph = true})},
      change("torch::load() of unlike weights", "became unlike",
             [](Program& p) { load_weights(p, static_cast<std::uint64_t>(p.rank)); }),
      change("torch::load() on one rank", "became unlike",
             [](Program& p) {
               if (p.rank == 1) load_weights(p);
             }),
      change(
          "torch::load() on one rank before the first pass", "became unlike",
          [](Program& p) {
            if (p.rank == 0) load_weights(p);
          },
          0),
      change("weights changed by hand on one rank", "became unlike",
             [](Program& p) {
               const torch::NoGradGuard no_grad;
               if (p.rank == 1) p.net->last->weight.mul_(1.01);
             }),
      change("set_data() on one rank", "became unlike",
             [](Program& p) {
               if (p.rank == 1) p.net->scale.set_data(torch::full({5}, 2.0));
             }),
      change("set_data() on all ranks", std::nullopt,
             [](Program& p) { p.net->scale.set_data(torch::full({5}, 2.0)); }),
      change("weights changed by hand on all ranks", std::nullopt,
             [](Program& p) {
               const torch::NoGradGuard no_grad;
               p.net->last->weight.mul_(1.01);
             }),
      {"unlike weights without init_sync", "became unlike",
       [](Collective& ranks, Outcome& outcome) {
         torch::manual_seed(static_cast<std::uint64_t>(ranks.rank()));
         torch::nn::Linear net(4, 2);
         DataParallel parallel(net.ptr(), ranks, {.init_sync = false});
         torch::optim::SGD optimizer(net->parameters(), 0.1);
         outcome.weights = net->parameters();
         parallel.forward(net, torch::rand({3, 4})).sum().backward();
         parallel.step(optimizer);
         ++outcome.steps;
       }},
  };
}

std::vector<Way> of_kinds() {
  return {
      change("net->to(float64)", "is Double", [](Program& p) { p.net->to(torch::kDouble); }),
      change("net->to(float64) on one rank", "is Double",
             [](Program& p) {
               if (p.rank == 1) p.net->to(torch::kDouble);
             }),
      change("net->to(float64) and back", std::nullopt,
             [](Program& p) {
               p.net->to(torch::kDouble);
               p.net->to(torch::kFloat);
             }),
      change("set_data() of another size", "'scale' is Float [1]",
             [](Program& p) { p.net->scale.set_data(torch::ones({1})); }),
      change("a module replaced", "'first.weight' was replaced",
             [](Program& p) {
               p.net->first = p.net->replace_module("first", torch::nn::Linear(6, 5));
             }),
      change("a module replaced on one rank", "'first.weight' was replaced",
             [](Program& p) {
               if (p.rank == 1)
                 p.net->first = p.net->replace_module("first", torch::nn::Linear(6, 5));
             }),
      change("a parameter added", "'more' was added",
             [](Program& p) { p.net->register_parameter("more", torch::ones(3)); }),
      change("a member replaced, and not registered", "gave no gradient to",
             [](Program& p) { p.net->scale = torch::ones(5).requires_grad_(); }),
      change("a parameter frozen", "'scale' was frozen",
             [](Program& p) { p.net->scale.requires_grad_(false); }),
      change("a parameter frozen on one rank", "'scale' was frozen",
             [](Program& p) {
               if (p.rank == 1) p.net->scale.requires_grad_(false);
             }),
      change("a parameter unfrozen", "'fixed' was unfrozen",
             [](Program& p) { p.net->fixed.requires_grad_(true); }),
      {"a parameter frozen, with find_unused_parameters", std::nullopt,
       of_program(
           [](Program& p) {
             p.train([&] { p.net->scale.requires_grad_(false), p.pass(), p.step(); });
           },
           {.find_unused_parameters = true})},
      {"a parameter frozen on one rank, with find_unused_parameters", std::nullopt,
       of_program(
           [](Program& p) {
             p.train([&] { p.net->scale.requires_grad_(p.rank != 1), p.pass(), p.step(); });
           },
           {.find_unused_parameters = true})},
      {"an optimizer with a parameter of the loss", "belongs to no module with a DataParallel",
       of_program([](Program& p) {
         p.train([&] {
           auto weight = torch::ones(3).requires_grad_();
           p.optimizer.param_groups().front().params().push_back(weight);
           (p.forward() * weight).square().mean().backward();
           p.step();
         });
       })},
  };
}

}  // namespace

std::vector<Way> ways_of_weights() {
  auto ways = of_values();
  for (Way& way : of_kinds()) ways.push_back(std::move(way));
  return ways;
}

}  // namespace ddprun::worker
