"""NFSv4.1 operations on sessions and client identifiers (RFC 8881 section 18), under the RFC's names.

Imports the declarations of types and of operations on state.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from nfsd.protocol.nfs4_errors import nfsstat4
from nfsd.protocol.nfs4_files import SECINFO4res, rpc_gss_svc_t
from nfsd.protocol.nfs4_open import open_claim_type4, open_delegation4, open_delegation_type4
from nfsd.protocol.nfs4_types import (
    ARRAY_LIMIT,
    BODY_LIMIT,
    bitmap4,
    client_owner4,
    clientid4,
    count4,
    nfs_impl_id4,
    nfstime4,
    sec_oid4,
    sequenceid4,
    server_owner4,
    sessionid4,
    slotid4,
    stateid4,
    verifier4,
)
from rpcrdma.rpc.messages import auth_flavor, authsys_parms
from rpcrdma.xdr import DEFAULT, array, case, opaque, struct, uint32, union


class ssv_subkey4(IntEnum):
    SSV4_SUBKEY_MIC_I2T = 1
    SSV4_SUBKEY_MIC_T2I = 2
    SSV4_SUBKEY_SEAL_I2T = 3
    SSV4_SUBKEY_SEAL_T2I = 4


@struct
class ssv_mic_plain_tkn4:
    smpt_ssv_seq: uint32
    smpt_orig_plain: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class ssv_mic_tkn4:
    smt_ssv_seq: uint32
    smt_hmac: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class ssv_seal_plain_tkn4:
    sspt_confounder: Annotated[bytes, opaque(BODY_LIMIT)]
    sspt_ssv_seq: uint32
    sspt_orig_plain: Annotated[bytes, opaque(BODY_LIMIT)]
    sspt_pad: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class ssv_seal_cipher_tkn4:
    ssct_ssv_seq: uint32
    ssct_iv: Annotated[bytes, opaque(BODY_LIMIT)]
    ssct_encr_data: Annotated[bytes, opaque(BODY_LIMIT)]
    ssct_hmac: Annotated[bytes, opaque(BODY_LIMIT)]


gsshandle4_t = Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class gss_cb_handles4:
    gcbp_service: rpc_gss_svc_t
    gcbp_handle_from_server: gsshandle4_t
    gcbp_handle_from_client: gsshandle4_t


@union(void=(auth_flavor.AUTH_NONE,))
class callback_sec_parms4:
    cb_secflavor: uint32
    cbsp_sys_cred: Annotated[authsys_parms | None, case(auth_flavor.AUTH_SYS)] = None
    cbsp_gss_handles: Annotated[gss_cb_handles4 | None, case(auth_flavor.RPCSEC_GSS)] = None


@struct
class BACKCHANNEL_CTL4args:
    bca_cb_program: uint32
    bca_sec_parms: Annotated[list[callback_sec_parms4], array(ARRAY_LIMIT)]


@struct
class BACKCHANNEL_CTL4res:
    bcr_status: nfsstat4


class channel_dir_from_client4(IntEnum):
    CDFC4_FORE = 1
    CDFC4_BACK = 2
    CDFC4_FORE_OR_BOTH = 3
    CDFC4_BACK_OR_BOTH = 7


@struct
class BIND_CONN_TO_SESSION4args:
    bctsa_sessid: sessionid4
    bctsa_dir: channel_dir_from_client4
    bctsa_use_conn_in_rdma_mode: bool


class channel_dir_from_server4(IntEnum):
    CDFS4_FORE = 1
    CDFS4_BACK = 2
    CDFS4_BOTH = 3


@struct
class BIND_CONN_TO_SESSION4resok:
    bctsr_sessid: sessionid4
    bctsr_dir: channel_dir_from_server4
    bctsr_use_conn_in_rdma_mode: bool


@union(void=DEFAULT)
class BIND_CONN_TO_SESSION4res:
    bctsr_status: nfsstat4
    bctsr_resok4: Annotated[BIND_CONN_TO_SESSION4resok | None, case(nfsstat4.NFS4_OK)] = None


EXCHGID4_FLAG_SUPP_MOVED_REFER: Final = 0x00000001
EXCHGID4_FLAG_SUPP_MOVED_MIGR: Final = 0x00000002
EXCHGID4_FLAG_SUPP_FENCE_OPS: Final = 0x00000004
EXCHGID4_FLAG_BIND_PRINC_STATEID: Final = 0x00000100
EXCHGID4_FLAG_USE_NON_PNFS: Final = 0x00010000
EXCHGID4_FLAG_USE_PNFS_MDS: Final = 0x00020000
EXCHGID4_FLAG_USE_PNFS_DS: Final = 0x00040000
EXCHGID4_FLAG_MASK_PNFS: Final = 0x00070000
EXCHGID4_FLAG_UPD_CONFIRMED_REC_A: Final = 0x40000000
EXCHGID4_FLAG_CONFIRMED_R: Final = 0x80000000


@struct
class state_protect_ops4:
    spo_must_enforce: bitmap4
    spo_must_allow: bitmap4


@struct
class ssv_sp_parms4:
    ssp_ops: state_protect_ops4
    ssp_hash_algs: Annotated[list[sec_oid4], array(ARRAY_LIMIT)]
    ssp_encr_algs: Annotated[list[sec_oid4], array(ARRAY_LIMIT)]
    ssp_window: uint32
    ssp_num_gss_handles: uint32


class state_protect_how4(IntEnum):
    SP4_NONE = 0
    SP4_MACH_CRED = 1
    SP4_SSV = 2


@union(void=(state_protect_how4.SP4_NONE,))
class state_protect4_a:
    spa_how: state_protect_how4
    spa_mach_ops: Annotated[state_protect_ops4 | None, case(state_protect_how4.SP4_MACH_CRED)] = None
    spa_ssv_parms: Annotated[ssv_sp_parms4 | None, case(state_protect_how4.SP4_SSV)] = None


@struct
class EXCHANGE_ID4args:
    eia_clientowner: client_owner4
    eia_flags: uint32
    eia_state_protect: state_protect4_a
    eia_client_impl_id: Annotated[list[nfs_impl_id4], array(1)]


@struct
class ssv_prot_info4:
    spi_ops: state_protect_ops4
    spi_hash_alg: uint32
    spi_encr_alg: uint32
    spi_ssv_len: uint32
    spi_window: uint32
    spi_handles: Annotated[list[gsshandle4_t], array(ARRAY_LIMIT)]


@union(void=(state_protect_how4.SP4_NONE,))
class state_protect4_r:
    spr_how: state_protect_how4
    spr_mach_ops: Annotated[state_protect_ops4 | None, case(state_protect_how4.SP4_MACH_CRED)] = None
    spr_ssv_info: Annotated[ssv_prot_info4 | None, case(state_protect_how4.SP4_SSV)] = None


@struct
class EXCHANGE_ID4resok:
    eir_clientid: clientid4
    eir_sequenceid: sequenceid4
    eir_flags: uint32
    eir_state_protect: state_protect4_r
    eir_server_owner: server_owner4
    eir_server_scope: Annotated[bytes, opaque(1024)]
    eir_server_impl_id: Annotated[list[nfs_impl_id4], array(1)]


@union(void=DEFAULT)
class EXCHANGE_ID4res:
    eir_status: nfsstat4
    eir_resok4: Annotated[EXCHANGE_ID4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class channel_attrs4:
    ca_headerpadsize: count4
    ca_maxrequestsize: count4
    ca_maxresponsesize: count4
    ca_maxresponsesize_cached: count4
    ca_maxoperations: count4
    ca_maxrequests: count4
    ca_rdma_ird: Annotated[list[uint32], array(1)]


CREATE_SESSION4_FLAG_PERSIST: Final = 0x00000001
CREATE_SESSION4_FLAG_CONN_BACK_CHAN: Final = 0x00000002
CREATE_SESSION4_FLAG_CONN_RDMA: Final = 0x00000004


@struct
class CREATE_SESSION4args:
    csa_clientid: clientid4
    csa_sequence: sequenceid4
    csa_flags: uint32
    csa_fore_chan_attrs: channel_attrs4
    csa_back_chan_attrs: channel_attrs4
    csa_cb_program: uint32
    csa_sec_parms: Annotated[list[callback_sec_parms4], array(ARRAY_LIMIT)]


@struct
class CREATE_SESSION4resok:
    csr_sessionid: sessionid4
    csr_sequence: sequenceid4
    csr_flags: uint32
    csr_fore_chan_attrs: channel_attrs4
    csr_back_chan_attrs: channel_attrs4


@union(void=DEFAULT)
class CREATE_SESSION4res:
    csr_status: nfsstat4
    csr_resok4: Annotated[CREATE_SESSION4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class DESTROY_SESSION4args:
    dsa_sessionid: sessionid4


@struct
class DESTROY_SESSION4res:
    dsr_status: nfsstat4


@struct
class FREE_STATEID4args:
    fsa_stateid: stateid4


@struct
class FREE_STATEID4res:
    fsr_status: nfsstat4


attr_notice4 = nfstime4


@struct
class GET_DIR_DELEGATION4args:
    gdda_signal_deleg_avail: bool
    gdda_notification_types: bitmap4
    gdda_child_attr_delay: attr_notice4
    gdda_dir_attr_delay: attr_notice4
    gdda_child_attributes: bitmap4
    gdda_dir_attributes: bitmap4


@struct
class GET_DIR_DELEGATION4resok:
    gddr_cookieverf: verifier4
    gddr_stateid: stateid4
    gddr_notification: bitmap4
    gddr_child_attributes: bitmap4
    gddr_dir_attributes: bitmap4


class gddrnf4_status(IntEnum):
    GDD4_OK = 0
    GDD4_UNAVAIL = 1


@union
class GET_DIR_DELEGATION4res_non_fatal:
    gddrnf_status: gddrnf4_status
    gddrnf_resok4: Annotated[GET_DIR_DELEGATION4resok | None, case(gddrnf4_status.GDD4_OK)] = None
    gddrnf_will_signal_deleg_avail: Annotated[bool | None, case(gddrnf4_status.GDD4_UNAVAIL)] = None


@union(void=DEFAULT)
class GET_DIR_DELEGATION4res:
    gddr_status: nfsstat4
    gddr_res_non_fatal4: Annotated[GET_DIR_DELEGATION4res_non_fatal | None, case(nfsstat4.NFS4_OK)] = None


class secinfo_style4(IntEnum):
    SECINFO_STYLE4_CURRENT_FH = 0
    SECINFO_STYLE4_PARENT = 1


SECINFO_NO_NAME4args = secinfo_style4
SECINFO_NO_NAME4res = SECINFO4res


@struct
class SEQUENCE4args:
    sa_sessionid: sessionid4
    sa_sequenceid: sequenceid4
    sa_slotid: slotid4
    sa_highest_slotid: slotid4
    sa_cachethis: bool


SEQ4_STATUS_CB_PATH_DOWN: Final = 0x00000001
SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRING: Final = 0x00000002
SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED: Final = 0x00000004
SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED: Final = 0x00000008
SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED: Final = 0x00000010
SEQ4_STATUS_ADMIN_STATE_REVOKED: Final = 0x00000020
SEQ4_STATUS_RECALLABLE_STATE_REVOKED: Final = 0x00000040
SEQ4_STATUS_LEASE_MOVED: Final = 0x00000080
SEQ4_STATUS_RESTART_RECLAIM_NEEDED: Final = 0x00000100
SEQ4_STATUS_CB_PATH_DOWN_SESSION: Final = 0x00000200
SEQ4_STATUS_BACKCHANNEL_FAULT: Final = 0x00000400
SEQ4_STATUS_DEVID_CHANGED: Final = 0x00000800
SEQ4_STATUS_DEVID_DELETED: Final = 0x00001000


@struct
class SEQUENCE4resok:
    sr_sessionid: sessionid4
    sr_sequenceid: sequenceid4
    sr_slotid: slotid4
    sr_highest_slotid: slotid4
    sr_target_highest_slotid: slotid4
    sr_status_flags: uint32


@union(void=DEFAULT)
class SEQUENCE4res:
    sr_status: nfsstat4
    sr_resok4: Annotated[SEQUENCE4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class ssa_digest_input4:
    sdi_seqargs: SEQUENCE4args


@struct
class SET_SSV4args:
    ssa_ssv: Annotated[bytes, opaque(BODY_LIMIT)]
    ssa_digest: Annotated[bytes, opaque(BODY_LIMIT)]


@struct
class ssr_digest_input4:
    sdi_seqres: SEQUENCE4res


@struct
class SET_SSV4resok:
    ssr_digest: Annotated[bytes, opaque(BODY_LIMIT)]


@union(void=DEFAULT)
class SET_SSV4res:
    ssr_status: nfsstat4
    ssr_resok4: Annotated[SET_SSV4resok | None, case(nfsstat4.NFS4_OK)] = None


@struct
class TEST_STATEID4args:
    ts_stateids: Annotated[list[stateid4], array(ARRAY_LIMIT)]


@struct
class TEST_STATEID4resok:
    tsr_status_codes: Annotated[list[nfsstat4], array(ARRAY_LIMIT)]


@union(void=DEFAULT)
class TEST_STATEID4res:
    tsr_status: nfsstat4
    tsr_resok4: Annotated[TEST_STATEID4resok | None, case(nfsstat4.NFS4_OK)] = None


@union(
    void=(
        open_claim_type4.CLAIM_FH,
        open_claim_type4.CLAIM_DELEG_PREV_FH,
    )
)
class deleg_claim4:
    dc_claim: open_claim_type4
    dc_delegate_type: Annotated[open_delegation_type4 | None, case(open_claim_type4.CLAIM_PREVIOUS)] = None


@struct
class WANT_DELEGATION4args:
    wda_want: uint32
    wda_claim: deleg_claim4


@union(void=DEFAULT)
class WANT_DELEGATION4res:
    wdr_status: nfsstat4
    wdr_resok4: Annotated[open_delegation4 | None, case(nfsstat4.NFS4_OK)] = None


@struct
class DESTROY_CLIENTID4args:
    dca_clientid: clientid4


@struct
class DESTROY_CLIENTID4res:
    dcr_status: nfsstat4


@struct
class RECLAIM_COMPLETE4args:
    rca_one_fs: bool


@struct
class RECLAIM_COMPLETE4res:
    rcr_status: nfsstat4
