"""NFSv4.2's operations (RFC 7862 section 15) and extended attributes (RFC 8276), under the RFCs' names.

Imports the declarations of types and layouts. READ_PLUS has nothing eligible for DDP: RFC 8267 section 6.1
does not list it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from nfsd.protocol.nfs4_errors import nfsstat4
from nfsd.protocol.nfs4_files import stable_how4
from nfsd.protocol.nfs4_opnums import nfs_opnum4
from nfsd.protocol.nfs4_pnfs import deviceid4, layoutupdate4
from nfsd.protocol.nfs4_types import (
    ARRAY_LIMIT,
    DATA_LIMIT,
    XATTR_LIMIT,
    XATTR_NAMES_LIMIT,
    bitmap4,
    change_info4,
    component4,
    count4,
    length4,
    netloc4,
    nfs_cookie4,
    nfstime4,
    offset4,
    stateid4,
    verifier4,
)
from rpcrdma.xdr import DEFAULT, array, case, opaque, open_enum, struct, uint64, union


class data_content4(IntEnum):
    NFS4_CONTENT_DATA = 0
    NFS4_CONTENT_HOLE = 1


@struct
class data4:
    d_offset: offset4
    d_data: Annotated[bytes, opaque(DATA_LIMIT)]


@struct
class data_info4:
    di_offset: offset4
    di_length: length4


@struct
class app_data_block4:
    adb_offset: offset4
    adb_block_size: length4
    adb_block_count: length4
    adb_reloff_blocknum: length4
    adb_block_num: count4
    adb_reloff_pattern: length4
    adb_pattern: Annotated[bytes, opaque(DATA_LIMIT)]


@struct
class write_response4:
    wr_callback_id: Annotated[list[stateid4], array(1)]
    wr_count: length4
    wr_committed: stable_how4
    wr_writeverf: verifier4


@struct
class CLONE4args:
    cl_src_stateid: stateid4
    cl_dst_stateid: stateid4
    cl_src_offset: offset4
    cl_dst_offset: offset4
    cl_count: length4


@struct
class CLONE4res:
    cl_status: nfsstat4


@struct
class COPY4args:
    ca_src_stateid: stateid4
    ca_dst_stateid: stateid4
    ca_src_offset: offset4
    ca_dst_offset: offset4
    ca_count: length4
    ca_consecutive: bool
    ca_synchronous: bool
    ca_source_server: Annotated[list[netloc4], array(ARRAY_LIMIT)]


@struct
class copy_requirements4:
    cr_consecutive: bool
    cr_synchronous: bool


@struct
class COPY4resok:
    cr_response: write_response4
    cr_requirements: copy_requirements4


@union(void=DEFAULT)
class COPY4res:
    cr_status: nfsstat4
    cr_resok4: Annotated[COPY4resok | None, case(nfsstat4.NFS4_OK)] = None
    cr_requirements: Annotated[copy_requirements4 | None, case(nfsstat4.NFS4ERR_OFFLOAD_NO_REQS)] = None


@struct
class COPY_NOTIFY4args:
    cna_src_stateid: stateid4
    cna_destination_server: netloc4


@struct
class COPY_NOTIFY4resok:
    cnr_lease_time: nfstime4
    cnr_stateid: stateid4
    cnr_source_server: Annotated[list[netloc4], array(ARRAY_LIMIT)]


@union(void=DEFAULT)
class COPY_NOTIFY4res:
    cnr_status: nfsstat4
    resok4: Annotated[COPY_NOTIFY4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class OFFLOAD_CANCEL4args:
    oca_stateid: stateid4


@struct
class OFFLOAD_CANCEL4res:
    ocr_status: nfsstat4


@struct
class OFFLOAD_STATUS4args:
    osa_stateid: stateid4


@struct
class OFFLOAD_STATUS4resok:
    osr_count: length4
    osr_complete: Annotated[list[nfsstat4], array(1)]


@union(void=DEFAULT)
class OFFLOAD_STATUS4res:
    osr_status: nfsstat4
    osr_resok4: Annotated[OFFLOAD_STATUS4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class ALLOCATE4args:
    aa_stateid: stateid4
    aa_offset: offset4
    aa_length: length4


@struct
class ALLOCATE4res:
    ar_status: nfsstat4


@struct
class DEALLOCATE4args:
    da_stateid: stateid4
    da_offset: offset4
    da_length: length4


@struct
class DEALLOCATE4res:
    dr_status: nfsstat4


class IO_ADVISE_type4(IntEnum):
    IO_ADVISE4_NORMAL = 0
    IO_ADVISE4_SEQUENTIAL = 1
    IO_ADVISE4_SEQUENTIAL_BACKWARDS = 2
    IO_ADVISE4_RANDOM = 3
    IO_ADVISE4_WILLNEED = 4
    IO_ADVISE4_WILLNEED_OPPORTUNISTIC = 5
    IO_ADVISE4_DONTNEED = 6
    IO_ADVISE4_NOREUSE = 7
    IO_ADVISE4_READ = 8
    IO_ADVISE4_WRITE = 9
    IO_ADVISE4_INIT_PROXIMITY = 10


@struct
class IO_ADVISE4args:
    iaa_stateid: stateid4
    iaa_offset: offset4
    iaa_count: length4
    iaa_hints: bitmap4


@struct
class IO_ADVISE4resok:
    ior_hints: bitmap4


@union(void=DEFAULT)
class IO_ADVISE4res:
    ior_status: nfsstat4
    resok4: Annotated[IO_ADVISE4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class device_error4:
    de_deviceid: deviceid4
    de_status: nfsstat4
    de_opnum: Annotated[int, open_enum(nfs_opnum4)]


@struct
class LAYOUTERROR4args:
    lea_offset: offset4
    lea_length: length4
    lea_stateid: stateid4
    lea_errors: Annotated[list[device_error4], array(ARRAY_LIMIT)]


@struct
class LAYOUTERROR4res:
    ler_status: nfsstat4


@struct
class io_info4:
    ii_count: uint64
    ii_bytes: uint64


@struct
class LAYOUTSTATS4args:
    lsa_offset: offset4
    lsa_length: length4
    lsa_stateid: stateid4
    lsa_read: io_info4
    lsa_write: io_info4
    lsa_deviceid: deviceid4
    lsa_layoutupdate: layoutupdate4


@struct
class LAYOUTSTATS4res:
    lsr_status: nfsstat4


@struct
class READ_PLUS4args:
    rpa_stateid: stateid4
    rpa_offset: offset4
    rpa_count: count4


@union(void=DEFAULT)
class read_plus_content:
    rpc_content: data_content4
    rpc_data: Annotated[data4 | None, case(data_content4.NFS4_CONTENT_DATA)] = None
    rpc_hole: Annotated[data_info4 | None, case(data_content4.NFS4_CONTENT_HOLE)] = None


@struct
class read_plus_res4:
    rpr_eof: bool
    rpr_contents: Annotated[list[read_plus_content], array(ARRAY_LIMIT)]


@union(void=DEFAULT)
class READ_PLUS4res:
    rp_status: nfsstat4
    rp_resok4: Annotated[read_plus_res4 | None, case(nfsstat4.NFS4_OK)] = None


@struct
class SEEK4args:
    sa_stateid: stateid4
    sa_offset: offset4
    sa_what: Annotated[int, open_enum(data_content4)]


@struct
class seek_res4:
    sr_eof: bool
    sr_offset: offset4


@union(void=DEFAULT)
class SEEK4res:
    sa_status: nfsstat4
    resok4: Annotated[seek_res4 | None, case(nfsstat4.NFS4_OK)] = None


@struct
class WRITE_SAME4args:
    wsa_stateid: stateid4
    wsa_stable: stable_how4
    wsa_adb: app_data_block4


@union(void=DEFAULT)
class WRITE_SAME4res:
    wsr_status: nfsstat4
    resok4: Annotated[write_response4 | None, case(nfsstat4.NFS4_OK)] = None


xattrkey4 = component4
xattrvalue4 = Annotated[bytes, opaque(XATTR_LIMIT)]


@struct
class GETXATTR4args:
    gxa_name: xattrkey4


@union(void=DEFAULT)
class GETXATTR4res:
    gxr_status: nfsstat4
    gxr_value: Annotated[xattrvalue4 | None, case(nfsstat4.NFS4_OK)] = None


class setxattr_option4(IntEnum):
    SETXATTR4_EITHER = 0
    SETXATTR4_CREATE = 1
    SETXATTR4_REPLACE = 2


@struct
class SETXATTR4args:
    sxa_option: setxattr_option4
    sxa_key: xattrkey4
    sxa_value: xattrvalue4


@union(void=DEFAULT)
class SETXATTR4res:
    sxr_status: nfsstat4
    sxr_info: Annotated[change_info4 | None, case(nfsstat4.NFS4_OK)] = None


@struct
class LISTXATTRS4args:
    lxa_cookie: nfs_cookie4
    lxa_maxcount: count4


@struct
class LISTXATTRS4resok:
    lxr_cookie: nfs_cookie4
    lxr_names: Annotated[list[xattrkey4], array(XATTR_NAMES_LIMIT)]
    lxr_eof: bool


@union(void=DEFAULT)
class LISTXATTRS4res:
    lxr_status: nfsstat4
    lxr_value: Annotated[LISTXATTRS4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class REMOVEXATTR4args:
    rxa_name: xattrkey4


@union(void=DEFAULT)
class REMOVEXATTR4res:
    rxr_status: nfsstat4
    rxr_info: Annotated[change_info4 | None, case(nfsstat4.NFS4_OK)] = None
