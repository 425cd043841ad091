// Tells whose gradients lie in `.grad` of each parameter: the average of all ranks, or those of
// this rank alone. A step on the latter makes the ranks part, and nothing would say so. The rule
// knows no ranks, and compares no numbers. A program may change an average in place, as clipping
// does it, or replace it before the step. GradientReducer owns it and calls it from the training
// thread and the autograd thread, never from both at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/training/tensors/averages/named_parameter.h"

namespace ddprun::worker {

class GradientOrigins {
 public:
  // The parameters must outlive this.
  explicit GradientOrigins(std::span<const NamedParameter> parameters);

  // A forward() has ended whose gradients shall be averaged; or one under NoSync.
  void begin(bool averaged);

  // backward() has added a gradient that takes part in no sum.
  void add_own(std::size_t parameter);

  // `.grad` is the average of all ranks.
  void set_average(std::size_t parameter);
  bool is_average(std::size_t parameter) const;
  // An average has moved: it is in the tensor that is `.grad` now.
  void follow(std::size_t parameter);
  // An optimizer steps these parameters. A `.grad` that the program sets afterwards is no average
  // any more.
  void step(std::span<const std::size_t> stepped);

  // No parameter has a gradient any more.
  void clear();

  // Some gradient was made under NoSync, and no sum has taken it since.
  bool any_silent() const;
  // Says why no rank may step on the gradients that are there. Nothing if all are averages, or none
  // is there.
  std::optional<std::string> why_own() const;

 private:
  // How a gradient of this rank alone has come about.
  enum class OwnReason : std::uint8_t { kNo, kUnderNoSync, kWithoutForward };
  struct Mark {
    bool is_fresh_average() const { return fresh && own == OwnReason::kNo; }

    OwnReason own = OwnReason::kNo;
    bool fresh = false;  // averaged, and neither a forward() nor a step since
    // A `.grad` that the program had put in place of the average when the optimizer stepped. Weak:
    // it holds the address, and no values.
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> replaced{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  };

  std::string name_all(OwnReason own) const;

  std::span<const NamedParameter> parameters_;
  std::vector<Mark> marks_;
  bool silent_ = false;  // the last forward() was under NoSync
  bool begun_ = false;   // a forward() that averages came, and no gradient since
};

}  // namespace ddprun::worker
