#include "worker/collective/shm/shm_setup.h"

#include <cstdint>

#include "base/log.h"
#include "worker/collective/shm/shm_layout.h"

namespace ddprun::worker {
namespace {

constexpr const char* kControlPurpose = "the ranks' control area";

Result<ShmSegment> create_control(const ShmJob& job, Exchange& exchange) {
  const std::size_t bytes = control_bytes(static_cast<std::size_t>(job.ranks));
  auto control = ShmSegment::create(bytes, kControlPurpose);
  if (control) {
    if (auto done = control->reserve(0, bytes, false, kControlPurpose); !done)
      control = done.error();
  }
  if (control) {
    Header& header = ControlView{control->data(), static_cast<std::size_t>(job.ranks)}.header();
    header.magic = kControlMagic;
    header.version = kControlVersion;
    header.ranks = static_cast<std::uint32_t>(job.ranks);
  }
  // A failure is announced too: the others must not wait for a segment that never comes.
  const auto told = exchange.announce(name_or_failure(control));
  if (!control) throw LoggedError(control.error().message());
  if (!told) return told.error();
  return control;
}

// Magic number and version can differ only if the ranks run different builds of the program.
Result<ShmSegment> open_control(const ShmJob& job, Exchange& exchange) {
  auto name = exchange.hear();
  if (!name) return name.error();
  if (name->starts_with(kFailureMark)) throw LoggedError(name->substr(1));
  auto control = ShmSegment::open(*name, control_bytes(static_cast<std::size_t>(job.ranks)));
  if (!control) return control;
  const Header& header = ControlView{control->data(), static_cast<std::size_t>(job.ranks)}.header();
  if (header.magic != kControlMagic || header.version != kControlVersion) {
    return Error(ErrorCode::kProtocol,
                 "shared memory " + *name +
                     " is not this version's control area: all ranks must run the same build");
  }
  return control;
}

}  // namespace

std::string logged(const Error& error) {
  log::error(error.message());
  return error.message();
}

std::string name_or_failure(const Result<ShmSegment>& segment) {
  return segment ? segment->name() : kFailureMark + logged(segment.error());
}

Result<ShmSegment> set_up_control(const ShmJob& job, Exchange& exchange) {
  return job.rank == 0 ? create_control(job, exchange) : open_control(job, exchange);
}

}  // namespace ddprun::worker
