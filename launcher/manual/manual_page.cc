#include "launcher/manual/manual_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "launcher/manual/roff.h"
#include "launcher/options/flag_table.h"
#include "launcher/options/help.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kHead = R"(.SH NAME
ddprun, ddprun\-launch \- start, watch, restart and clean up distributed training jobs
.SH SYNOPSIS
.B ddprun
.RI [ OPTION ].\|.\|.
.I SCRIPT
.RI [ ARGUMENT ].\|.\|.
.br
.B ddprun
.RI [ OPTION ].\|.\|.
.B doctor
.RB [ \-\-json ]
.RI [ SCRIPT ]
.br
.B ddprun shims on
|
.B off
.SH DESCRIPTION
.B ddprun
starts
.I SCRIPT
in several worker processes, on one node or on many, watches them, restarts them and leaves
nothing behind.
It is a drop\-in for
.BR torchrun :
it takes the same options and variables, and gives workers the same environment.
.PP
A file that is a program, or that has a #! line of something else than Python, runs as it is.
Everything else is run by Python: by
.BR PYTHON_EXEC ,
else by the python3 beside
.B ddprun
where that is the bin folder of a virtual or conda environment, else by the python3 on
.BR PATH .
.PP
.B ddprun\-launch
is the same program.
It hands
.I SCRIPT
\-\-local\-rank=K, as torch.distributed.launch does, unless \-\-use\-env is given.
.SH OPTIONS
Options end at
.IR SCRIPT .
They can be written with underscores.
Each has a default, and most have a variable, which counts where the option is not given.
)";

struct Entry {
  std::string_view name;
  std::string_view text;
};

constexpr std::array kVariables = {
    Entry{"PYTHON_EXEC", "The interpreter of Python scripts."},
    Entry{"DDPRUN_TOKEN, DDPRUN_TOKEN_FILE",
          "The secret of a job of several nodes, or a file with it. Without them the id of the "
          "rendezvous stands in."},
    Entry{"OMP_NUM_THREADS",
          "Handed to the workers. If it is not set, they get a worker's part of "
          "SLURM_CPUS_PER_TASK, else 1 if there are several."},
    Entry{"DDPRUN_HISTORY",
          "1: each node writes history.jsonl into the job's log folder, for `ddprun report`."},
    Entry{
        "DDPRUN_STRAGGLER_WINDOW",
        "The seconds between two samples of each rank's steps, 20 by default, by which slow ranks "
        "are found. 0: none are taken."},
    Entry{"DDPRUN_NOTICE",
          "Set for each worker if notices can come: a file that appears with one, and has the step "
          "after which all ranks save."},
    Entry{"DDPRUN_DEADLINE",
          "Set for each worker if Slurm says when it ends the job, in seconds after 1970."},
    Entry{"CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ZE_AFFINITY_MASK, "
          "ONEAPI_DEVICE_SELECTOR, ASCEND_RT_VISIBLE_DEVICES, HABANA_VISIBLE_MODULES",
          "The devices that --nproc-per-node counts by its words gpu, auto, xpu, npu and hpu."},
    Entry{"TORCHELASTIC_ERROR_FILE",
          "The file to which the error of the worker that failed first is copied."},
    Entry{"RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
          "Set for each worker, with others of torchrun's."},
};

constexpr std::array kExitCodes = {
    Entry{"0", "All workers ended with 0."},
    Entry{"1",
          "A worker failed, the rendezvous failed, a node was lost, or a signal ended the job."},
    Entry{"2", "The command line is wrong."},
    Entry{"others",
          "With --exit-codes=detailed: the worker's own code, or 128 and its signal; 120 "
          "all restarts are spent; 121 the rendezvous failed; 122 a signal ended the job; "
          "123 the launcher could not go on."},
};

constexpr std::array kExamples = {
    Entry{"ddprun --nproc-per-node=2 train.py --epochs 3", "Two workers on this node."},
    Entry{"ddprun --nnodes=2 --node-rank=0 --master-addr=node01 --nproc-per-node=gpu train.py",
          "The first of two nodes; on the other one --node-rank=1. A worker for each GPU."},
    Entry{
        "ddprun --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=node01 --max-restarts=3 train.py",
        "Two to four nodes, which may come and go."},
    Entry{"ddprun --nproc-per-node=8 doctor train.py",
          "Looks whether this node can run that job, and says what to type if not."},
};

// `N|cpu|auto`: words to be typed are bold, what stands for any text is slanted.
std::string metavar(const Flag& flag) {
  const auto typed = value_words(flag);
  std::string text;
  std::string_view rest = flag.metavar;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('|'), rest.size());
    const auto word = rest.substr(0, end);
    const bool is_typed = std::find(typed.begin(), typed.end(), word) != typed.end();
    text += fmt::format("{}\\f{}{}\\fR", text.empty() ? "" : "|", is_typed ? 'B' : 'I', roff(word));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return text;
}

std::string option(const Flag& flag) {
  const bool value = flag.kind == FlagKind::kValue;
  std::string text = ".TP\n";
  if (flag.letter != 0) text += fmt::format("\\fB\\-{}\\fR, ", flag.letter);
  text += fmt::format("\\fB\\-\\-{}\\fR{}\n", roff(flag.name), value ? "=" + metavar(flag) : "");
  text += roff(flag.help) + "\n";
  std::string more;
  if (value && !flag.standard.empty()) more += fmt::format("Default: {}. ", roff(flag.standard));
  if (flag.from_environment) more += fmt::format("Variable: {}.", pet_variable(flag));
  return more.empty() ? text : text + ".br\n" + more + "\n";
}

std::string options(FlagOwner owner) {
  std::string text;
  for (const Flag& flag : flag_table())
    if (flag.owner == owner) text += option(flag);
  return text;
}

template <typename Entries>
std::string section(std::string_view title, const Entries& entries) {
  std::string text = fmt::format(".SH {}\n", title);
  for (const Entry& entry : entries)
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(entry.name), roff(entry.text));
  return text;
}

}  // namespace

std::string manual_page(std::string_view version) {
  return fmt::format(".TH DDPRUN 1 \"\" \"ddprun {}\" \"User Commands\"\n", roff(version)) +
         std::string(kHead) + ".SS Those of torchrun (a unique beginning is enough)\n" +
         options(FlagOwner::kTorchrun) + ".SS Those of ddprun (by their whole names)\n" +
         options(FlagOwner::kDdprun) + section("ENVIRONMENT", kVariables) +
         section("EXIT STATUS", kExitCodes) + section("EXAMPLES", kExamples);
}

}  // namespace ddprun::launcher
