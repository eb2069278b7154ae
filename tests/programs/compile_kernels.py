"""Compile the Triton kernels for an H100 or H200, and print as JSON what the assembler says."""

import json
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spacy_elmo.kernels import triton_adagrad, triton_cell, triton_softmax

tools = triton.__path__[0] + "/backends/nvidia/bin/"


def run(tool, *args):
    command = [tools + tool, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def describe(kernel, product_type, n_warps, absent=(), **constants):
    """Compile for tensors and strides that are aligned, as those of the published shapes are."""
    signature, aligned = {}, {}
    constants |= dict.fromkeys(absent)
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
    target, options = GPUTarget("cuda", 90, 32), {"num_warps": n_warps}
    compiled = triton.compile(source, target=target, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        summary = run("cuobjdump", "-res-usage", file.name)
        code = run("nvdisasm", "-c", file.name)
    accesses = re.findall(r"\b(?:LDG|STG|LDL|STL)[.\w]*", code)
    usage = re.findall(r"(REG|STACK|LOCAL):([0-9]+)", summary)
    return {"usage": {name: int(n) for name, n in usage}, "accesses": accesses}


# Of arguments that are not in the type of products.
TYPES = dict.fromkeys(
    ("c", "c_previous", "d_c", "d_bias", "bias", "loss", "target_logits"), "*fp32"
)
TYPES |= dict.fromkeys(("parameter", "gradient", "sums", "norm"), "*fp32")
TYPES |= {"targets": "*i64", "rows": "*i64", "clip": "fp32", "limit": "fp32", "rate": "fp32"}
TYPES |= dict.fromkeys(("n", "n_words", "width"), "i32")

results = {}
for dtype in ("bf16", "fp32"):
    cells = {"H": 4096, "BLOCK": triton_cell.BLOCK}
    warps = triton_cell.n_warps(triton_cell.BLOCK)
    for keep in (True, False):
        kernel = triton_cell.forward_kernel
        results[f"forward {dtype} {keep}"] = describe(
            kernel, dtype, warps, KEEP_GATES=keep, **cells
        )
    kernel = triton_cell.backward_kernel
    results[f"backward {dtype}"] = describe(kernel, dtype, warps, ROWS=triton_cell.ROWS, **cells)
    for absent in ((), ("target_logits",)):
        arguments = triton_softmax.softmax_kernel, dtype, triton_softmax.N_WARPS, absent
        results[f"softmax {dtype} {absent}"] = describe(*arguments, BLOCK=triton_softmax.BLOCK)
for absent in ((), ("rows",)):
    block = triton_adagrad.BLOCK if absent else 512
    kernel = triton_adagrad.adagrad_kernel
    results[f"adagrad {absent}"] = describe(kernel, "fp32", block // 256, absent, BLOCK=block)
json.dump(results, sys.stdout)
