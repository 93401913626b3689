"""The `lowbit` command: one module per subcommand."""

from lowbit.cli.app import main

__all__ = ["main"]
