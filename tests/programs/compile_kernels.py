"""Compile the Triton kernels for an H100 or H200, and print as JSON what the assembler says."""

import json
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spacy_elmo.bilm import triton_cell

tools = triton.__path__[0] + "/backends/nvidia/bin/"


def run(tool, *args):
    command = [tools + tool, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def describe(kernel, gate_type, **constants):
    signature, aligned = {}, {}
    constants["BLOCK"] = triton_cell.BLOCK
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name == "clip":
            signature[name] = "fp32"
        else:  # As all tensors and strides of the published shapes are.
            cells = name in ("c", "c_previous", "d_c", "d_bias")
            pointer = "*fp32" if cells else "*" + gate_type
            is_number = name == "n" or name.endswith("stride")
            signature[name] = "i32" if is_number else pointer
            aligned[position,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": triton_cell.n_warps(triton_cell.BLOCK)}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        summary = run("cuobjdump", "-res-usage", file.name)
        code = run("nvdisasm", "-c", file.name)
    accesses = re.findall(r"\b(?:LDG|STG|LDL|STL)[.\w]*", code)
    usage = re.findall(r"(REG|STACK|LOCAL):([0-9]+)", summary)
    return {"usage": {name: int(n) for name, n in usage}, "accesses": accesses}


results = {}
for gate_type in ("bf16", "fp32"):
    for keep in (True, False):
        name = f"forward {gate_type} {keep}"
        results[name] = describe(triton_cell.forward_kernel, gate_type, KEEP_GATES=keep, H=4096)
    results[f"backward {gate_type}"] = describe(
        triton_cell.backward_kernel, gate_type, H=4096, ROWS=triton_cell.ROWS
    )
json.dump(results, sys.stdout)
