"""`python -m lowbit`: the `lowbit` command."""

from lowbit.cli import main

if __name__ == "__main__":
    main()
