// Options of load_checkpoint(), and how a file's names of tensors differed from the module's. Plain
// values.
#pragma once

#include <string>

namespace ddprun::worker {

// Others' names have the names of wrappers in them: "module." of DistributedDataParallel,
// "_orig_mod." of torch.compile, the attribute of a LightningModule. Empty: nothing was changed.
struct PrefixChange {
  std::string stripped;   // from the start of each of the file's keys: "module._orig_mod."
  std::string taken_out;  // from the middle: "_orig_mod."
  std::string added;      // to the start of each
};
// For people: "'module.' was stripped from its keys"; empty if nothing was changed.
std::string describe(const PrefixChange& change);

struct LoadOptions {
  bool strict_prefix = false;  // keys must be the module's, as they are
  // The key of the weights in the file: "model_ema"; "app.model" is below the key "app". Also a
  // start of names: "state_dict.net" are the tensors of `state_dict` whose names begin with "net.".
  // Empty: they are searched for.
  std::string weights_key = {};
  bool weights_only = false;  // neither the optimizer's state, random numbers nor buckets
};

}  // namespace ddprun::worker
