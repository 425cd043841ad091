#include "worker/training/data_parallel/output_sink.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace ddprun::worker {
namespace {

namespace autograd = torch::autograd;

class OutputSink final : public autograd::Node {
 public:
  explicit OutputSink(std::weak_ptr<std::function<void()>> on_backward)
      : on_backward_(std::move(on_backward)) {}

  // Undefined gradients stay undefined: a parameter below must not take zeros for a gradient.
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (const auto call = on_backward_.lock()) (*call)();
    return std::move(gradients);
  }

  std::string name() const override { return "ddprun::OutputSink"; }

 private:
  std::weak_ptr<std::function<void()>> on_backward_;
};

}  // namespace

void sink_outputs(const std::vector<at::Tensor*>& outputs,
                  const std::shared_ptr<std::function<void()>>& on_backward) {
  std::vector<at::Tensor*> with_graph;
  autograd::edge_list edges;
  for (at::Tensor* const output : outputs) {
    if (!output->defined() || !output->grad_fn()) continue;
    with_graph.push_back(output);
    edges.push_back(autograd::impl::gradient_edge(*output));
  }
  if (with_graph.empty()) return;
  // deleteNode: a long graph is taken down without deep recursion.
  const std::shared_ptr<autograd::Node> sink(new OutputSink(on_backward), autograd::deleteNode);
  sink->set_next_edges(std::move(edges));
  for (at::Tensor* const output : with_graph) {
    at::Tensor copy;
    {
      const at::NoGradGuard no_grad;
      copy = output->clone();
    }
    autograd::set_history(copy, sink);
    *output = std::move(copy);
  }
}

}  // namespace ddprun::worker
