#!/usr/bin/env python3
"""Writes older_metadata.pkl beside this file: python_metadata.pkl as Python 3.11.0 to 3.11.3
pickles it. Those write a member of an enum as getattr(class, name). Run it with such a Python; it
needs no PyTorch, since the classes are made here. One tensor gets a dtype that is not known."""

import enum
import pathlib
import pickle
import sys
import types

FOLDER = pathlib.Path(__file__).resolve().parent
MEMBERS = {0: "TORCH_CONTIGUOUS_FORMAT", 1: "TORCH_CHANNELS_LAST", 2: "TORCH_PRESERVE_FORMAT"}


class Call:
    """A function that is only pickled."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def module_of(name):
    """Imports of it, and of its parents, find what is made here."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    return sys.modules[name]


def made(module, name):
    """A stand-in for a class, a function or a dtype of PyTorch."""
    owner = module_of(module)
    if not hasattr(owner, name):
        if name == "_MEM_FORMAT_ENCODING":
            value = enum.Enum(name, {text: number for number, text in MEMBERS.items()}, module=module)
        elif name == "Size":
            value = type(name, (tuple,), {"__module__": module, "__reduce__": lambda self: (type(self), (tuple(self),))})
        elif name == "_get_layout":
            def value(text):
                return Call(value, text)
            value.__module__, value.__name__, value.__qualname__ = module, name, name
        elif module == "torch":
            value = Dtype(name)
        else:
            value = type(name, (Kept,), {"__module__": module})
        setattr(owner, name, value)
    return getattr(owner, name)


class Kept:
    """An object that is its state alone."""

    state = None

    def __setstate__(self, state):
        self.state = state

    def __getstate__(self):
        return self.state


class Dtype:
    """Pickled as the global torch.<name>."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return made(module, name) if module.startswith("torch") else super().find_class(module, name)


if __name__ == "__main__":
    if "getattr" not in str(enum.Enum.__reduce_ex__.__code__.co_names):
        sys.exit("this Python pickles enums in another way: expected 3.11.0 to 3.11.3")
    module_of("torch")
    Dtype.__module__ = "torch"
    data = Reader((FOLDER / "python_metadata.pkl").open("rb")).load()
    properties = data.state["state_dict_metadata"]["model.1.bias"].state["properties"]
    properties.state = (made("torch", "float4_e2m1fn_x2"), *properties.state[1:])
    (FOLDER / "older_metadata.pkl").write_bytes(pickle.dumps(data))
