"""NFSv4's attributes (RFC 8881 section 5, RFC 7862 section 12.2, RFC 8275, RFC 8276), under the RFCs' names.

Imports the declarations of types, access control lists and layouts.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Final

from nfsd.protocol.nfs4_acl import nfsace4, nfsacl41
from nfsd.protocol.nfs4_errors import nfsstat4
from nfsd.protocol.nfs4_pnfs import fs_locations_info4, layouthint4, layouttype4
from nfsd.protocol.nfs4_types import (
    ACL_LIMIT,
    ARRAY_LIMIT,
    BODY_LIMIT,
    ascii_REQUIRED4,
    attrlist4,
    bitmap4,
    changeid4,
    fsid4,
    length4,
    mode4,
    mode_masked4,
    nfs_fh4,
    nfs_ftype4,
    nfstime4,
    pathname4,
    policy4,
    settime4,
    specdata4,
    utf8str_cis,
    utf8str_cs,
    utf8str_mixed,
)
from rpcrdma.xdr import array, int32, opaque, open_enum, struct, uint32, uint64

nfs_lease4 = uint32


@struct
class change_policy4:
    cp_major: uint64
    cp_minor: uint64


@struct
class fs_location4:
    server: Annotated[list[utf8str_cis], array(ARRAY_LIMIT)]
    rootpath: pathname4


@struct
class fs_locations4:
    fs_root: pathname4
    locations: Annotated[list[fs_location4], array(ARRAY_LIMIT)]


class fs4_status_type(IntEnum):
    STATUS4_FIXED = 1
    STATUS4_UPDATED = 2
    STATUS4_VERSIONED = 3
    STATUS4_WRITABLE = 4
    STATUS4_REFERRAL = 5


@struct
class fs4_status:
    fss_absent: bool
    fss_type: fs4_status_type
    fss_source: utf8str_cs
    fss_current: utf8str_cs
    fss_age: int32
    fss_version: nfstime4


TH4_READ_SIZE: Final = 0
TH4_WRITE_SIZE: Final = 1
TH4_READ_IOSIZE: Final = 2
TH4_WRITE_IOSIZE: Final = 3
threshold4_read_size = length4
threshold4_write_size = length4
threshold4_read_iosize = length4
threshold4_write_iosize = length4


@struct
class threshold_item4:
    thi_layout_type: Annotated[int, open_enum(layouttype4)]
    thi_hintset: bitmap4
    thi_hintlist: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class mdsthreshold4:
    mth_hints: Annotated[list[threshold_item4], array(ARRAY_LIMIT)]


RET4_DURATION_INFINITE: Final = 0xFFFFFFFFFFFFFFFF


@struct
class retention_get4:
    rg_duration: uint64
    rg_begin_time: Annotated[list[nfstime4], array(1)]


@struct
class retention_set4:
    rs_enable: bool
    rs_duration: Annotated[list[uint64], array(1)]


FSCHARSET_CAP4_CONTAINS_NON_UTF8: Final = 0x1
FSCHARSET_CAP4_ALLOWS_ONLY_UTF8: Final = 0x2
fs_charset_cap4 = uint32


class change_attr_type4(IntEnum):
    NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR = 0
    NFS4_CHANGE_TYPE_IS_VERSION_COUNTER = 1
    NFS4_CHANGE_TYPE_IS_VERSION_COUNTER_NOPNFS = 2
    NFS4_CHANGE_TYPE_IS_TIME_METADATA = 3
    NFS4_CHANGE_TYPE_IS_UNDEFINED = 4


@struct
class labelformat_spec4:
    lfs_lfs: policy4
    lfs_pi: policy4


@struct
class sec_label4:
    slai_lfs: labelformat_spec4
    slai_data: Annotated[bytes, opaque(BODY_LIMIT)]


fattr4_supported_attrs = bitmap4
fattr4_type = nfs_ftype4
fattr4_fh_expire_type = uint32
fattr4_change = changeid4
fattr4_size = uint64
fattr4_link_support = bool
fattr4_symlink_support = bool
fattr4_named_attr = bool
fattr4_fsid = fsid4
fattr4_unique_handles = bool
fattr4_lease_time = nfs_lease4
fattr4_rdattr_error = nfsstat4
fattr4_acl = Annotated[list[nfsace4], array(ACL_LIMIT)]
fattr4_aclsupport = uint32
fattr4_archive = bool
fattr4_cansettime = bool
fattr4_case_insensitive = bool
fattr4_case_preserving = bool
fattr4_chown_restricted = bool
fattr4_fileid = uint64
fattr4_files_avail = uint64
fattr4_filehandle = nfs_fh4
fattr4_files_free = uint64
fattr4_files_total = uint64
fattr4_fs_locations = fs_locations4
fattr4_hidden = bool
fattr4_homogeneous = bool
fattr4_maxfilesize = uint64
fattr4_maxlink = uint32
fattr4_maxname = uint32
fattr4_maxread = uint64
fattr4_maxwrite = uint64
fattr4_mimetype = ascii_REQUIRED4
fattr4_mode = mode4
fattr4_mode_set_masked = mode_masked4
fattr4_mounted_on_fileid = uint64
fattr4_no_trunc = bool
fattr4_numlinks = uint32
fattr4_owner = utf8str_mixed
fattr4_owner_group = utf8str_mixed
fattr4_quota_avail_hard = uint64
fattr4_quota_avail_soft = uint64
fattr4_quota_used = uint64
fattr4_rawdev = specdata4
fattr4_space_avail = uint64
fattr4_space_free = length4
fattr4_space_total = uint64
fattr4_space_used = uint64
fattr4_system = bool
fattr4_time_access = nfstime4
fattr4_time_access_set = settime4
fattr4_time_backup = nfstime4
fattr4_time_create = nfstime4
fattr4_time_delta = nfstime4
fattr4_time_metadata = nfstime4
fattr4_time_modify = nfstime4
fattr4_time_modify_set = settime4
fattr4_suppattr_exclcreat = bitmap4
fattr4_dir_notif_delay = nfstime4
fattr4_dirent_notif_delay = nfstime4
fattr4_fs_layout_types = Annotated[list[Annotated[int, open_enum(layouttype4)]], array(ARRAY_LIMIT)]
fattr4_fs_status = fs4_status
fattr4_fs_charset_cap = fs_charset_cap4
fattr4_layout_alignment = uint32
fattr4_layout_blksize = uint32
fattr4_layout_hint = layouthint4
fattr4_layout_types = Annotated[list[Annotated[int, open_enum(layouttype4)]], array(ARRAY_LIMIT)]
fattr4_mdsthreshold = mdsthreshold4
fattr4_retention_get = retention_get4
fattr4_retention_set = retention_set4
fattr4_retentevt_get = retention_get4
fattr4_retentevt_set = retention_set4
fattr4_retention_hold = uint64
fattr4_dacl = nfsacl41
fattr4_sacl = nfsacl41
fattr4_change_policy = change_policy4
fattr4_space_freed = uint64
fattr4_change_attr_type = change_attr_type4
fattr4_sec_label = sec_label4
fattr4_clone_blksize = uint32


@struct
class fattr4:
    attrmask: bitmap4
    attr_vals: attrlist4


fattr4_xattr_support = bool
FATTR4_SUPPORTED_ATTRS: Final = 0
FATTR4_TYPE: Final = 1
FATTR4_FH_EXPIRE_TYPE: Final = 2
FATTR4_CHANGE: Final = 3
FATTR4_SIZE: Final = 4
FATTR4_LINK_SUPPORT: Final = 5
FATTR4_SYMLINK_SUPPORT: Final = 6
FATTR4_NAMED_ATTR: Final = 7
FATTR4_FSID: Final = 8
FATTR4_UNIQUE_HANDLES: Final = 9
FATTR4_LEASE_TIME: Final = 10
FATTR4_RDATTR_ERROR: Final = 11
FATTR4_FILEHANDLE: Final = 19
FATTR4_SUPPATTR_EXCLCREAT: Final = 75
FATTR4_ACL: Final = 12
FATTR4_ACLSUPPORT: Final = 13
FATTR4_ARCHIVE: Final = 14
FATTR4_CANSETTIME: Final = 15
FATTR4_CASE_INSENSITIVE: Final = 16
FATTR4_CASE_PRESERVING: Final = 17
FATTR4_CHOWN_RESTRICTED: Final = 18
FATTR4_FILEID: Final = 20
FATTR4_FILES_AVAIL: Final = 21
FATTR4_FILES_FREE: Final = 22
FATTR4_FILES_TOTAL: Final = 23
FATTR4_FS_LOCATIONS: Final = 24
FATTR4_HIDDEN: Final = 25
FATTR4_HOMOGENEOUS: Final = 26
FATTR4_MAXFILESIZE: Final = 27
FATTR4_MAXLINK: Final = 28
FATTR4_MAXNAME: Final = 29
FATTR4_MAXREAD: Final = 30
FATTR4_MAXWRITE: Final = 31
FATTR4_MIMETYPE: Final = 32
FATTR4_MODE: Final = 33
FATTR4_NO_TRUNC: Final = 34
FATTR4_NUMLINKS: Final = 35
FATTR4_OWNER: Final = 36
FATTR4_OWNER_GROUP: Final = 37
FATTR4_QUOTA_AVAIL_HARD: Final = 38
FATTR4_QUOTA_AVAIL_SOFT: Final = 39
FATTR4_QUOTA_USED: Final = 40
FATTR4_RAWDEV: Final = 41
FATTR4_SPACE_AVAIL: Final = 42
FATTR4_SPACE_FREE: Final = 43
FATTR4_SPACE_TOTAL: Final = 44
FATTR4_SPACE_USED: Final = 45
FATTR4_SYSTEM: Final = 46
FATTR4_TIME_ACCESS: Final = 47
FATTR4_TIME_ACCESS_SET: Final = 48
FATTR4_TIME_BACKUP: Final = 49
FATTR4_TIME_CREATE: Final = 50
FATTR4_TIME_DELTA: Final = 51
FATTR4_TIME_METADATA: Final = 52
FATTR4_TIME_MODIFY: Final = 53
FATTR4_TIME_MODIFY_SET: Final = 54
FATTR4_MOUNTED_ON_FILEID: Final = 55
FATTR4_DIR_NOTIF_DELAY: Final = 56
FATTR4_DIRENT_NOTIF_DELAY: Final = 57
FATTR4_DACL: Final = 58
FATTR4_SACL: Final = 59
FATTR4_CHANGE_POLICY: Final = 60
FATTR4_FS_STATUS: Final = 61
FATTR4_FS_LAYOUT_TYPES: Final = 62
FATTR4_LAYOUT_HINT: Final = 63
FATTR4_LAYOUT_TYPES: Final = 64
FATTR4_LAYOUT_BLKSIZE: Final = 65
FATTR4_LAYOUT_ALIGNMENT: Final = 66
FATTR4_FS_LOCATIONS_INFO: Final = 67
FATTR4_MDSTHRESHOLD: Final = 68
FATTR4_RETENTION_GET: Final = 69
FATTR4_RETENTION_SET: Final = 70
FATTR4_RETENTEVT_GET: Final = 71
FATTR4_RETENTEVT_SET: Final = 72
FATTR4_RETENTION_HOLD: Final = 73
FATTR4_MODE_SET_MASKED: Final = 74
FATTR4_FS_CHARSET_CAP: Final = 76
FATTR4_CLONE_BLKSIZE: Final = 77
FATTR4_SPACE_FREED: Final = 78
FATTR4_CHANGE_ATTR_TYPE: Final = 79
FATTR4_SEC_LABEL: Final = 80
FATTR4_XATTR_SUPPORT: Final = 82

fattr4_fs_locations_info = fs_locations_info4


@struct
class mode_umask4:
    """RFC 8275 section 4."""

    mu_mode: mode4
    mu_umask: mode4


fattr4_mode_umask = mode_umask4
FATTR4_MODE_UMASK: Final = 81


@struct
class open_arguments4:
    """RFC 9754 section 3: what OPEN takes, in bitmaps."""

    oa_share_access: bitmap4
    oa_share_deny: bitmap4
    oa_share_access_want: bitmap4
    oa_open_claim: bitmap4
    oa_create_mode: bitmap4


fattr4_time_deleg_access = nfstime4
fattr4_time_deleg_modify = nfstime4
fattr4_open_arguments = open_arguments4
FATTR4_TIME_DELEG_ACCESS: Final = 84  # RFC 9754 section 5
FATTR4_TIME_DELEG_MODIFY: Final = 85
FATTR4_OPEN_ARGUMENTS: Final = 86
OPEN_ARGS_SHARE_ACCESS_WANT_ANY_DELEG: Final = 3
OPEN_ARGS_SHARE_ACCESS_WANT_NO_DELEG: Final = 4
OPEN_ARGS_SHARE_ACCESS_WANT_CANCEL: Final = 5
OPEN_ARGS_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS: Final = 20
OPEN_ARGS_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION: Final = 21
OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS: Final = 0x00100000
OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION: Final = 0x00200000

ATTRIBUTE_TYPES: Final[dict[int, Any]] = {
    FATTR4_SUPPORTED_ATTRS: fattr4_supported_attrs,
    FATTR4_TYPE: fattr4_type,
    FATTR4_FH_EXPIRE_TYPE: fattr4_fh_expire_type,
    FATTR4_CHANGE: fattr4_change,
    FATTR4_SIZE: fattr4_size,
    FATTR4_LINK_SUPPORT: fattr4_link_support,
    FATTR4_SYMLINK_SUPPORT: fattr4_symlink_support,
    FATTR4_NAMED_ATTR: fattr4_named_attr,
    FATTR4_FSID: fattr4_fsid,
    FATTR4_UNIQUE_HANDLES: fattr4_unique_handles,
    FATTR4_LEASE_TIME: fattr4_lease_time,
    FATTR4_RDATTR_ERROR: fattr4_rdattr_error,
    FATTR4_ACL: fattr4_acl,
    FATTR4_ACLSUPPORT: fattr4_aclsupport,
    FATTR4_ARCHIVE: fattr4_archive,
    FATTR4_CANSETTIME: fattr4_cansettime,
    FATTR4_CASE_INSENSITIVE: fattr4_case_insensitive,
    FATTR4_CASE_PRESERVING: fattr4_case_preserving,
    FATTR4_CHOWN_RESTRICTED: fattr4_chown_restricted,
    FATTR4_FILEHANDLE: fattr4_filehandle,
    FATTR4_FILEID: fattr4_fileid,
    FATTR4_FILES_AVAIL: fattr4_files_avail,
    FATTR4_FILES_FREE: fattr4_files_free,
    FATTR4_FILES_TOTAL: fattr4_files_total,
    FATTR4_FS_LOCATIONS: fattr4_fs_locations,
    FATTR4_HIDDEN: fattr4_hidden,
    FATTR4_HOMOGENEOUS: fattr4_homogeneous,
    FATTR4_MAXFILESIZE: fattr4_maxfilesize,
    FATTR4_MAXLINK: fattr4_maxlink,
    FATTR4_MAXNAME: fattr4_maxname,
    FATTR4_MAXREAD: fattr4_maxread,
    FATTR4_MAXWRITE: fattr4_maxwrite,
    FATTR4_MIMETYPE: fattr4_mimetype,
    FATTR4_MODE: fattr4_mode,
    FATTR4_NO_TRUNC: fattr4_no_trunc,
    FATTR4_NUMLINKS: fattr4_numlinks,
    FATTR4_OWNER: fattr4_owner,
    FATTR4_OWNER_GROUP: fattr4_owner_group,
    FATTR4_QUOTA_AVAIL_HARD: fattr4_quota_avail_hard,
    FATTR4_QUOTA_AVAIL_SOFT: fattr4_quota_avail_soft,
    FATTR4_QUOTA_USED: fattr4_quota_used,
    FATTR4_RAWDEV: fattr4_rawdev,
    FATTR4_SPACE_AVAIL: fattr4_space_avail,
    FATTR4_SPACE_FREE: fattr4_space_free,
    FATTR4_SPACE_TOTAL: fattr4_space_total,
    FATTR4_SPACE_USED: fattr4_space_used,
    FATTR4_SYSTEM: fattr4_system,
    FATTR4_TIME_ACCESS: fattr4_time_access,
    FATTR4_TIME_ACCESS_SET: fattr4_time_access_set,
    FATTR4_TIME_BACKUP: fattr4_time_backup,
    FATTR4_TIME_CREATE: fattr4_time_create,
    FATTR4_TIME_DELTA: fattr4_time_delta,
    FATTR4_TIME_METADATA: fattr4_time_metadata,
    FATTR4_TIME_MODIFY: fattr4_time_modify,
    FATTR4_TIME_MODIFY_SET: fattr4_time_modify_set,
    FATTR4_MOUNTED_ON_FILEID: fattr4_mounted_on_fileid,
    FATTR4_DIR_NOTIF_DELAY: fattr4_dir_notif_delay,
    FATTR4_DIRENT_NOTIF_DELAY: fattr4_dirent_notif_delay,
    FATTR4_DACL: fattr4_dacl,
    FATTR4_SACL: fattr4_sacl,
    FATTR4_CHANGE_POLICY: fattr4_change_policy,
    FATTR4_FS_STATUS: fattr4_fs_status,
    FATTR4_FS_LAYOUT_TYPES: fattr4_fs_layout_types,
    FATTR4_LAYOUT_HINT: fattr4_layout_hint,
    FATTR4_LAYOUT_TYPES: fattr4_layout_types,
    FATTR4_LAYOUT_BLKSIZE: fattr4_layout_blksize,
    FATTR4_LAYOUT_ALIGNMENT: fattr4_layout_alignment,
    FATTR4_FS_LOCATIONS_INFO: fattr4_fs_locations_info,
    FATTR4_MDSTHRESHOLD: fattr4_mdsthreshold,
    FATTR4_RETENTION_GET: fattr4_retention_get,
    FATTR4_RETENTION_SET: fattr4_retention_set,
    FATTR4_RETENTEVT_GET: fattr4_retentevt_get,
    FATTR4_RETENTEVT_SET: fattr4_retentevt_set,
    FATTR4_RETENTION_HOLD: fattr4_retention_hold,
    FATTR4_MODE_SET_MASKED: fattr4_mode_set_masked,
    FATTR4_SUPPATTR_EXCLCREAT: fattr4_suppattr_exclcreat,
    FATTR4_FS_CHARSET_CAP: fattr4_fs_charset_cap,
    FATTR4_CLONE_BLKSIZE: fattr4_clone_blksize,
    FATTR4_SPACE_FREED: fattr4_space_freed,
    FATTR4_CHANGE_ATTR_TYPE: fattr4_change_attr_type,
    FATTR4_SEC_LABEL: fattr4_sec_label,
    FATTR4_MODE_UMASK: fattr4_mode_umask,
    FATTR4_XATTR_SUPPORT: fattr4_xattr_support,
    FATTR4_TIME_DELEG_ACCESS: fattr4_time_deleg_access,
    FATTR4_TIME_DELEG_MODIFY: fattr4_time_deleg_modify,
    FATTR4_OPEN_ARGUMENTS: fattr4_open_arguments,
}
"""The type of each attribute's value."""
