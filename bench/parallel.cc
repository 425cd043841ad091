// Steps of residual blocks of two linear layers with Adam, trained by several ranks in one WAY.
// bench/parallel runs it, beside bench/parallel_torch.py, which does the same. Started by ddprun:
//
//   bench-parallel WAY BLOCKS WIDTH ROWS STEPS REAL_TIME
//
// tensor: all ranks share each block. mesh: pairs of ranks share each block, and the pairs average
// gradients. sharded: ShardedParallel, each block a unit. local: parameters are averaged every four
// steps. pipeline: the ranks have as many blocks each, by 1F1B with four micro-batches. gpipe: the
// same by GPipe.
//
// REAL_TIME is 1 for steps that go before all other programs, or 0.
//
// Rank 0 prints the mean seconds of a step, its loss in the last one, and two sizes in bytes. The
// first is how much the memory of the rank has grown. The second one is that of its parameters,
// their gradients, Adam's state, and the buffer of local SGD's averages.
#include <ATen/Parallel.h>
#include <ddprun/data_parallel.h>
#include <ddprun/local_sgd.h>
#include <ddprun/optimizers.h>
#include <ddprun/pipeline.h>
#include <ddprun/process.h>
#include <ddprun/sharded_parallel.h>
#include <ddprun/tensor_parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <torch/nn.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using torch::nn::LinearOptions;

constexpr int kWarmUps = 5;  // steps that are not counted; local SGD's averages begin in them
constexpr double kRate = 1e-4;

struct Work {
  int blocks, width, rows, steps;
  bool real_time;
};

struct Done {
  double seconds, loss;
  std::int64_t grown, needed;  // bytes
};

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t width, const TensorGroup& group)
      : up(register_module("up", ColumnLinear(LinearOptions(width, 4 * width), group))),
        down(register_module("down", RowLinear(LinearOptions(4 * width, width), group))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::relu(up(x))); }
  ColumnLinear up;
  RowLinear down;
};
TORCH_MODULE(Block);

struct Net {
  torch::nn::Sequential all;
  std::vector<Block> blocks;
  std::vector<std::string> names;

  Net(const Work& work, const TensorGroup& group) : Net(work, group, 0, work.blocks) {}
  // Some of the blocks.
  Net(const Work& work, const TensorGroup& group, int first, int count) {
    for (int i = first; i < first + count; ++i) {
      torch::manual_seed(static_cast<std::uint64_t>(1 + i));
      blocks.emplace_back(work.width, group);
      all->push_back(blocks.back());
      names.push_back(std::to_string(i));
    }
  }
};

// Puts all threads of this process before those of other programs.
void go_first() {
  const sched_param least{.sched_priority = 1};
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (::sched_setscheduler(std::stoi(thread.path().filename()), SCHED_RR, &least) != 0)
      throw std::system_error(errno, std::generic_category(), "real-time priority");
  }
}

// The memory of this process, without what is free in it; what it shares counts in part. Files do
// not count: other programs have LibTorch's, too, and come and go.
std::int64_t own_bytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  std::int64_t sum = 0;
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if ((word == "Pss_Anon:" || word == "Pss_Shmem:") && file >> kib) sum += kib << 10;
  }
  return sum;
}

// The bytes of a rank's numbers, their gradients, and Adam's two for each.
std::int64_t bytes_needed(const std::vector<at::Tensor>& numbers) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : numbers) bytes += 4 * static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

// `pass(x)` makes forward and backward, and returns the loss; undefined: another rank has it.
// `step()` ends a step. `place`: ranks of one place have the same rows.
template <typename Pass, typename Step>
Done train_by(const Work& work, Collective& all, int place, Adam& optimizer, const Pass& pass,
              const Step& step) {
  torch::manual_seed(static_cast<std::uint64_t>(2 + place));
  const auto rows = torch::randn({work.rows, work.width});
  auto start = std::chrono::steady_clock::now();
  double loss_of_last = 0;
  for (int i = 0; i < kWarmUps + work.steps; ++i) {
    if (i == kWarmUps - 1 && work.real_time) go_first();
    if (i == kWarmUps) {
      all.barrier();
      start = std::chrono::steady_clock::now();
    }
    optimizer.zero_grad();
    const at::Tensor loss = pass(rows);
    step();
    loss_of_last = loss.defined() ? loss.template item<double>() : 0;
  }
  all.barrier();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const std::int64_t grown = own_bytes();
  all.barrier();  // a rank that has left would count no more in the memory that ranks share
  return {took.count() / work.steps, loss_of_last, grown,
          bytes_needed(optimizer.param_groups()[0].params())};
}

at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }

