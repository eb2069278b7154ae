"""Compile the Triton kernels for an H100 or H200, and print as JSON what the assembler says."""

import json
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spacy_elmo.kernels import triton_cell

tools = triton.__path__[0] + "/backends/nvidia/bin/"
# Arguments that are not in the type of products.
TYPES = dict.fromkeys(("c", "c_previous", "d_c", "d_bias"), "*fp32") | {"clip": "fp32", "n": "i32"}


def run(tool, *args):
    command = [tools + tool, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def describe(kernel, product_type, **constants):
    """Compile for tensors and strides that are aligned, as those of the published shapes are."""
    signature, aligned = {}, {}
    constants |= {"H": 4096, "BLOCK": triton_cell.BLOCK}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in TYPES or name.endswith("_stride"):
            signature[name] = TYPES.get(name, "i32")
        else:
            signature[name] = "*" + product_type
        if name not in constants and signature[name] != "fp32":
            aligned[position,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": triton_cell.BLOCK // (8 * 32)}
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
for dtype in ("bf16", "fp32"):
    for keep in (True, False):
        kernel = triton_cell.forward_kernel
        results[f"forward {dtype} {keep}"] = describe(kernel, dtype, KEEP_GATES=keep)
    results[f"first {dtype}"] = describe(kernel, dtype, KEEP_GATES=True, addend=None)
    kernel = triton_cell.backward_kernel
    results[f"backward {dtype}"] = describe(kernel, dtype, ROWS=triton_cell.BIAS_ROWS)
json.dump(results, sys.stdout)
