#!/usr/bin/python3 -I
"""rdma-nfsd as the Debian package has it: with the packages that came with it, before those of the system."""

import sys

sys.path.insert(0, "/usr/lib/rdma-nfsd")

from nfsd.cli import main

sys.exit(main())
