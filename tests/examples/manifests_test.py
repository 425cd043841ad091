"""The manifests of examples/kubernetes/ against Kubernetes' own schemas and Kubeflow's Python
models, and what all of them must have.

They run in .venv-manifests/, which scripts/setup.sh --tests makes, or in the Python that
DDPRUN_MANIFESTS_PYTHON names.
"""

import copy
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
REQUIREMENTS = ROOT / "scripts" / "manifests-requirements.txt"
DDPRUN = os.environ.get("DDPRUN", str(ROOT / "build" / "bin" / "ddprun"))
KUBERNETES = "1.31"
# Below these keys names are anybody's.
FREE = {"labels", "annotations", "selector", "matchLabels", "requests", "limits", "stringData", "nodeSelector"}


def lacking():
    """Why the manifests cannot be checked here, or None."""
    from importlib import metadata
    for line in REQUIREMENTS.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, version = line.split("==")
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"{name} {version} is not installed (scripts/{REQUIREMENTS.name})"
        if found != version:
            return f"{name} is {found} and not {version}"
    return None


own = ROOT / ".venv-manifests" / "bin" / "python"
other = os.environ.get("DDPRUN_MANIFESTS_PYTHON") or (str(own) if own.exists() else None)
if other and other != sys.executable and __name__ == "__main__":
    os.execv(other, [other, *sys.argv])
WHY = lacking()
if not WHY:
    import kubernetes_validate
    import kubeflow.training.models as training
    import kubeflow_trainer_api.models as trainer
    import yaml


def known_of(model, document, path=""):
    """Raises ValueError for a key that a generated model of Kubeflow's does not have. Two
    generators made them: pydantic and swagger."""
    if hasattr(model, "model_fields"):
        fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    else:
        fields = {alias: model.openapi_types[name] for name, alias in model.attribute_map.items()}
    for key, value in document.items():
        if key not in fields:
            raise ValueError(f"{path}.{key} is not known")
        inner = inner_model(fields[key])
        if key in FREE or inner is None:
            continue
        for one in value if isinstance(value, list) else value.values() if is_map(fields[key]) else [value]:
            if inner == "pod":
                pod_of(one)
            else:
                known_of(inner, one, f"{path}.{key}")


def is_map(kind):
    return str(kind).startswith("dict(") or "Dict[" in str(kind)


def inner_model(kind):
    """The model in Optional[List[Model]], `list[Model]` or `dict(str, Model)`; None for a plain
    value."""
    text = str(kind)
    if "PodTemplateSpec" in text:
        return "pod"
    for name in re.findall(r"\w+", text)[::-1]:
        for models in training, trainer:
            if hasattr(models, name):
                return getattr(models, name)
    return None


def pod_of(template):
    """A pod template is a pod but for its kind."""
    unknown = set(template) - {"metadata", "spec"}
    if unknown:
        raise ValueError(f"{unknown} in a pod template")
    metadata = {"name": "pod", **template.get("metadata", {})}
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, KUBERNETES, strict=True)


def check(document):
    """Raises an exception for a document that the cluster would refuse, or whose words it would not
    know."""
    models = {"JobSet": ("jobset.x-k8s.io/v1alpha2", lambda: trainer.JobsetV1alpha2JobSet),
              "TrainJob": ("trainer.kubeflow.org/v1alpha1", lambda: trainer.TrainerV1alpha1TrainJob),
              "TrainingRuntime": ("trainer.kubeflow.org/v1alpha1", lambda: trainer.TrainerV1alpha1TrainingRuntime),
              "PyTorchJob": ("kubeflow.org/v1", lambda: training.KubeflowOrgV1PyTorchJob)}
    kind = document.get("kind")
    if kind not in models:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    version, model = models[kind]
    if document.get("apiVersion") != version:
        raise ValueError(f"apiVersion of {kind}")
    known_of(model(), document, kind)
    if kind == "PyTorchJob" and not {"Worker"} <= set(document["spec"]["pytorchReplicaSpecs"]) <= {"Master", "Worker"}:
        raise ValueError("replicas that the operator does not know")
    if hasattr(model(), "from_dict"):
        model().from_dict(document)  # types, and what must be there


def keys_of(document, path=()):
    """The path of each key that has a meaning."""
    if isinstance(document, list):
        for number, value in enumerate(document):
            yield from keys_of(value, (*path, number))
    elif isinstance(document, dict):
        for key, value in document.items():
            yield (*path, key)
            if key not in FREE:
                yield from keys_of(value, (*path, key))


def objects_with(key, value):
    """Each object in a document that has the key, outer ones first."""
    if isinstance(value, dict):
        if key in value:
            yield value
        value = value.values()
    elif not isinstance(value, list):
        return
    for inner in value:
        yield from objects_with(key, inner)


