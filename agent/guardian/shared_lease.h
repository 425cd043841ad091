// The agent's side of the memory that it shares with its guardian. It says until when the workers
// may live if nothing else is said. The guardian ends them then if the agent is stopped
// (agent/core/lease_guard.h). Such a death is no failure of a worker. Loop's thread. Owned by
// Agent.
#pragma once

#include <sys/types.h>

#include <functional>

#include "agent/core/clock.h"
#include "agent/guardian/guardian.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

class SharedLease {
 public:
  // `note` may be null: then nobody looks. `look` is called when the wait of hides_deaths() is
  // over.
  SharedLease(asio::io_context& loop, LeaseNote* note, std::function<void()> look);

  // Zero: the workers may live for ever, or there are none.
  void workers_until(Time until);
  // The guardian has ended workers of this attempt.
  bool has_ended_workers();
  // The guardian ended the workers a moment ago. The session mostly says next that the others went
  // on without this node. So the deaths are passed over until then.
  bool hides_deaths();
  void attempt_begins();

 private:
  LeaseNote* const note_;
  const pid_t guardian_;
  Alarm alarm_;
  Time hides_until_{};
  bool has_ended_workers_ = false;
};

}  // namespace ddprun::agent
