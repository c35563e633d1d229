"""NFSv4's callback operations (RFC 8881 section 20, RFC 7862 section 16), under the RFCs' names.

Imports the declarations of types, attributes, layouts and operations.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from nfsd.protocol.nfs4_attrs import fattr4
from nfsd.protocol.nfs4_errors import nfsstat4
from nfsd.protocol.nfs4_open import open_delegation4
from nfsd.protocol.nfs4_pnfs import deviceid4, layoutiomode4, layouttype4
from nfsd.protocol.nfs4_types import (
    ARRAY_LIMIT,
    BODY_LIMIT,
    bitmap4,
    component4,
    fsid4,
    length4,
    lock_owner4,
    nfs_cookie4,
    nfs_fh4,
    offset4,
    sequenceid4,
    sessionid4,
    slotid4,
    stateid4,
    verifier4,
)
from nfsd.protocol.nfs4_v42 import write_response4
from rpcrdma.xdr import DEFAULT, array, case, opaque, open_enum, struct, uint32, union


@struct
class CB_GETATTR4args:
    fh: nfs_fh4
    attr_request: bitmap4


@struct
class CB_GETATTR4resok:
    obj_attributes: fattr4


@union(void=DEFAULT)
class CB_GETATTR4res:
    status: nfsstat4
    resok4: Annotated[CB_GETATTR4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class CB_RECALL4args:
    stateid: stateid4
    truncate: bool
    fh: nfs_fh4


@struct
class CB_RECALL4res:
    status: nfsstat4


@struct
class CB_ILLEGAL4res:
    status: nfsstat4


class layoutrecall_type4(IntEnum):
    LAYOUTRECALL4_FILE = 1
    LAYOUTRECALL4_FSID = 2
    LAYOUTRECALL4_ALL = 3


@struct
class layoutrecall_file4:
    lor_fh: nfs_fh4
    lor_offset: offset4
    lor_length: length4
    lor_stateid: stateid4


@union(void=(layoutrecall_type4.LAYOUTRECALL4_ALL,))
class layoutrecall4:
    lor_recalltype: layoutrecall_type4
    lor_layout: Annotated[layoutrecall_file4 | None, case(layoutrecall_type4.LAYOUTRECALL4_FILE)] = None
    lor_fsid: Annotated[fsid4 | None, case(layoutrecall_type4.LAYOUTRECALL4_FSID)] = None


@struct
class CB_LAYOUTRECALL4args:
    clora_type: Annotated[int, open_enum(layouttype4)]
    clora_iomode: layoutiomode4
    clora_changed: bool
    clora_recall: layoutrecall4


@struct
class CB_LAYOUTRECALL4res:
    clorr_status: nfsstat4


class notify_type4(IntEnum):
    NOTIFY4_CHANGE_CHILD_ATTRS = 0
    NOTIFY4_CHANGE_DIR_ATTRS = 1
    NOTIFY4_REMOVE_ENTRY = 2
    NOTIFY4_ADD_ENTRY = 3
    NOTIFY4_RENAME_ENTRY = 4
    NOTIFY4_CHANGE_COOKIE_VERIFIER = 5


@struct
class notify_entry4:
    ne_file: component4
    ne_attrs: fattr4


@struct
class prev_entry4:
    pe_prev_entry: notify_entry4
    pe_prev_entry_cookie: nfs_cookie4


@struct
class notify_remove4:
    nrm_old_entry: notify_entry4
    nrm_old_entry_cookie: nfs_cookie4


@struct
class notify_add4:
    nad_old_entry: Annotated[list[notify_remove4], array(1)]
    nad_new_entry: notify_entry4
    nad_new_entry_cookie: Annotated[list[nfs_cookie4], array(1)]
    nad_prev_entry: Annotated[list[prev_entry4], array(1)]
    nad_last_entry: bool


@struct
class notify_attr4:
    na_changed_entry: notify_entry4


@struct
class notify_rename4:
    nrn_old_entry: notify_remove4
    nrn_new_entry: notify_add4


@struct
class notify_verifier4:
    nv_old_cookieverf: verifier4
    nv_new_cookieverf: verifier4


notifylist4 = Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class notify4:
    notify_mask: bitmap4
    notify_vals: notifylist4


@struct
class CB_NOTIFY4args:
    cna_stateid: stateid4
    cna_fh: nfs_fh4
    cna_changes: Annotated[list[notify4], array(ARRAY_LIMIT)]


@struct
class CB_NOTIFY4res:
    cnr_status: nfsstat4


@struct
class CB_PUSH_DELEG4args:
    cpda_fh: nfs_fh4
    cpda_delegation: open_delegation4


@struct
class CB_PUSH_DELEG4res:
    cpdr_status: nfsstat4


RCA4_TYPE_MASK_RDATA_DLG: Final = 0
RCA4_TYPE_MASK_WDATA_DLG: Final = 1
RCA4_TYPE_MASK_DIR_DLG: Final = 2
RCA4_TYPE_MASK_FILE_LAYOUT: Final = 3
RCA4_TYPE_MASK_BLK_LAYOUT: Final = 4
RCA4_TYPE_MASK_OBJ_LAYOUT_MIN: Final = 8
RCA4_TYPE_MASK_OBJ_LAYOUT_MAX: Final = 9
RCA4_TYPE_MASK_OTHER_LAYOUT_MIN: Final = 12
RCA4_TYPE_MASK_OTHER_LAYOUT_MAX: Final = 15


@struct
class CB_RECALL_ANY4args:
    craa_objects_to_keep: uint32
    craa_type_mask: bitmap4


@struct
class CB_RECALL_ANY4res:
    crar_status: nfsstat4


CB_RECALLABLE_OBJ_AVAIL4args = CB_RECALL_ANY4args


@struct
class CB_RECALLABLE_OBJ_AVAIL4res:
    croa_status: nfsstat4


@struct
class CB_RECALL_SLOT4args:
    rsa_target_highest_slotid: slotid4


@struct
class CB_RECALL_SLOT4res:
    rsr_status: nfsstat4


@struct
class referring_call4:
    rc_sequenceid: sequenceid4
    rc_slotid: slotid4


@struct
class referring_call_list4:
    rcl_sessionid: sessionid4
    rcl_referring_calls: Annotated[list[referring_call4], array(ARRAY_LIMIT)]


@struct
class CB_SEQUENCE4args:
    csa_sessionid: sessionid4
    csa_sequenceid: sequenceid4
    csa_slotid: slotid4
    csa_highest_slotid: slotid4
    csa_cachethis: bool
    csa_referring_call_lists: Annotated[list[referring_call_list4], array(ARRAY_LIMIT)]


@struct
class CB_SEQUENCE4resok:
    csr_sessionid: sessionid4
    csr_sequenceid: sequenceid4
    csr_slotid: slotid4
    csr_highest_slotid: slotid4
    csr_target_highest_slotid: slotid4


@union(void=DEFAULT)
class CB_SEQUENCE4res:
    csr_status: nfsstat4
    csr_resok4: Annotated[CB_SEQUENCE4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class CB_WANTS_CANCELLED4args:
    cwca_contended_wants_cancelled: bool
    cwca_resourced_wants_cancelled: bool


@struct
class CB_WANTS_CANCELLED4res:
    cwcr_status: nfsstat4


@struct
class CB_NOTIFY_LOCK4args:
    cnla_fh: nfs_fh4
    cnla_lock_owner: lock_owner4


@struct
class CB_NOTIFY_LOCK4res:
    cnlr_status: nfsstat4


class notify_deviceid_type4(IntEnum):
    NOTIFY_DEVICEID4_CHANGE = 1
    NOTIFY_DEVICEID4_DELETE = 2


@struct
class notify_deviceid_delete4:
    ndd_layouttype: Annotated[int, open_enum(layouttype4)]
    ndd_deviceid: deviceid4


@struct
class notify_deviceid_change4:
    ndc_layouttype: Annotated[int, open_enum(layouttype4)]
    ndc_deviceid: deviceid4
    ndc_immediate: bool


@struct
class CB_NOTIFY_DEVICEID4args:
    cnda_changes: Annotated[list[notify4], array(ARRAY_LIMIT)]


@struct
class CB_NOTIFY_DEVICEID4res:
    cndr_status: nfsstat4


@union
class offload_info4:
    coa_status: nfsstat4
    coa_resok4: Annotated[write_response4 | None, case(nfsstat4.NFS4_OK)] = None
    coa_bytes_copied: Annotated[length4 | None, DEFAULT] = None


@struct
class CB_OFFLOAD4args:
    coa_fh: nfs_fh4
    coa_stateid: stateid4
    coa_offload_info: offload_info4


@struct
class CB_OFFLOAD4res:
    cor_status: nfsstat4