def with_typo(document, path):
    """A copy with two letters of this key changed places, or one letter more."""
    changed = copy.deepcopy(document)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1] + "x"] = place.pop(path[-1])
    return changed


@unittest.skipIf(WHY, WHY)
class Manifests(unittest.TestCase):
    def documents(self):
        for path in sorted(FOLDER.glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                yield f"{path.name} {document['kind']}", document

    def test_all_kinds_are_there(self):
        kinds = {document["kind"] for _, document in self.documents()}
        self.assertEqual(kinds, {"Service", "Job", "Secret", "JobSet", "PyTorchJob", "TrainJob", "TrainingRuntime"})

    def test_the_cluster_knows_each_word(self):
        for name, document in self.documents():
            with self.subTest(name):
                check(document)

    def test_a_typo_in_any_key_is_found(self):
        count = 0
        for name, document in self.documents():
            for path in keys_of(document):
                if path in (("metadata",), ("kind",)):  # without a kind it is checked as nothing
                    continue
                count += 1
                with self.subTest(name, path=path), self.assertRaises(Exception):
                    check(with_typo(document, path))
        print(f"{count} typos, all found")

    def test_a_wrong_value_is_found(self):
        for name, document in self.documents():
            with self.subTest(name), self.assertRaises(Exception):
                check({**document, "spec": "x", "stringData": "x"})

    def pods(self):
        for name, document in self.documents():
            for pod in objects_with("containers", document):
                yield name, pod

    def test_each_pod_has_what_ddprun_wants(self):
        names = []
        for name, pod in self.pods():
            with self.subTest(name):
                names.append(name)
                container, = pod["containers"]
                env = {one["name"]: one for one in container["env"]}
                self.assertEqual(env["TORCHELASTIC_ERROR_FILE"]["value"], container["terminationMessagePath"])
                ports = {port["name"]: port["containerPort"] for port in container["ports"]}
                for probe in "startupProbe", "livenessProbe":
                    self.assertEqual(str(ports[container[probe]["httpGet"]["port"]]), env["TORCHELASTIC_HEALTH_CHECK_PORT"]["value"])
                self.assertEqual(set(env["DDPRUN_TOKEN"]["valueFrom"]["secretKeyRef"]), {"name", "key"})
                mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
                volumes = {volume["name"]: volume for volume in pod["volumes"]}
                self.assertEqual(volumes[mounts["/dev/shm"]]["emptyDir"]["medium"], "Memory")
                self.assertIn(mounts["/tmp"], volumes)
                flags = dict(flag.lstrip("-").split("=") for flag in container["args"] if flag.startswith("--"))
                self.assertLess(int(flags["shutdown-timeout"]) + 2, pod["terminationGracePeriodSeconds"])
                self.assertEqual(flags["exit-codes"], "detailed")
        self.assertEqual(len(names), 4)

    def test_a_job_that_was_told_to_end_is_no_failure(self):
        """Exit code 122, wherever a pod that failed is counted."""
        seen = []
        for name, document in self.documents():
            for job in objects_with("template", document):
                if "containers" not in job["template"].get("spec", {}):
                    continue  # a template of jobs
                seen.append(name)
                if document["kind"] == "PyTorchJob":
                    self.assertEqual(job["restartPolicy"], "OnFailure")
                    continue
                rule, = job["podFailurePolicy"]["rules"]
                self.assertEqual(rule, {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [122]}}, name)
                # Such a policy asks for it.
                self.assertEqual(job["template"]["spec"]["restartPolicy"], "Never")
        self.assertEqual(len(seen), 4)

    def test_ddprun_knows_the_flags(self):
        text = subprocess.run([DDPRUN, "--help"], capture_output=True, text=True, check=True).stdout
        for name, pod in self.pods():
            for word in pod["containers"][0]["args"]:
                if word.startswith("--"):
                    self.assertIn(f" {word.split('=')[0]}=", text, name)


class Slurm(unittest.TestCase):
    def test_the_scripts_are_scripts(self):
        paths = sorted((ROOT / "examples" / "slurm").glob("*.sh"))
        self.assertEqual(len(paths), 2)
        for path in paths:
            subprocess.run(["bash", "-n", path], check=True)
            lines = path.read_text().splitlines()
            self.assertTrue(any(line.startswith("#SBATCH --ntasks-per-node=1") for line in lines))
            steps = [number for number, line in enumerate(lines) if line.startswith("srun ") and " ddprun " in line]
            self.assertTrue(steps)
            # From Slurm 22.05 on srun does not take --cpus-per-task from sbatch.
            self.assertLess(lines.index('export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'), steps[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
