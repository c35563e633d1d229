#!/usr/bin/python3 -I
"""rdma-nfsd in the Debian package: it imports the Python packages that come with it before those of the system."""

import sys

sys.path.insert(0, "/usr/lib/rdma-nfsd")

from nfsd.cli import main

sys.exit(main())
