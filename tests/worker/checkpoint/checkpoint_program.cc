// Checkpoints beside Python's, for checkpoint_parity_test.py:
//
//   checkpoint_program train FROM TO OPTIMIZER STEPS   FROM may be "-": a new net
//   checkpoint_program weights FROM TO PLAN KEY        a module of the plan, loaded; KEY may be ""
//   checkpoint_program show FILE                       every value, a line each
//   checkpoint_program copy FROM TO                    read, and written again
//   checkpoint_program save-for-ever FILE              a line after each
//   checkpoint_program async-for-ever KIND PATH        the same of AsyncCheckpoint
//   checkpoint_program distributed KIND FROM TO STEPS  by all ranks of a job; FROM, TO may be "-"
//   checkpoint_program failed-saves FOLDER             by all ranks: a line for each error
//   checkpoint_program tied FOLDER                     by all ranks: saved, loaded and compared
//   checkpoint_program whole FOLDER                    loads what async-for-ever has saved
//
// A KIND is plain, zero or sharded: who has the optimizer's state. For ever, it may be file.
#include <c10/util/Exception.h>
#include <ddprun/checkpoint.h>
#include <ddprun/collective.h>
#include <ddprun/optimizers.h>
#include <ddprun/process.h>
#include <ddprun/sharded_parallel.h>
#include <ddprun/zero_optimizer.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/module_values.h"
#include "worker/checkpoint/storage.h"

namespace {

namespace worker = ddprun::worker;
using namespace ddprun;  // NOLINT(google-build-using-namespace)
using ddprun::Value;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        std::vector<torch::Tensor> parameters) {
  if (kind == "sgd") {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.01).momentum(0.9));
  }
  if (kind == "adam") {
    return std::make_unique<torch::optim::Adam>(parameters,
                                                torch::optim::AdamOptions(0.01).amsgrad(true));
  }
  if (kind == "adamw") {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
  }
  if (kind == "rmsprop") return std::make_unique<torch::optim::RMSprop>(parameters, 0.01);
  throw std::runtime_error("no optimizer " + kind);
}

// The same numbers as in Python's twin.
torch::Tensor batch(std::int64_t step) {
  const auto numbers = torch::arange(20, torch::kDouble).view({5, 4});
  return numbers.mul(0.1).add(static_cast<double>(step)).sin().to(torch::kFloat);
}

struct Trained {
  Trained() {
    torch::manual_seed(3);
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false)));
    net->push_back(torch::nn::BatchNorm1d(3));
    net->push_back(torch::nn::Linear(3, 2));
  }

  void train(torch::optim::Optimizer& optimizer, std::int64_t first, std::int64_t steps) {
    for (std::int64_t step = first; step < first + steps; ++step) {
      optimizer.zero_grad();
      net->forward(batch(step)).pow(2).sum().backward();
      optimizer.step();
    }
  }

  torch::nn::Sequential net;
  std::unique_ptr<Collective> ranks = make_alone_collective();
};

int train(const std::string& from, const std::string& to, const std::string& kind, int steps) {
  Trained run;
  const auto optimizer = make_optimizer(kind, run.net->parameters());
  const CheckpointRun state{*run.net, *optimizer, *run.ranks};
  CheckpointInfo info{.arch = "tiny"};
  if (from != "-") {
    const auto loaded = load_checkpoint(from, state);
    info = loaded.info;
    fmt::print("epoch={} arch={} best={} optimizer={} rng={} prefix={}\n", info.epoch, info.arch,
               info.best_prec1, loaded.optimizer, loaded.rng, describe(loaded.prefix));
  }
  run.train(*optimizer, info.epoch, steps);
  info.epoch += steps;
  info.best_prec1 = 0.5;
  save_checkpoint(to, state, info, {.is_best = true});
  return 0;
}

// A module with any names. A line of the plan: `parameter NAME SIZE…`, `buffer NAME SIZE…`, or
// `tied NAME OTHER`.
class Planned {
 public:
  explicit Planned(const std::string& plan) {
    std::ifstream lines(plan);
    for (std::string line; std::getline(lines, line);) add(line);
  }

  torch::nn::Module& module() { return *root_; }

