// Trains a layer on numbers of its own on each rank; prints what must be alike on all of them.
#include <torch/torch.h>

#include <cstdio>

#include "worker/collective/core/mean.h"
#include "worker/data/distributed_sampler.h"
#include "worker/startup/bootstrap.h"
#include "worker/training/comm_hooks/comm_hooks.h"
#include "worker/training/comm_hooks/power_sgd.h"
#include "worker/training/data_parallel/data_parallel.h"
#include "worker/training/tensors/tensor_verbs.h"

using namespace ddprun::worker;

int main() {
  auto process = bootstrap().value();
  Collective& ranks = *process.collective;
  torch::manual_seed(ranks.rank());
  torch::nn::Linear net(4, 2);
  DataParallel parallel(net.ptr(), ranks);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Mean loss_mean;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const auto loss = parallel.forward(net, torch::rand({8, 4})).square().mean();
    loss.backward();
    parallel.step(optimizer);
    loss_mean.add(loss.item<double>());
  }
  const double weights = net->weight.sum().item<double>();
  std::printf("rank %d of %d: weights %.17g loss %.17g\n", ranks.rank(), ranks.world_size(),
              weights, loss_mean.over(ranks));
}
