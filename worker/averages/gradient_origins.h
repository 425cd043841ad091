// Whose gradients lie in `.grad` of each parameter: the average of all ranks, or what this rank has computed
// alone. A step on the latter makes the ranks part, and nothing would say so. The rule knows no ranks, and
// compares no numbers: an average may be changed in place, or replaced before the next forward(), as clipping
// does it. GradientReducer owns it and calls it from the training thread and the autograd thread, never from
// both at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/averages/named_parameter.h"

namespace ddprun::worker {

class GradientOrigins {
 public:
  // The parameters must outlive this.
  explicit GradientOrigins(const std::vector<NamedParameter>& parameters)
      : parameters_(parameters), marks_(parameters.size()) {}

  // A forward() has ended whose gradients shall be averaged; or one under NoSync.
  void begin(bool averaged);

  // backward() has added a gradient that takes part in no sum.
  void add_own(std::size_t parameter);

  // `.grad` is the average of all ranks.
  void set_average(std::size_t parameter);
  bool is_average(std::size_t parameter) const;
  // An average has moved: it is in the tensor that is `.grad` now.
  void follow(std::size_t parameter);

  // No parameter has a gradient any more.
  void clear();

  // Why nobody may step on the gradients that are there; nothing: all are averages, or there are none.
  std::optional<std::string> why_own() const;

 private:
  // How a gradient of this rank alone has come about.
  enum class Own : std::uint8_t { kNo, kUnderNoSync, kWithoutForward };
  struct Mark {
    Own own = Own::kNo;
    bool fresh = false;  // averaged, and no forward() since
    // The `.grad` with the average. Weak: it holds the address, and no values.
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> average{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  };

  std::string name_all(Own own) const;

  const std::vector<NamedParameter>& parameters_;
  std::vector<Mark> marks_;
  bool silent_ = false;  // the last forward() was under NoSync
  bool begun_ = false;   // a forward() that averages came, and no gradient since
};

}  // namespace ddprun::worker
