"""How big is my job? Hours and bytes of a bulk embedding.

    python examples/bulk_size.py --sentences 1e9 --tokens 20 --rate 8178 --cores 1024

`--rate` is that of one core: measure it with a few thousand lines and `--threads 1`.
"""

from __future__ import annotations

import argparse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=float, required=True, help="rows of the input")
    parser.add_argument("--tokens", type=float, default=20, help="tokens per sentence (20)")
    parser.add_argument("--rate", type=float, required=True, help="tokens per second of one core")
    parser.add_argument("--cores", type=int, default=1, help="of all machines together (1)")
    parser.add_argument("--width", type=int, default=512, help="of a vector (512)")
    parser.add_argument("--layers", type=int, default=3, help="of the biLM (3)")
    parser.add_argument("--bytes", type=int, default=2, help="2 for float16, 4 for float32 (2)")
    args = parser.parse_args()
    for name, value in vars(args).items():
        if value <= 0:
            parser.error(f"--{name} must be more than 0, found {value}")
    core_hours = args.sentences * args.tokens / args.rate / 3600
    mean = args.sentences * args.width * args.bytes
    print(f"core-hours     {core_hours:12,.1f}")
    print(f"hours          {core_hours / args.cores:12,.1f}")
    print(f"written per s  {size(mean / core_hours / 3600 * args.cores):>12}")
    print(f"pooled         {size(mean):>12}")
    print(f"tokens         {size(mean * args.tokens):>12}")
    print(f"all layers     {size(mean * args.tokens * args.layers):>12}")


def size(n_bytes: float) -> str:
    units = ["B", "KB", "MB", "GB", "TB"]
    while n_bytes >= 1000 and len(units) > 1:
        n_bytes /= 1000
        del units[0]
    return f"{n_bytes:,.1f} {units[0]}"


if __name__ == "__main__":
    main()
