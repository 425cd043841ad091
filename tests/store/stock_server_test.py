"""Our client against stock PyTorch servers: stock_server_test.py <store_client test program>."""

import os
import subprocess
import sys

import stock

stock.use_torch()

import torch.distributed as dist  # noqa: E402


def main():
    for use_libuv in (True, False):
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=use_libuv, wait_for_workers=False)
        environment = dict(os.environ, DDPRUN_TEST_STORE=f"127.0.0.1:{server.port}")
        if not use_libuv:
            environment["DDPRUN_TEST_STORE_LEGACY"] = "1"
        print(f"libuv={use_libuv} port={server.port}", flush=True)
        done = subprocess.run([sys.argv[1], "--gtest_brief=1"], env=environment, timeout=2 * stock.PATIENCE_S)
        assert done.returncode == 0, f"our client failed against PyTorch's server, libuv={use_libuv}"


if __name__ == "__main__":
    main()
