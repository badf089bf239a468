"""`python -m pagechat.bench`: the command pagechat-bench, where it is not installed."""

from pagechat.cli import bench_main

if __name__ == "__main__":
    bench_main()
