#include <ATen/autocast_mode.h>
#include <ddprun/amp.h>
#include <fmt/format.h>

#include <stdexcept>

namespace ddprun {

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf)
    throw std::invalid_argument(
        fmt::format("autocast to {}: expected Half or BFloat16", c10::toString(dtype)));
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace ddprun