 private:
  void add(const std::string& line) {
    std::istringstream words(line);
    std::string kind, name;
    words >> kind >> name;
    const auto dot = name.rfind('.');
    torch::nn::Module& owner = at(dot == std::string::npos ? "" : name.substr(0, dot));
    const std::string own_name = name.substr(dot == std::string::npos ? 0 : dot + 1);
    if (kind == "tied") {
      std::string other;
      words >> other;
      owner.register_parameter(own_name, parameters_.at(other));
      return;
    }
    const std::vector<std::int64_t> sizes{std::istream_iterator<std::int64_t>(words), {}};
    if (kind == "parameter") {
      parameters_[name] = owner.register_parameter(own_name, torch::zeros(sizes));
    } else {
      owner.register_buffer(own_name, torch::zeros(sizes));
    }
  }

  torch::nn::Module& at(const std::string& path) {
    if (path.empty()) return *root_;
    if (const auto known = modules_.find(path); known != modules_.end()) return *known->second;
    const auto dot = path.rfind('.');
    torch::nn::Module& owner = at(dot == std::string::npos ? "" : path.substr(0, dot));
    auto child = std::make_shared<torch::nn::Module>();
    owner.register_module(path.substr(dot == std::string::npos ? 0 : dot + 1), child);
    return *(modules_[path] = child);
  }

  std::shared_ptr<torch::nn::Module> root_ = std::make_shared<torch::nn::Module>();
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  std::map<std::string, torch::Tensor> parameters_;
};

int weights(const std::string& from, const std::string& to, const std::string& plan,
            const std::string& key) {
  Planned planned(plan);
  const auto optimizer = make_optimizer("sgd", planned.module().parameters());
  const auto ranks = make_alone_collective();
  const CheckpointRun run{planned.module(), *optimizer, *ranks};
  const auto loaded = load_checkpoint(from, run, {.weights_key = key});
  fmt::print("key={} others={} how={} optimizer={}\n", loaded.weights_key,
             fmt::join(loaded.other_weights, ","), describe(loaded), loaded.optimizer);
  save_checkpoint(to, run, {});
  return 0;
}