// The same with `forward(x)`, the net.
template <typename Forward, typename Step>
Done train(const Work& work, Collective& all, int place, Adam& optimizer, const Forward& forward,
           const Step& step) {
  const auto pass = [&](const at::Tensor& x) {
    const at::Tensor loss = loss_of(forward(x));
    loss.backward();
    return loss;
  };
  return train_by(work, all, place, optimizer, pass, step);
}

Done train_parts(const Work& work, Collective& all, int copies) {
  const Mesh mesh(all, {{"data", copies}, {"tensor", all.world_size() / copies}});
  Net net(work, TensorGroup(mesh.along("tensor")));
  Adam optimizer(net.all->parameters(), Adam::Options(kRate));
  if (copies == 1)
    return train(
        work, all, 0, optimizer, [&](const at::Tensor& x) { return net.all->forward(x); },
        [&] { optimizer.step(); });
  DataParallel parallel(net.all.ptr(), mesh.along("data"));
  return train(
      work, all, mesh.along("data").rank(), optimizer,
      [&](const at::Tensor& x) { return parallel.forward(net.all, x); },
      [&] { parallel.step(optimizer); });
}

Done train_tensor(const Work& work, Collective& all) { return train_parts(work, all, 1); }
Done train_mesh(const Work& work, Collective& all) { return train_parts(work, all, 2); }

Done train_sharded(const Work& work, Collective& all) {
  const auto alone = make_alone_collective();
  Net net(work, TensorGroup(*alone));
  ShardedParallel sharded(net.all.ptr(), all, net.names);
  Adam optimizer(sharded.shards(), Adam::Options(kRate));
  const auto forward = [&](at::Tensor x) {
    for (Block& block : net.blocks) x = sharded.forward(block, x);
    return x;
  };
  return train(work, all, all.rank(), optimizer, forward, [&] { sharded.step(optimizer); });
}

Done train_local(const Work& work, Collective& all) {
  const auto alone = make_alone_collective();
  Net net(work, TensorGroup(*alone));
  DataParallel parallel(net.all.ptr(), all);
  LocalSgd local(parallel, {.warmup_steps = 1, .period = 4});
  Adam optimizer(net.all->parameters(), Adam::Options(kRate));
  Done done = train(
      work, all, all.rank(), optimizer,
      [&](const at::Tensor& x) { return parallel.forward(net.all, x); },
      [&] { local.step(optimizer); });
  done.needed += done.needed / 4;  // the average's buffer is as large as the parameters
  return done;
}

Done train_stages(const Work& work, Collective& all, PipelineSchedule schedule) {
  const auto alone = make_alone_collective();
  const int mine = work.blocks / all.world_size();
  Net net(work, TensorGroup(*alone), mine * all.rank(), mine);
  Pipeline pipeline(pipeline_stage(net.all), all,
                    [](const at::Tensor& outputs, const at::Tensor&) { return loss_of(outputs); },
                    {.schedule = schedule});
  Adam optimizer(net.all->parameters(), Adam::Options(kRate));
  Done done = train_by(
      work, all, 0, optimizer, [&](const at::Tensor& x) { return pipeline.forward_backward(x, x); },
      [&] { optimizer.step(); });
  all.sum({&done.loss, 1});  // the last rank has it, and the others have 0
  return done;
}

Done train_pipeline(const Work& work, Collective& all) {
  return train_stages(work, all, PipelineSchedule::kOneForwardOneBackward);
}

Done train_gpipe(const Work& work, Collective& all) {
  return train_stages(work, all, PipelineSchedule::kGPipe);
}

const std::map<std::string, Done (*)(const Work&, Collective&)> kWays{
    {"tensor", train_tensor}, {"mesh", train_mesh},         {"sharded", train_sharded},
    {"local", train_local},   {"pipeline", train_pipeline}, {"gpipe", train_gpipe}};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 6 || !kWays.contains(words[0])) {
    fmt::print(stderr,
               "bench-parallel: expected tensor, mesh, sharded, local, pipeline or gpipe, "
               "and BLOCKS, WIDTH, ROWS, STEPS, REAL_TIME\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    const Process process = bootstrap();
    const Work work{std::stoi(words[1]), std::stoi(words[2]), std::stoi(words[3]),
                    std::stoi(words[4]), words[5] == "1"};
    // The first products of such sizes take memory that stays, whatever the number of blocks.
    kWays.at("tensor")({1, work.width, work.rows, 1, false}, *process.collective);
    const std::int64_t before = own_bytes();
    const Done done = kWays.at(words[0])(work, *process.collective);
    if (process.world.rank == 0)
      fmt::print("{:.6f} {:.9f} {} {}\n", done.seconds, done.loss, done.grown - before,
                 done.needed);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-parallel: {}\n", error.what());
    return 1;
  }
  return 0;
}
