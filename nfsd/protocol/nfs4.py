# ruff: noqa: F403
"""NFSv4.0, 4.1 and 4.2: every name of the protocol in one place; imports the modules that declare them."""

from __future__ import annotations

from nfsd.protocol.nfs4_acl import *
from nfsd.protocol.nfs4_attrs import *
from nfsd.protocol.nfs4_callback import *
from nfsd.protocol.nfs4_errors import *
from nfsd.protocol.nfs4_files import *
from nfsd.protocol.nfs4_layout import *
from nfsd.protocol.nfs4_open import *
from nfsd.protocol.nfs4_opnums import *
from nfsd.protocol.nfs4_ops import *
from nfsd.protocol.nfs4_pnfs import *
from nfsd.protocol.nfs4_session import *
from nfsd.protocol.nfs4_types import *
from nfsd.protocol.nfs4_v42 import *