std::uint64_t hash_of(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.contiguous();
  std::uint64_t hash = 0xCBF29CE484222325U;
  const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
  for (std::size_t i = 0; i < flat.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001B3U;
  return hash;
}

void show(const std::string& path, const Value& value, worker::TensorReader& reader) {
  if (const auto* dict = value.as<Value::Dict>()) {
    for (const auto& [key, item] : dict->entries) {
      show(path + "/" + worker::printable_key(key), item, reader);
    }
  } else if (const auto* items = value.items()) {
    fmt::print("{} {} {}\n", path, value.type_name(), items->size());
    for (std::size_t i = 0; i < items->size(); ++i) {
      show(fmt::format("{}/{}", path, i), (*items)[i], reader);
    }
  } else if (const auto* tensor = value.as<TensorValue>()) {
    const torch::Tensor read = reader.read(*tensor).value();
    fmt::print("{} tensor {} [{}] {:016x}\n", path, worker::storage_name(tensor->storage->type),
               fmt::join(tensor->sizes, ", "), hash_of(read));
  } else if (const auto* whole = value.as<std::int64_t>()) {
    fmt::print("{} int {}\n", path, *whole);
  } else if (const auto* real = value.as<double>()) {
    fmt::print("{} float {}\n", path, *real);
  } else if (const auto* text = value.as<std::string>()) {
    fmt::print("{} str {}\n", path, *text);
  } else if (const auto* truth = value.as<bool>()) {
    fmt::print("{} bool {}\n", path, *truth ? "True" : "False");
  } else {
    fmt::print("{} None\n", path);
  }
}

int save_for_ever(const std::string& path) {
  Trained run;
  run.net->push_back(torch::nn::Linear(1000, 1000));  // a file that takes a while
  const auto optimizer = make_optimizer("adam", run.net->parameters());
  for (CheckpointInfo info;; ++info.epoch) {
    save_checkpoint(path, {*run.net, *optimizer, *run.ranks}, info, {.is_best = true});
    fmt::print("{}\n", info.epoch);
    std::fflush(stdout);
  }
}

// A net of odd sizes, so that shards begin inside of rows, and an Adam over all ranks.
class DistributedRun {
 public:
  DistributedRun(const std::string& kind, std::int64_t width)
      : process_(bootstrap()), ranks_(*process_.collective) {
    torch::manual_seed(3);
    net_->push_back(torch::nn::Linear(7, width));
    net_->push_back(torch::nn::BatchNorm1d(width));
    net_->push_back(torch::nn::Linear(width, 3));
    if (kind == "sharded") {
      sharded_ = std::make_unique<ShardedParallel>(net_.ptr(), ranks_,
                                                   std::vector<std::string>{"0", "1", "2"});
      optimizer_ = std::make_unique<Adam>(sharded_->shards(), options());
    } else if (kind == "zero") {
      zero_ = std::make_unique<ZeroOptimizer<Adam>>(net_->parameters(), ranks_, options());
    } else {
      optimizer_ = std::make_unique<Adam>(net_->parameters(), options());
    }
  }

  Collective& ranks() { return ranks_; }

  CheckpointRun state() {
    return {*net_, zero_ != nullptr ? zero_->own_part() : *optimizer_, ranks_, nullptr,
            sharded_.get()};
  }

  void loaded() {
    if (zero_ != nullptr) zero_->take_options();
  }

  // All ranks train on one batch, so that their gradients need no sum.
  void step(std::int64_t number) {
    const auto numbers = torch::arange(35, torch::kDouble).view({5, 7});
    auto batch = numbers.mul(0.1).add(static_cast<double>(number)).sin().to(torch::kFloat);
    if (sharded_ == nullptr) {
      net_->zero_grad();
      net_->forward(batch).pow(2).sum().backward();
      if (zero_ != nullptr) {
        zero_->step();
      } else {
        optimizer_->step();
      }
      return;
    }
    optimizer_->zero_grad();
    auto first = net_[0]->as<torch::nn::Linear>();
    auto norm = net_[1]->as<torch::nn::BatchNorm1d>();
    auto last = net_[2]->as<torch::nn::Linear>();
    batch = forward(first, batch);
    batch = forward(norm, batch);
    forward(last, batch).pow(2).sum().backward();
    sharded_->step(*optimizer_);
  }

 private:
  static Adam::Options options() { return Adam::Options(0.01).amsgrad(true); }

  template <typename Layer>
  torch::Tensor forward(Layer* layer, const torch::Tensor& batch) {
    return sharded_->forward(layer, batch);
  }

  Process process_;
  Collective& ranks_;
  torch::nn::Sequential net_;
  std::unique_ptr<ShardedParallel> sharded_;
  std::unique_ptr<ZeroOptimizer<Adam>> zero_;
  std::unique_ptr<Adam> optimizer_;
};

constexpr std::int64_t kWide = 20'000;  // a folder that takes a while

int distributed(const std::string& kind, const std::string& from, const std::string& to,
                std::int64_t steps, std::int64_t width = 5) {
  DistributedRun run(kind, width);
  CheckpointInfo info{.arch = "tiny"};
  info.extra.set("words", Value("two words"));
  if (from != "-") {
    const auto loaded = load_distributed_checkpoint(from, run.state());
    run.loaded();
    info.epoch = loaded.info.epoch;
    if (run.ranks().rank() == 0)
      fmt::print("epoch={} arch={} extra={} optimizer={} rng={} ranks={}\n", info.epoch,
                 loaded.info.arch, loaded.info.extra.entries.size(), loaded.optimizer, loaded.rng,
                 loaded.world_size);
  }
  for (std::int64_t step = 0; step < steps; ++step) run.step(info.epoch++);
  if (to == "-") return 0;
  AsyncCheckpoint checkpoint(run.ranks());
  checkpoint.save_distributed(to, run.state(), info);
  run.step(1000);  // nothing of it may be in the folder
  checkpoint.wait();
  return 0;
}

// Rank 0 says which epoch is whole on disk, and the training goes on meanwhile.
int async_for_ever(const std::string& kind, const std::string& path) {
  DistributedRun run(kind, kWide);
  AsyncCheckpoint checkpoint(run.ranks());
  for (CheckpointInfo info;; ++info.epoch) {
    if (kind == "file") {
      checkpoint.save(path, run.state(), info);
    } else {
      checkpoint.save_distributed(path, run.state(), info);
    }
    run.step(info.epoch);
    checkpoint.wait();
    if (run.ranks().rank() == 0) fmt::print("{}\n", info.epoch);
    std::fflush(stdout);
  }
}

// A weight with two names, which only the first ranks have a part of, and one without elements.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    const auto weight = torch::rand({3, 7});
    into = register_parameter("a", weight);
    register_parameter("b", into);
    large = register_parameter("large", torch::rand({7, 64}));
    register_parameter("nothing", torch::zeros({0, 5}));
  }
  torch::Tensor forward(const torch::Tensor& batch) {
    return batch.matmul(into.t()).matmul(into).matmul(large);
  }
  torch::Tensor into, large;
};
TORCH_MODULE(Tied);

