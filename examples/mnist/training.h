// One training run on this rank: the net, its optimizer, the data, and the loop over epochs, which
// all ranks run at the same time. It owns the net, the optimizer and the data. The options and the
// process belong to the caller and must outlive it. The training thread only. Failures are
// exceptions.
#pragma once

#include <torch/optim/sgd.h>

#include <string>
#include <string_view>

#include "examples/mnist/net.h"
#include "examples/mnist/options.h"
#include "examples/mnist/progress.h"
#include "examples/mnist/ranks.h"
#include "worker/collective/mean.h"
#include "worker/data/distributed_sampler.h"
#include "worker/reducer/data_parallel.h"
#include "worker/startup/bootstrap.h"

namespace ddprun::examples {

class Training {
 public:
  // All ranks must call it. They start from the same checkpoint, or from the weights of rank 0. A
  // restarted or resized job goes on from options.checkpoint if it has saved that file itself. With
  // options.resume any job goes on from it. Otherwise a file found there is renamed to
  // `<file>.old`. The launcher's cookie tells whether a file is the job's own. It is of one node:
  // if rank 0 moves to another one, only options.resume goes on. A launcher other than ddprun gives
  // no cookie; then the run id tells after a restart, and several jobs may share it.
  Training(const Options& options, worker::Process& process, Samples train, Samples held_out);

  // Trains to the last epoch. Rank 0 reports on stdout. Its last lines are `loss=<of the last
  // epoch, all digits>`, `weights=<checksum>` and `accuracy=<share>`. Two runs that start alike end
  // with the same bits. With one rank or two this also holds for a run that was resumed from a
  // checkpoint. With more ranks its last bits may differ from those of an undisturbed run: the
  // first step of a process uses other buckets, and so it adds gradients in another order.
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
