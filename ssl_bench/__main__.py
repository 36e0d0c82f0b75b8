"""``python -m ssl_bench`` is ``ssl-bench``."""

from ssl_bench.cli import main

if __name__ == "__main__":
    main()
