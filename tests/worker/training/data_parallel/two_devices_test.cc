// A model whose parts lie on two devices of one process, inside DataParallel.
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/simulated_devices.h"

namespace ddprun::worker {
namespace {

// The devices of the parts of the net.
struct Places {
  c10::Device middle = c10::kCPU;
  c10::Device entry = c10::kCPU;
  c10::Device exit = c10::kCPU;
};

// The bucket of entry and exit comes first, and is full last. If the middle is on another device,
// the thread of theirs launches both.
struct SplitNetImpl : torch::nn::Module {
  explicit SplitNetImpl(const Places& where) : places(where) {
    torch::manual_seed(3);
    middle = register_parameter("middle", torch::randn({5, 4}).to(places.middle));
    entry = register_parameter("entry", torch::randn({3, 5}).to(places.entry));
    exit = register_parameter("exit", torch::randn({4, 2}).to(places.exit));
    scale = register_buffer("scale", torch::ones({2}).to(places.exit));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor first = torch::tanh(torch::mm(x.to(places.entry), entry));
    const at::Tensor second = torch::tanh(torch::mm(first.to(places.middle), middle));
    return torch::mm(second.to(places.exit), exit) * scale;
  }
  Places places;
  at::Tensor middle, entry, exit, scale;
};
TORCH_MODULE(SplitNet);

// Trains with this rank's rows. Returns all numbers at the end.
std::vector<at::Tensor> train(SplitNet& net, Collective& ranks, const DataParallelOptions& options,
                              bool with_hook = false) {
  DataParallel parallel(net.ptr(), ranks, options);
  if (with_hook) parallel.comm_hook(all_reduce_hook());
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(10 * step + ranks.rank());
    const at::Tensor x = torch::randn({6, 3});
    optimizer.zero_grad();
    {
      const DataParallel::NoSync silent(parallel);
      parallel.forward(net, x).square().mean().backward();
    }
    parallel.forward(net, x + 1).square().mean().backward();
    parallel.step(optimizer);
  }
  const auto record = parallel.log_record();
  const bool is_split = net->places.middle != net->places.entry;
  EXPECT_EQ(record.numbers.at("is_multi_device_module"), is_split ? 1 : 0);
  EXPECT_EQ(parallel.buckets().size(), is_split || options.find_unused_parameters ? 2U : 1U);
  std::vector<at::Tensor> numbers;
  for (const at::Tensor& parameter : net->parameters())
    numbers.push_back(parameter.detach().to(c10::kCPU));
  return numbers;
}

// Streams other than the default ones: a sum that does not wait for them is a fault.
SplitNet split_net(int first = 0, int second = 1) {
  devices::set_up();
  devices::set_stream(0, 3);
  devices::set_stream(1, 5);
  return SplitNet(Places{devices::device(first), devices::device(second), devices::device(second)});
}

TEST(TwoDevices, HaveTheBitsOfOne) {
  struct Case {
    const char* name;
    DataParallelOptions options;
    bool with_hook = false;
  };
  for (const Case& one : {Case{"views", {}}, Case{"copies", {.gradient_as_bucket_view = false}},
                          Case{"static graph", {.static_graph = true}}, Case{"hook", {}, true}}) {
    run_torch_ranks(2, [&one](Collective& ranks) {
      SplitNet net = split_net();
      SplitNet plain(Places{});
      const auto expected = train(plain, ranks, one.options, one.with_hook);
      const auto gpus = devices::on_device(ranks, 0);
      const auto found = train(net, *gpus, one.options, one.with_hook);
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(torch::equal(found[i], expected[i])) << one.name << ", parameter " << i;
      EXPECT_EQ(devices::faults(), "") << one.name;
      EXPECT_GE(devices::launches(0), 4) << one.name;
      EXPECT_GE(devices::launches(1), 4) << one.name;
    });
  }
}

// The ranks' devices may have other numbers, if they divide the model in the same way.
TEST(TwoDevices, AreDividedAlikeByAllRanks) {
  run_torch_ranks(2, [](Collective& ranks) {
    const int first = ranks.rank();
    SplitNet net = split_net(first, 1 - first);
    const auto gpus = devices::on_device(ranks, first);
    train(net, *gpus, {});
    EXPECT_EQ(devices::faults(), "");
    const auto device = [](int index) { return devices::device(index); };
    SplitNet other(Places{device(0), device(ranks.rank() == 0 ? 1 : 0), device(1)});
    const std::string why = message_of([&] { const DataParallel parallel(other.ptr(), *gpus); });
    EXPECT_NE(why.find("device 0 of those of its model"), std::string::npos) << why;
    EXPECT_NE(why.find("It is 'entry' on rank 1: all ranks must build the same model."),
              std::string::npos)
        << why;
  });
}

TEST(TwoDevices, HaveNoPartOnTheCpu) {
  run_torch_ranks(2, [](Collective& ranks) {
    split_net();
    SplitNet net(Places{.middle = devices::device(0), .exit = devices::device(1)});
    const auto gpus = devices::on_device(ranks, 0);
    const std::string why = message_of([&] { const DataParallel parallel(net.ptr(), *gpus); });
    EXPECT_EQ(why,
              "parameter 'entry' is on cpu, and the collective 'shm' works on simulated: the whole "
              "model must be on devices of that kind");
  });
}

// On the CPU two parts of a process are on one device.
TEST(TwoDevices, AreOneOnTheCpu) {
  run_torch_ranks(2, [](Collective& ranks) {
    SplitNet net(Places{});
    train(net, ranks, {});
    EXPECT_EQ(message_of([&] { ranks.on_gpu(1); }),
              "on_gpu(1): the collective 'shm' works on the CPU");
  });
}

}  // namespace
}  // namespace ddprun::worker
