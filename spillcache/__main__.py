"""``python -m spillcache``."""

from spillcache.cli.main import run

if __name__ == "__main__":
    run()
