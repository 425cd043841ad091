"""Accelerators that are files alone: /dev, /sys/class and /proc/driver of a mount namespace."""

import pathlib
import subprocess
import unittest

from support import DDPRUN, JobTest, main, with_variables

DEVICES = 4
# The real devices that a job needs, below a /dev of our own.
MOUNT = """
for name in null zero full random urandom tty; do touch $0/dev/$name; mount --bind /dev/$name $0/dev/$name; done
mkdir -p $0/dev/shm $0/dev/pts $0/class $0/driver
mount --bind /dev/shm $0/dev/shm; mount --bind /dev/pts $0/dev/pts; ln -sfn /proc/self/fd $0/dev/fd
mount --rbind $0/dev /dev; mount --bind $0/class /sys/class; mount --bind $0/driver /proc/driver
exec "$@"
"""
LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR",
         "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES")


def can_mount():
    return pathlib.Path("/proc/driver").is_dir() and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def nvidia(number):
    uuid = f"GPU-{number}a3f8c21-0000-0000-0000-000000000000"
    return {f"dev/nvidia{number}": "", f"driver/nvidia/gpus/0000:{number}b:00.0/information":
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"}


def amd(number):
    node = f"class/kfd/kfd/topology/nodes/{number + 1}"
    return {"dev/kfd": "", f"dev/dri/renderD{128 + number}": "", f"{node}/gpu_id": f"{53000 + number}\n",
            f"{node}/properties": f"cpu_cores_count 0\nsimd_count 304\ndrm_render_minor {128 + number}\n",
            "class/kfd/kfd/topology/nodes/0/gpu_id": "0\n", "class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 64\nsimd_count 0\n"}


def intel(number):
    name = f"renderD{128 + number}"
    return {f"dev/dri/{name}": "", f"class/drm/{name}/device/vendor": "0x8086\n",
            f"class/drm/{name}/device/uevent": f"DRIVER=xe\nPCI_SLOT_NAME=0000:{number}d:00.0\n"}


def ascend(number):
    return {f"dev/davinci{number}": "", "dev/davinci_manager": ""}


def gaudi(number):
    return {f"dev/accel/accel{number}": "", f"dev/accel/accel_controlD{number}": "",
            f"class/accel/accel{number}/device/uevent": "DRIVER=habanalabs\n", f"class/accel/accel{number}/device/module_id": f"{number + 4}\n"}


def trainium(number):
    return {f"dev/neuron{number}": ""}


@unittest.skipUnless(can_mount(), "a mount namespace needs CAP_SYS_ADMIN, and /proc/driver")
class Accelerators(JobTest):
    def node(self, *kinds):
        """The files of a node with four devices of each kind; the prefix that starts a program
        there."""
        tree = self.folder / "-".join(kind.__name__ for kind in kinds)
        for kind in kinds:
            for number in range(DEVICES):
                for name, text in kind(number).items():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    (tree / name).write_text(text)
        (tree / "dev").mkdir(parents=True, exist_ok=True)
        return "unshare", "--mount", "sh", "-ec", MOUNT, str(tree)

    def on(self, prefix, word, *flags, shown="WORLD_SIZE", **lists):
        """Starts a job there whose workers print a variable: (exit code, sorted values, stderr)."""
        script = self.script(f'#!/bin/sh\necho "${shown}"\n')
        env = {name: value for name, value in with_variables(OMP_NUM_THREADS="1").items() if name not in LISTS} | lists
        code, out, err = self.run_job(f"--nproc-per-node={word}", *flags, script, prefix=prefix, env=env)
        return code, sorted(out.split()), err

    def counts(self, prefix, word, workers, **lists):
        with self.subTest(word, **lists):
            self.assertEqual(self.on(prefix, word, **lists), (0, [str(workers)] * workers, ""))

    def refuses(self, prefix, word, said, **lists):
        with self.subTest(word, **lists):
            code, out, err = self.on(prefix, word, **lists)
            self.assertEqual((code, out, len(err.splitlines())), (1, [], 1), err)
            self.assertIn(said, err)

    def test_nvidia(self):
        node = self.node(nvidia)
        for word in "gpu", "auto":
            self.counts(node, word, 4)
        self.counts(node, "gpu", 2, CUDA_VISIBLE_DEVICES="2,0")
        self.counts(node, "gpu", 2, CUDA_VISIBLE_DEVICES="GPU-3a3f8c21,GPU-0a3f")
        self.counts(node, "gpu", 1, CUDA_VISIBLE_DEVICES="GPU-3a3f8c21,GPU-9")
        self.counts(node, "gpu", 1, CUDA_VISIBLE_DEVICES="MIG-11,MIG-22,MIG-33")
        self.refuses(node, "gpu", "hides 4 NVIDIA GPUs", CUDA_VISIBLE_DEVICES="-1")
        self.assertEqual(self.on(node, "gpu", "--virtual-local-rank", shown="CUDA_VISIBLE_DEVICES",
                                 CUDA_VISIBLE_DEVICES="MIG-11,MIG-22,MIG-33"), (0, ["MIG-11", "MIG-22", "MIG-33"], ""))

    def test_amd(self):
        node = self.node(amd)
        for word in "gpu", "auto":
            self.counts(node, word, 4)
            self.counts(node, word, 2, ROCR_VISIBLE_DEVICES="1,3")
            self.counts(node, word, 1, HIP_VISIBLE_DEVICES="2")
        self.counts(node, "gpu", 1, ROCR_VISIBLE_DEVICES="1,3", HIP_VISIBLE_DEVICES="1")
        self.refuses(node, "xpu", "no Intel GPU is visible")
        for variable in "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES":
            self.assertEqual(self.on(node, "gpu", "--virtual-local-rank", shown=variable), (0, ["0", "1", "2", "3"], ""))

    def test_intel(self):
        node = self.node(intel)
        for word in "gpu", "auto", "xpu":
            self.counts(node, word, 4)
            self.counts(node, word, 2, ZE_AFFINITY_MASK="1,3")
        self.refuses(node, "hpu", "no Gaudi is visible")
        self.assertEqual(self.on(node, "xpu", "--virtual-local-rank", shown="ZE_AFFINITY_MASK", ZE_AFFINITY_MASK="1,3"), (0, ["1", "3"], ""))

    def test_ascend(self):
        node = self.node(ascend)
        for word in "gpu", "auto", "npu":
            self.counts(node, word, 4)
            self.counts(node, word, 2, ASCEND_RT_VISIBLE_DEVICES="1,3")
        self.refuses(node, "xpu", "no Intel GPU is visible")
        self.assertEqual(self.on(node, "4", "--virtual-local-rank", shown="ASCEND_RT_VISIBLE_DEVICES"), (0, ["0", "1", "2", "3"], ""))

    def test_gaudi(self):
        node = self.node(gaudi)
        for word in "gpu", "auto", "hpu":
            self.counts(node, word, 4)
            self.counts(node, word, 2, HABANA_VISIBLE_MODULES="5,7")
        self.refuses(node, "npu", "no Ascend NPU is visible")
        self.assertEqual(self.on(node, "hpu", "--virtual-local-rank", shown="HABANA_VISIBLE_MODULES"), (0, ["4", "5", "6", "7"], ""))

    def test_the_doctor_says_how_gpus_reach_each_other(self):
        """With a nvidia-smi that is a script, and an IOMMU that is a file."""
        node = self.node(nvidia)
        tree = pathlib.Path(node[-1])
        for name, text in {"dev/nvidiactl": "", "class/iommu/dmar0": "", "cmdline": "ro quiet\n"}.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        self.script("""#!/bin/sh
case "$*" in
"topo -p2p r") printf ' \\tGPU0\\tGPU1\\tGPU2\\n GPU0\\tX\\tNS\\tOK\\n GPU1\\tNS\\tX\\tOK\\n GPU2\\tOK\\tOK\\tX\\n\\nLegend:\\n' ;;
*) for gpu in 0 1 2; do echo "$gpu, H100, 580.1, Enabled, 0, No, No"; done ;;
esac
""", "nvidia-smi")
        prefix = (*node, "sh", "-ec", 'mount --bind $0/cmdline /proc/cmdline; PATH=$1:$PATH; shift; exec "$@"', str(tree), str(self.folder))
        done = subprocess.run([*prefix, DDPRUN, "doctor"], capture_output=True, text=True, env=with_variables(NCCL_P2P_LEVEL="NVLINK"), timeout=60)
        lines = dict(line[5:].split(": ", 1) for line in done.stdout.splitlines())
        self.assertRegex(lines["peer access"], r"^none between GPU0 and GPU1 \(not supported\): .* — `nvidia-smi topo -m`", done)
        self.assertRegex(lines["IOMMU"], r"^dmar0 translates .* the first one hangs .* — `NCCL_P2P_DISABLE=1 ddprun …`", done)
        self.assertRegex(lines["NCCL_P2P_LEVEL"], "^NVLINK is no level; ", done)
        alone = subprocess.run([*self.node(ascend), DDPRUN, "doctor"], capture_output=True, text=True, env=with_variables(), timeout=60)
        self.assertIn("Ascend NPUs: 4", alone.stdout)
        self.assertNotRegex(alone.stdout, "peer access|IOMMU|ACS")

    def test_several_kinds(self):
        node = self.node(nvidia, ascend)
        self.counts(node, "gpu", 1, CUDA_VISIBLE_DEVICES="0", ASCEND_RT_VISIBLE_DEVICES="0,1")
        self.counts(node, "npu", 2, CUDA_VISIBLE_DEVICES="0", ASCEND_RT_VISIBLE_DEVICES="0,1")
        self.refuses(node, "hpu", "no Gaudi is visible")

    def test_devices_that_cannot_be_counted_are_never_taken_for_cpus(self):
        node = self.node(trainium)
        for word in "auto", "gpu":
            self.refuses(node, word, "/dev/neuron* (Trainium) cannot be counted, so give their number")
        self.counts(node, "2", 2)


if __name__ == "__main__":
    main()
