#!/usr/bin/env python3
"""Takes the C++ samples out of README.md and the engine's headers, so that a test can compile what
readers copy.

    extract_samples.py FILE       writes one translation unit with all samples, if FILE does not
                                  hold the same already
    extract_samples.py --check    prints the samples' names; exit code 1 if one is missing, empty or
                                  new

README's sample is a whole program. It comes first and as printed, so that it must include what it
uses. The sample of a header is part of a function. PROLOGUE and the function's parameters have the
names that it uses and does not declare.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[3]
FENCED = re.compile(r"^```cpp\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^//   .*\n|^//\n(?=//   ))+", re.MULTILINE)

PROGRAM = "README.md"
# Header -> the parameters of the function that its sample becomes the body of.
FRAGMENTS = {f"worker/include/ddprun/{header}.h": parameters for header, parameters in {
    "captured_step": "Net net, DataParallel& parallel, Adam& optimizer, Collective& ranks, torch::Tensor images, torch::Tensor labels, const std::vector<Batch>& batches",
    "checkpoint": "Net net, SGD& optimizer, Collective& ranks, DataParallel& parallel, int epoch, bool best",
    "comm_hook": "DataParallel& parallel",
    "data_loader": "const TensorDataset& dataset, Collective& ranks, int epochs, Train train",
    "data_parallel": "ddprun::Process& process, const std::vector<Batch>& batches",
    "join": "Net net, DataParallel& parallel, ZeroOptimizer<SGD>& optimizer, Loss loss, const std::vector<Batch>& batches",
    "metrics": "Collective& ranks, double batch_loss, double right, double samples",
    "process": "Net net",
    "replicas": "Net net, const torch::Tensor& images, const torch::Tensor& labels, SGD& optimizer",
    "sync_batch_norm": "ddprun::Process& process, torch::nn::Sequential sequential",
    "tensor_collective": "ddprun::Process& process, const torch::Tensor& largest",
}.items()}
PROLOGUE = """
#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include <ddprun/captured_step.h>
#include <ddprun/checkpoint.h>
#include <ddprun/data_parallel.h>
#include <ddprun/metrics.h>
#include <ddprun/process.h>
#include <ddprun/replicas.h>
#include <ddprun/sync_batch_norm.h>
#include <ddprun/tensor_collective.h>
#include <ddprun/tensor_dataset.h>
#include <ddprun/zero_optimizer.h>

namespace samples {

using namespace ddprun;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(784, 10)); }
  torch::Tensor forward(const torch::Tensor& images) { return torch::log_softmax(layer(images), 1); }
  torch::nn::Linear layer = nullptr;
};
TORCH_MODULE(Net);

using Batch = std::pair<torch::Tensor, torch::Tensor>;
using Loss = std::function<torch::Tensor(torch::Tensor, torch::Tensor)>;
using Train = std::function<void(TensorBatch&)>;
"""


class Unusable(Exception):
    pass


def the_only(blocks, source, what):
    if len(blocks) != 1:
        raise Unusable(f"{source}: {len(blocks)} {what}; extract_samples.py knows of one")
    if not blocks[0].strip():
        raise Unusable(f"{source}: its sample is empty")
    return blocks[0]


def program():
    """README's sample, as printed."""
    return the_only(FENCED.findall((ROOT / PROGRAM).read_text()), PROGRAM, "blocks ```cpp")


def fragment(header):
    """The sample in the comment that opens a header, without `//   `."""
    opening = (ROOT / header).read_text().partition("\n#pragma once")[0] + "\n"
    block = the_only(INDENTED.findall(opening), header, "blocks of lines that begin with `//   `")
    return "".join(line[5:] or "\n" for line in block.removeprefix("//\n").splitlines(keepends=True))


def translation_unit():
    parts = [f"// Made by extract_samples.py. From {PROGRAM}:\n", program(), PROLOGUE]
    for header, parameters in FRAGMENTS.items():
        name = pathlib.Path(header).stem
        parts.append(f"\n// From {header}:\nint {name}_sample({parameters}) {{\n"
                     f"{textwrap.indent(fragment(header), '  ')}  return 0;\n}}\n")
    return "".join(parts) + "\n}  // namespace samples\n"


def check():
    print(f"{PROGRAM}: {len(program().splitlines())} lines")
    for header in FRAGMENTS:
        print(f"{header}: {len(fragment(header).splitlines())} lines")


def main():
    if len(sys.argv) != 2:
        return __doc__
    try:
        if sys.argv[1] == "--check":
            return check()
        text, file = translation_unit(), pathlib.Path(sys.argv[1])
        # An edit elsewhere in README.md must not cost the 20 s that LibTorch's headers take to
        # compile.
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    except (Unusable, OSError) as error:
        return f"extract_samples.py: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
