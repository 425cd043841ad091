// On which stream gradients are added: that of the pass, also where the hooks were made on another.
#include "worker/training/tensors/averages/gradient_hooks.h"

#include <c10/core/TensorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include "tests/worker/streams_alone.h"

namespace ddprun::worker {
namespace {

// It has no memory: nobody computes with it.
at::Tensor tensor_on(c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), nullptr,
                       false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<float>());
  tensor.set_requires_grad(true);
  return tensor;
}

TEST(GradientHooks, MoveToTheStreamOfThePass) {
  const StreamsAlone& guard = StreamsAlone::registered();
  const c10::Device device(guard.type(), 0);
  const std::vector<NamedParameter> parameters = {{"one", tensor_on(device)},
                                                  {"two", tensor_on(device)}};
  GradientHooks hooks(parameters, [](std::size_t) {});
  const auto streams = [&] {
    std::vector<c10::StreamId> ids;
    for (const auto* node : hooks.nodes()) ids.push_back(node->input_metadata(0).stream().id());
    return ids;
  };
  EXPECT_FALSE(hooks.renew());
  EXPECT_EQ(streams(), (std::vector<c10::StreamId>{0, 0}));
  guard.exchangeStream(StreamsAlone::stream(device, 3));
  EXPECT_TRUE(hooks.renew());
  EXPECT_EQ(streams(), (std::vector<c10::StreamId>{3, 3}));
  EXPECT_FALSE(hooks.renew());
  guard.exchangeStream(StreamsAlone::stream(device, 0));
  EXPECT_TRUE(hooks.renew());
  EXPECT_EQ(streams(), (std::vector<c10::StreamId>{0, 0}));
}

}  // namespace
}  // namespace ddprun::worker