// A sharded net that has trained, or that is only filled.
struct TiedRun {
  explicit TiedRun(Collective& ranks) : sharded(net.ptr(), ranks, {""}) {}

  void train(std::int64_t step) {
    optimizer.zero_grad();
    const auto batch = torch::arange(35, torch::kFloat).view({5, 7}).mul(0.1).add(step).sin();
    sharded.forward(net, batch).pow(2).sum().backward();
    sharded.step(optimizer);
  }

  Tied net;
  ShardedParallel sharded;
  Adam optimizer{sharded.shards(), Adam::Options(0.01)};
};

int tied(const std::string& folder) {
  const auto process = bootstrap();
  Collective& ranks = *process.collective;
  torch::manual_seed(3);
  TiedRun saved(ranks);
  saved.train(0);
  save_distributed_checkpoint(folder, {*saved.net, saved.optimizer, ranks, nullptr, &saved.sharded},
                              {});
  TiedRun loaded(ranks);
  load_distributed_checkpoint(folder,
                              {*loaded.net, loaded.optimizer, ranks, nullptr, &loaded.sharded});
  saved.train(1);
  loaded.train(1);
  const auto expected = saved.sharded.full_state_dict();
  for (const auto& item : loaded.sharded.full_state_dict())
    if (!item.value().equal(expected[item.key()]))
      throw std::runtime_error(item.key() + " has other bits");
  return 0;
}

// All ranks catch what a rank's save has met, and train and save on.
int failed_saves(const std::filesystem::path& folder) {
  DistributedRun run("plain", 5);
  AsyncCheckpoint checkpoint(run.ranks());
  CheckpointInfo info;
  const auto save = [&](const std::string& kind, const std::filesystem::path& path) {
    try {
      if (kind == "file") {
        checkpoint.save(path, run.state(), info);
      } else {
        checkpoint.save_distributed(path, run.state(), info);
      }
    } catch (const CheckpointError& error) {
      fmt::print("rank {}, {}: {}\n", run.ranks().rank(), kind, error.what());
    }
    run.step(0);
    run.ranks().barrier();
  };
  for (const std::string kind : {"file", "distributed"}) {
    info = {.epoch = 7};
    if (kind == "distributed") {
      info.extra.set("a.b", Value("one"));
      info.extra.set("a", Value(Value::Dict{{{"b", Value("other")}}}));
      save(kind, folder / "equal keys");
      info.extra = {};
    }
    save(kind, folder / "missing" / kind);
    save(kind, folder / "not begun");  // throws the error of the one before
    save(kind, folder / kind);
  }
  checkpoint.wait();
  return 0;
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 5 && words[0] == "train") {
    return train(words[1], words[2], words[3], std::stoi(words[4]));
  }
  if (words.size() == 5 && words[0] == "weights") {
    return weights(words[1], words[2], words[3], words[4]);
  }
  if (words.size() == 2 && words[0] == "show") {
    const auto file = worker::read_checkpoint_file(words[1]).value();
    worker::TensorReader reader;
    show("", file.value, reader);
    return 0;
  }
  if (words.size() == 3 && words[0] == "copy") {
    const auto file = worker::read_checkpoint_file(words[1]).value();
    worker::write_checkpoint_file(words[2], file.value).value();
    return 0;
  }
  if (words.size() == 2 && words[0] == "save-for-ever") return save_for_ever(words[1]);
  if (words.size() == 3 && words[0] == "async-for-ever") return async_for_ever(words[1], words[2]);
  if (words.size() == 2 && words[0] == "failed-saves") return failed_saves(words[1]);
  if (words.size() == 2 && words[0] == "tied") return tied(words[1]);
  if (words.size() == 2 && words[0] == "whole")
    return distributed("plain", words[1], "-", 0, kWide);
  if (words.size() == 5 && words[0] == "distributed") {
    return distributed(words[1], words[2], words[3], std::stoll(words[4]));
  }
  throw std::runtime_error(
      "expected train, weights, show, copy, save-for-ever, async-for-ever, failed-saves, tied, "
      "whole or distributed, and their arguments");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_program: {}\n", error.what());
    return 1;
  }
}
