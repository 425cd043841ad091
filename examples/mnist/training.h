// One training run on this rank: the net, its optimizer, the data, and the loop over epochs that
// all ranks go through in step. Owns what it trains; borrows the options and the process. The
// training thread only. Failures are exceptions.
#pragma once

#include <torch/optim/sgd.h>

#include <string>
#include <string_view>

#include "examples/mnist/net.h"
#include "examples/mnist/options.h"
#include "examples/mnist/progress.h"
#include "examples/mnist/ranks.h"
#include "worker/data/distributed_sampler.h"
#include "worker/reducer/data_parallel.h"
#include "worker/startup/bootstrap.h"

namespace ddprun::examples {

class Training {
 public:
  // Collective: all ranks start from the same checkpoint or from the weights of rank 0. A job that
  // was restarted goes on from options.checkpoint if it has saved that itself, and any job does
  // that is told to; otherwise a file found there is kept as `<file>.old`. A job is told from
  // others by the launcher's cookie, and where another launcher gave none, by its run id, which
  // jobs may share.
  Training(const Options& options, worker::Process& process, Samples train, Samples held_out);

  // Trains to the last epoch. Rank 0 reports on stdout, lastly `loss=<the last epoch's, all
  // digits>`, `weights=<checksum>` and `accuracy=<share>`. The run is repeatable: started alike it
  // ends with the same bits. Resumed from a checkpoint it does so too with one rank or two; with
  // more the last bits may differ from an undisturbed run's, as the first step of a process adds
  // its gradients in other buckets, thus in another order.
  void run();

 private:
  bool finds_own_checkpoint() const;
  int load_or_start_anew();
  double train_epoch(int epoch);
  double train_step(const torch::Tensor& batch);
  double held_out_accuracy();
  void save(int epoch);
  void report(std::string_view text);
  void report_step(std::string_view text);

  const Options& options_;
  const WorkerEnv& world_;
  worker::Collective& ranks_;
  const std::string job_;
  Samples train_;
  Samples held_out_;
  Progress progress_;
  Net net_;
  torch::optim::SGD optimizer_;
  int epochs_done_;
  worker::DataParallel parallel_;
  worker::DistributedSampler sampler_;
};

}  // namespace ddprun::examples
