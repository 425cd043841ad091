// Optimizers whose numbers are unlike, by however little: the weights of a step show nothing of it.
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

namespace optim = torch::optim;

// A program with another optimizer. From iteration kAt on `change` has been called on rank 1.
template <typename Optimizer, typename Options>
Way with(const char* name, std::optional<std::string> words, const Options& options,
         void (*change)(Program&, Optimizer&)) {
  return {name, std::move(words), of_program([options, change](Program& p) {
            Optimizer optimizer({optim::OptimizerParamGroup(p.net->first->parameters()),
                                 optim::OptimizerParamGroup({p.net->scale, p.net->fixed}),
                                 optim::OptimizerParamGroup(p.net->last->parameters())},
                                options);
            for (int i = 0; i < kIterations; ++i) {
              p.net->zero_grad();
              if (i == kAt) change(p, optimizer);
              p.pass();
              p.parallel.step(optimizer);
              ++p.steps;
            }
            p.ranks.barrier();
          })};
}

template <typename Options>
Options& of(optim::Optimizer& optimizer, std::size_t group = 0) {
  return static_cast<Options&>(optimizer.param_groups().at(group).options());
}

bool is_one(const Program& p) { return p.rank == 1; }
double next(double number) {
  return std::nextafter(number, std::numeric_limits<double>::infinity());
}

using SGDOptions = optim::SGDOptions;
Way sgd(const char* name, std::optional<std::string> words, void (*change)(Program&, optim::SGD&)) {
  return with<optim::SGD>(name, std::move(words), SGDOptions(0.1).momentum(0.9), change);
}

std::vector<Way> ways_of_sgd() {
  return {
      sgd("one rank has a learning rate that is larger by a millionth", "lr of group 0 is 0.1, and",
          [](Program& p, optim::SGD& o) {
            if (is_one(p)) of<SGDOptions>(o).lr(0.1 * (1 + 1e-6));
          }),
      sgd("one rank has a learning rate with another last bit, in its last group",
          "lr of group 2 is 0.1, and 0.10000000000000002",
          [](Program& p, optim::SGD& o) {
            if (is_one(p)) of<SGDOptions>(o, 2).lr(next(0.1));
          }),
      sgd("one rank has another momentum", "momentum of group 0 is 0.9, and 0.9000001",
          [](Program& p, optim::SGD& o) {
            if (is_one(p)) of<SGDOptions>(o).momentum(0.9000001);
          }),
      sgd("one rank has another weight decay", "weight_decay of group 1 is 0, and 1e-12",
          [](Program& p, optim::SGD& o) {
            if (is_one(p)) of<SGDOptions>(o, 1).weight_decay(1e-12);
          }),
      sgd("each rank has a schedule of its own loss", "lr of group 0 is",
          [](Program& p, optim::SGD& o) { of<SGDOptions>(o).lr(0.1 + 1e-9 * p.rank); }),
      sgd("one rank has a group more", "there are",
          [](Program& p, optim::SGD& o) {
            if (is_one(p)) o.add_param_group(optim::OptimizerParamGroup({torch::ones(1)}));
          }),
      sgd("all ranks change the learning rate", std::nullopt,
          [](Program& /*p*/, optim::SGD& o) { of<SGDOptions>(o).lr(0.01); }),
      sgd("all ranks have a learning rate that is no number", std::nullopt,
          [](Program& /*p*/, optim::SGD& o) {
            of<SGDOptions>(o, 1).lr(std::numeric_limits<double>::quiet_NaN());
          }),
  };
}

// As a state is that was loaded of another step. All but the count is alike.
template <typename State>
void count_up(optim::Optimizer& optimizer, std::size_t group, std::int64_t by) {
  const at::Tensor& parameter = optimizer.param_groups().at(group).params().front();
  auto& state = static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
  state.step(state.step() + by);
}

template <typename Optimizer, typename Options, typename State>
std::vector<Way> ways_of_adam(const char* of_betas, const char* of_eps, const char* of_decay,
                              const char* of_counts) {
  return {
      with<Optimizer>(of_betas, "beta2 of group 0 is 0.999, and", Options(1e-3),
                      [](Program& p, Optimizer& o) {
                        if (is_one(p)) of<Options>(o).betas({0.9, next(0.999)});
                      }),
      with<Optimizer>(of_eps, "eps of group 0 is 1e-08, and 1.1e-08", Options(1e-3),
                      [](Program& p, Optimizer& o) {
                        if (is_one(p)) of<Options>(o).eps(1.1e-8);
                      }),
      with<Optimizer>(of_decay, "weight_decay of group 0 is 1e-05, and",
                      Options(1e-3).weight_decay(1e-5),
                      [](Program& p, Optimizer& o) {
                        if (is_one(p)) of<Options>(o).weight_decay(1.0000001e-5);
                      }),
      // Late: then a step depends on its number by little.
      with<Optimizer>(
          of_counts, "count of steps of group 2 is 100001, and 100002", Options(1e-6),
          [](Program& p, Optimizer& o) { count_up<State>(o, 2, is_one(p) ? 100'001 : 100'000); }),
  };
}

std::vector<Way> ways_of_others_than_sgd() {
  using optim::Adagrad;
  using optim::RMSprop;
  return {
      with<optim::AdamW>(
          "one rank's AdamW counts one parameter's steps from another number",
          "the counts of steps of single parameters are unlike", optim::AdamWOptions(1e-6),
          [](Program& p, optim::AdamW& o) {
            count_up<optim::AdamWParamState>(o, 0, 100'000);
            const at::Tensor& bias = o.param_groups().at(0).params().at(1);
            auto& state =
                static_cast<optim::AdamWParamState&>(*o.state().at(bias.unsafeGetTensorImpl()));
            state.step(90'000 + p.rank);
          }),
      with<RMSprop>("one rank has another alpha", "alpha of group 0 is 0.99, and",
                    optim::RMSpropOptions(1e-3),
                    [](Program& p, RMSprop& o) {
                      if (is_one(p)) of<optim::RMSpropOptions>(o).alpha(next(0.99));
                    }),
      with<Adagrad>("one rank has another lr_decay", "lr_decay of group 0 is 0, and 1e-09",
                    optim::AdagradOptions(1e-3),
                    [](Program& p, Adagrad& o) {
                      if (is_one(p)) of<optim::AdagradOptions>(o).lr_decay(1e-9);
                    }),
  };
}

}  // namespace

std::vector<Way> ways_of_settings() {
  auto ways = ways_of_sgd();
  const auto append = [&ways](std::vector<Way> more) {
    for (Way& way : more) ways.push_back(std::move(way));
  };
  append(ways_of_adam<optim::Adam, optim::AdamOptions, optim::AdamParamState>(
      "one rank's Adam has another beta", "one rank's Adam has another eps",
      "one rank's Adam has another weight decay",
      "one rank's Adam counts its steps from another number"));
  append(ways_of_adam<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>(
      "one rank's AdamW has another beta", "one rank's AdamW has another eps",
      "one rank's AdamW has another weight decay",
      "one rank's AdamW counts its steps from another number"));
  append(ways_of_others_than_sgd());
  return ways;
}

}  // namespace ddprun::worker
