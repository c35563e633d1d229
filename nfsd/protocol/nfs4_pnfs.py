"""Layouts, devices and replicas (RFC 8881 sections 11.17, 12, 13), under the RFC's names.

Imports :mod:`rpcrdma.xdr` and :mod:`nfsd.protocol.nfs4_types`. Layout types are assigned by IANA: unknown ones stay
integers, and are answered NFS4ERR_UNKNOWN_LAYOUTTYPE.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from nfsd.protocol.nfs4_types import (
    ARRAY_LIMIT,
    BODY_LIMIT,
    count4,
    length4,
    netaddr4,
    nfs_fh4,
    offset4,
    pathname4,
    stateid4,
    utf8str_cis,
)
from rpcrdma.xdr import DEFAULT, array, case, fixed, int32, opaque, open_enum, struct, uint32, union


class layouttype4(IntEnum):
    LAYOUT4_NFSV4_1_FILES = 1
    LAYOUT4_OSD2_OBJECTS = 2
    LAYOUT4_BLOCK_VOLUME = 3


@struct
class layout_content4:
    loc_type: Annotated[int, open_enum(layouttype4)]
    loc_body: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class layouthint4:
    loh_type: Annotated[int, open_enum(layouttype4)]
    loh_body: Annotated[bytes, opaque(BODY_LIMIT)]


class layoutiomode4(IntEnum):
    LAYOUTIOMODE4_READ = 1
    LAYOUTIOMODE4_RW = 2
    LAYOUTIOMODE4_ANY = 3


@struct
class layout4:
    lo_offset: offset4
    lo_length: length4
    lo_iomode: layoutiomode4
    lo_content: layout_content4


NFS4_DEVICEID4_SIZE: Final = 16
deviceid4 = Annotated[bytes, fixed(16)]


@struct
class device_addr4:
    da_layout_type: Annotated[int, open_enum(layouttype4)]
    da_addr_body: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class layoutupdate4:
    lou_type: Annotated[int, open_enum(layouttype4)]
    lou_body: Annotated[bytes, opaque(BODY_LIMIT)]


LAYOUT4_RET_REC_FILE: Final = 1
LAYOUT4_RET_REC_FSID: Final = 2
LAYOUT4_RET_REC_ALL: Final = 3


class layoutreturn_type4(IntEnum):
    LAYOUTRETURN4_FILE = 1
    LAYOUTRETURN4_FSID = 2
    LAYOUTRETURN4_ALL = 3


@struct
class layoutreturn_file4:
    lrf_offset: offset4
    lrf_length: length4
    lrf_stateid: stateid4
    lrf_body: Annotated[bytes, opaque(BODY_LIMIT)]


@union(void=DEFAULT)
class layoutreturn4:
    lr_returntype: layoutreturn_type4
    lr_layout: Annotated[layoutreturn_file4 | None, case(layoutreturn_type4.LAYOUTRETURN4_FILE)] = None


@struct
class fs_locations_server4:
    fls_currency: int32
    fls_info: Annotated[bytes, opaque(BODY_LIMIT)]
    fls_server: utf8str_cis


FSLI4BX_GFLAGS: Final = 0
FSLI4BX_TFLAGS: Final = 1
FSLI4BX_CLSIMUL: Final = 2
FSLI4BX_CLHANDLE: Final = 3
FSLI4BX_CLFILEID: Final = 4
FSLI4BX_CLWRITEVER: Final = 5
FSLI4BX_CLCHANGE: Final = 6
FSLI4BX_CLREADDIR: Final = 7
FSLI4BX_READRANK: Final = 8
FSLI4BX_WRITERANK: Final = 9
FSLI4BX_READORDER: Final = 10
FSLI4BX_WRITEORDER: Final = 11
FSLI4GF_WRITABLE: Final = 0x01
FSLI4GF_CUR_REQ: Final = 0x02
FSLI4GF_ABSENT: Final = 0x04
FSLI4GF_GOING: Final = 0x08
FSLI4GF_SPLIT: Final = 0x10
FSLI4TF_RDMA: Final = 0x01


@struct
class fs_locations_item4:
    fli_entries: Annotated[list[fs_locations_server4], array(ARRAY_LIMIT)]
    fli_rootpath: pathname4


@struct
class fs_locations_info4:
    fli_flags: uint32
    fli_valid_for: int32
    fli_fs_root: pathname4
    fli_items: Annotated[list[fs_locations_item4], array(ARRAY_LIMIT)]


FSLI4IF_VAR_SUB: Final = 0x00000001
fattr4_fs_locations_info = fs_locations_info4
NFL4_UFLG_MASK: Final = 0x0000003F
NFL4_UFLG_DENSE: Final = 0x00000001
NFL4_UFLG_COMMIT_THRU_MDS: Final = 0x00000002
NFL42_UFLG_IO_ADVISE_THRU_MDS: Final = 0x00000004
NFL4_UFLG_STRIPE_UNIT_SIZE_MASK: Final = 0xFFFFFFC0
nfl_util4 = uint32


class filelayout_hint_care4(IntEnum):
    NFLH4_CARE_DENSE = 1
    NFLH4_CARE_COMMIT_THRU_MDS = 2
    NFL42_CARE_IO_ADVISE_THRU_MDS = 4
    NFLH4_CARE_STRIPE_UNIT_SIZE = 64
    NFLH4_CARE_STRIPE_COUNT = 128


@struct
class nfsv4_1_file_layouthint4:
    nflh_care: uint32
    nflh_util: nfl_util4
    nflh_stripe_count: count4


multipath_list4 = Annotated[list[netaddr4], array(ARRAY_LIMIT)]


@struct
class nfsv4_1_file_layout_ds_addr4:
    nflda_stripe_indices: Annotated[list[uint32], array(ARRAY_LIMIT)]
    nflda_multipath_ds_list: Annotated[list[multipath_list4], array(ARRAY_LIMIT)]


@struct
class nfsv4_1_file_layout4:
    nfl_deviceid: deviceid4
    nfl_util: nfl_util4
    nfl_first_stripe_index: uint32
    nfl_pattern_offset: offset4
    nfl_fh_list: Annotated[list[nfs_fh4], array(ARRAY_LIMIT)]
