"""`python -m fedclade` is the command `fedclade`."""

from fedclade.cli import main

main()
