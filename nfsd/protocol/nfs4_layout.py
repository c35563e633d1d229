"""NFSv4.1 operations on layouts and devices (RFC 8881 section 18), under the RFC's names.

Imports the declarations of types and layouts.
"""

from __future__ import annotations

from typing import Annotated

from nfsd.protocol.nfs4_errors import nfsstat4
from nfsd.protocol.nfs4_pnfs import (
    device_addr4,
    deviceid4,
    layout4,
    layoutiomode4,
    layoutreturn4,
    layouttype4,
    layoutupdate4,
)
from nfsd.protocol.nfs4_types import (
    ARRAY_LIMIT,
    bitmap4,
    count4,
    length4,
    nfs_cookie4,
    nfstime4,
    offset4,
    stateid4,
    verifier4,
)
from rpcrdma.xdr import DEFAULT, array, case, open_enum, struct, union


@struct
class GETDEVICEINFO4args:
    gdia_device_id: deviceid4
    gdia_layout_type: Annotated[int, open_enum(layouttype4)]
    gdia_maxcount: count4
    gdia_notify_types: bitmap4


@struct
class GETDEVICEINFO4resok:
    gdir_device_addr: device_addr4
    gdir_notification: bitmap4


@union(void=DEFAULT)
class GETDEVICEINFO4res:
    gdir_status: nfsstat4
    gdir_resok4: Annotated[GETDEVICEINFO4resok | None, case(nfsstat4.NFS4_OK)] = None
    gdir_mincount: Annotated[count4 | None, case(nfsstat4.NFS4ERR_TOOSMALL)] = None


@struct
class GETDEVICELIST4args:
    gdla_layout_type: Annotated[int, open_enum(layouttype4)]
    gdla_maxdevices: count4
    gdla_cookie: nfs_cookie4
    gdla_cookieverf: verifier4


@struct
class GETDEVICELIST4resok:
    gdlr_cookie: nfs_cookie4
    gdlr_cookieverf: verifier4
    gdlr_deviceid_list: Annotated[list[deviceid4], array(ARRAY_LIMIT)]
    gdlr_eof: bool


@union(void=DEFAULT)
class GETDEVICELIST4res:
    gdlr_status: nfsstat4
    gdlr_resok4: Annotated[GETDEVICELIST4resok | None, case(nfsstat4.NFS4_OK)] = None


newtime4 = nfstime4 | None
newoffset4 = offset4 | None


@struct
class LAYOUTCOMMIT4args:
    loca_offset: offset4
    loca_length: length4
    loca_reclaim: bool
    loca_stateid: stateid4
    loca_last_write_offset: newoffset4
    loca_time_modify: newtime4
    loca_layoutupdate: layoutupdate4


newsize4 = length4 | None


@struct
class LAYOUTCOMMIT4resok:
    locr_newsize: newsize4


@union(void=DEFAULT)
class LAYOUTCOMMIT4res:
    locr_status: nfsstat4
    locr_resok4: Annotated[LAYOUTCOMMIT4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class LAYOUTGET4args:
    loga_signal_layout_avail: bool
    loga_layout_type: Annotated[int, open_enum(layouttype4)]
    loga_iomode: layoutiomode4
    loga_offset: offset4
    loga_length: length4
    loga_minlength: length4
    loga_stateid: stateid4
    loga_maxcount: count4


@struct
class LAYOUTGET4resok:
    logr_return_on_close: bool
    logr_stateid: stateid4
    logr_layout: Annotated[list[layout4], array(ARRAY_LIMIT)]


@union(void=DEFAULT)
class LAYOUTGET4res:
    logr_status: nfsstat4
    logr_resok4: Annotated[LAYOUTGET4resok | None, case(nfsstat4.NFS4_OK)] = None
    logr_will_signal_layout_avail: Annotated[bool | None, case(nfsstat4.NFS4ERR_LAYOUTTRYLATER)] = None


@struct
class LAYOUTRETURN4args:
    lora_reclaim: bool
    lora_layout_type: Annotated[int, open_enum(layouttype4)]
    lora_iomode: layoutiomode4
    lora_layoutreturn: layoutreturn4


@union(void=(False,))
class layoutreturn_stateid:
    lrs_present: bool
    lrs_stateid: Annotated[stateid4 | None, case(True)] = None


@union(void=DEFAULT)
class LAYOUTRETURN4res:
    lorr_status: nfsstat4
    lorr_stateid: Annotated[layoutreturn_stateid | None, case(nfsstat4.NFS4_OK)] = None
